package train

import (
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
)

// shared is a store as the members of a group see it. Members that share a directory have a leader,
// who makes, renames and removes checkpoints in it.
type shared struct {
	Store
	peers
	leaders []int // by rank: the lowest of those that share its directory
}

// share finds out which members share a directory: each makes a file in its own and looks for those
// of the others. A member that can make none shares with nobody, and has the error.
func (s Store) share() (shared, error) {
	p := peers{s.Group}
	all := shared{s, p, make([]int, p.size())}
	if s.Group == nil {
		return all, nil
	}
	name := fmt.Sprintf("%s%d-%s%s", sharePrefix, p.rank(), rand.Text(), temporarySuffix)
	_, made := os.Stat(s.Dir)
	if made == nil {
		made = os.WriteFile(filepath.Join(s.Dir, name), nil, 0o666)
	}
	if made != nil {
		name = ""
	} else {
		defer os.Remove(filepath.Join(s.Dir, name)) // one that stays is removed with the leftovers
	}
	names, err := gather(p, "files that show who shares a directory", name)
	if err != nil {
		return all, err
	}
	see := make([]bool, p.size())
	for rank, name := range names {
		_, err := os.Lstat(filepath.Join(s.Dir, name))
		see[rank] = name != "" && err == nil
	}
	seen, err := gather(p, "who shares a directory", see)
	if err != nil {
		return all, err
	}
	for rank := range all.leaders {
		all.leaders[rank] = rank
		for other := range rank {
			if seen[rank][other] || seen[other][rank] {
				all.leaders[rank] = all.leaders[other]
				break
			}
		}
	}
	return all, made
}

// apart reports whether there are several directories.
func (s shared) apart() bool {
	for _, leader := range s.leaders {
		if leader != 0 {
			return true
		}
	}
	return false
}

// lead runs f on the leaders.
func (s shared) lead(f func() error) error {
	if s.leaders[s.rank()] != s.rank() {
		return nil
	}
	return f()
}

// led agrees on what the leaders do.
func (s shared) led(what string, f func() error) error { return s.agree(what, s.lead(f)) }
