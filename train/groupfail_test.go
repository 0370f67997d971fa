package train_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"penstock.example/group"
	"penstock.example/internal/draws"
	"penstock.example/internal/must"
	"penstock.example/train"
)

// third gives the parameters to three members in turn.
func third(rank, param int) bool { return param%3 == rank }

// fault refuses the n-th operation on a member's files. From then on a dead member does nothing.
type fault struct {
	mu     sync.Mutex
	at     int // counted from 0; -1 for none
	dies   bool
	member member
	seen   int
	dead   bool
	what   string // the operation that was refused
}

var errFault = errors.New("boom")

func (f *fault) before(operation, path string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.seen
	f.seen++
	if f.dead {
		return errFault
	}
	if n != f.at {
		return nil
	}
	f.what = operation + " " + filepath.Base(path)
	if f.dies {
		f.dead = true
		f.member.group.Close() // the others find that it is gone
	}
	return errFault
}

// TestSaveFailsWholeInAGroup: whatever operation on a file fails on whatever member, or kills it, all
// members have an error or none, and then there is a complete checkpoint: the one that was being
// saved or the one before. A quick run leaves out most operations where members die.
func TestSaveFailsWholeInAGroup(t *testing.T) {
	check(t)
	for rank := range 3 {
		for _, dies := range []bool{false, true} {
			first, step := 0, 1
			if !draws.Full && dies {
				first, step = rank, 3
			}
			for at, more := first, true; more; at += step {
				t.Run(fmt.Sprintf("rank %d, dies %t, operation %d", rank, dies, at), func(t *testing.T) {
					f := &fault{at: at, dies: dies}
					failSave(t, rank, f)
					more = f.what != "" // or there are no more operations
				})
			}
		}
	}
}

func failSave(t *testing.T, rank int, f *fault) {
	dir := saved(t, 3, 1, 1, third)
	all := newMembers(t, dir, 3, 2, third)
	f.member = all[rank]
	errs := each(all, func(r int, m member) error {
		defer m.free()
		if err := m.loadState(2); err != nil {
			return err
		}
		store := m.store()
		store.Keep = 1
		if r == rank {
			store = store.WithFaults(f.before)
		}
		_, err := store.Save(train.Progress{Step: 2}, recipe(), m.model, m.opt)
		return err
	})
	saved := 0
	for r, err := range errs {
		switch {
		case err == nil:
			saved++
		case r == rank && !errors.Is(err, errFault) && !f.dies:
			t.Errorf("%s: the error of rank %d is %v", f.what, r, err)
		}
	}
	// A member that dies after the others need it no more leaves them with a saved checkpoint.
	if (f.what == "") != (saved == len(all)) && !f.dies || f.dies && saved > 0 && f.what != "" && saved < len(all)-1 {
		t.Errorf("%s: %d members have saved; errors %v", f.what, saved, errs)
	}
	if left := leftovers(t, dir); !f.dies && f.what != "" && !strings.HasPrefix(f.what, "remove") && len(left) > 0 {
		t.Errorf("%s leaves %q", f.what, left)
	}

	// Other processes go on from there.
	restored := make([]int64, 3)
	onAll(t, newMembers(t, dir, 3, 3, third), func(r int, m member) error {
		release, err := m.store().Lock()
		if err != nil {
			return err
		}
		defer release()
		if restored[r], err = m.restore(); err != nil {
			return err
		}
		return m.same(uint64(restored[r]))
	})
	if slices.Min(restored) != slices.Max(restored) || saved > 0 && restored[0] != 2 {
		t.Errorf("%s: %d members saved step 2, and steps %v are restored", f.what, saved, restored)
	}
	if left := leftovers(t, dir); len(left) > 0 {
		t.Errorf("%s: after Lock there is %q", f.what, left)
	}
}

// leftovers lists what is no checkpoint in a directory.
func leftovers(t testing.TB, dir string) []string {
	return slices.DeleteFunc(names(t, dir), func(name string) bool { return strings.HasPrefix(name, "step-") })
}

// TestNotShared: processes that do not see one directory are refused on every rank before they train.
func TestNotShared(t *testing.T) {
	all := newMembers(t, t.TempDir(), 2, 1, third)
	all[1].dir = t.TempDir()
	for rank, err := range each(all, func(_ int, m member) error { defer m.free(); return m.store().Prepare() }) {
		var apart *train.NotSharedError
		if err == nil || !strings.Contains(err.Error(), "rank 1 does not see in ") || errors.As(err, &apart) != (rank == 1) {
			t.Errorf("rank %d: %v", rank, err)
		}
		if left := names(t, all[rank].dir); len(left) > 0 {
			t.Errorf("rank %d: %q is left", rank, left)
		}
	}
}

// TestDamagedShards: a shard that is missing or damaged is an error on every member that names the file.
func TestDamagedShards(t *testing.T) {
	check(t)
	for _, tt := range []struct {
		file, want string
		do         func(path string) error
	}{
		{"model-00002-of-00003.safetensors", "is missing", os.Remove},
		{"optimizer-00001-of-00003.safetensors", "is missing", os.Remove},
		{"model-00003-of-00003.safetensors", "has 100 bytes", func(path string) error { return os.Truncate(path, 100) }},
	} {
		dir := saved(t, 3, 1, 1, third)
		must.Do(t, tt.do(filepath.Join(dir, "step-000001", tt.file)))
		for r, err := range each(newMembers(t, dir, 3, 1, third), func(_ int, m member) error {
			defer m.free()
			_, err := m.store().Latest()
			m.group.Fail(group.Failure{Stage: -1, MicroBatch: -1, Message: "it goes"}) // others may not have seen yet what is wrong
			return err
		}) {
			var damaged *train.DamagedError
			if !errors.As(err, &damaged) || !strings.Contains(err.Error(), tt.file+" "+tt.want) {
				t.Errorf("%s, rank %d: %v; want %s", tt.file, r, err, tt.want)
			}
		}
	}
}

// TestLockInAGroup: another run is refused on every rank until the first releases its lock.
func TestLockInAGroup(t *testing.T) {
	dir := t.TempDir()
	lock := func(want string) (release func() error) {
		var first sync.Mutex
		for rank, err := range inProcesses(3, func(g *group.Group) error {
			free, err := train.Store{Dir: dir, Group: g}.Lock()
			if first.Lock(); g.Rank() == 0 {
				release = free
			}
			first.Unlock()
			return err
		}) {
			if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("rank %d: %v, want %q", rank, err, want)
			}
		}
		return release
	}
	release := lock("")
	lock(train.ErrLocked.Error())
	if err := release(); err != nil {
		t.Error(err)
	}
	lock("")()
}

// TestRestoreFailsOnAllMembers: a file that is lost after it was checked, or a member that is gone,
// is an error on every member that is there, and nobody waits for ever.
func TestRestoreFailsOnAllMembers(t *testing.T) {
	check(t)
	for _, gone := range []bool{false, true} {
		dir, lost := saved(t, 3, 1, 1, third), "model-00002-of-00003.safetensors"
		all := newMembers(t, dir, 3, 2, third)
		found := make([]*train.Checkpoint, len(all))
		for _, err := range each(all, func(rank int, m member) (err error) { found[rank], err = m.store().Latest(); return err }) {
			if err != nil {
				t.Fatal(err)
			}
		}
		if !gone {
			must.Do(t, os.Remove(filepath.Join(dir, "step-000001", lost)))
		}
		for rank, err := range each(all, func(rank int, m member) error {
			defer m.free()
			if gone && rank == 1 {
				m.group.Close()
				return errFault
			}
			return found[rank].RestoreInto(m.model, m.places(), m.opt)
		}) {
			if err == nil || !gone && !strings.Contains(err.Error(), lost) {
				t.Errorf("a member is gone %t: rank %d: %v", gone, rank, err)
			}
		}
	}
}
