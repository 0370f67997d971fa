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
	"penstock.example/train"
)

// layouts are which members share a directory.
var layouts = map[string][]int{"one directory": {0, 0, 0}, "three directories": {0, 1, 2}, "two directories": {0, 1, 0}}

func directories(root string, layout []int) (dirs []string) {
	for _, n := range layout {
		dirs = append(dirs, filepath.Join(root, fmt.Sprint(n)))
	}
	return dirs
}

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
// saved or the one before. A quick run leaves out most operations, by rank in turn, where members die or do not
// share a directory.
func TestSaveFailsWholeInAGroup(t *testing.T) {
	check(t)
	for layout, shared := range layouts {
		for rank := range shared {
			for _, dies := range []bool{false, true} {
				first, step := 0, 1
				if !draws.Full && (dies || layout != "one directory") {
					first, step = rank, len(shared)
				}
				for at, more := first, true; more; at += step {
					t.Run(fmt.Sprintf("%s, rank %d, dies %t, operation %d", layout, rank, dies, at), func(t *testing.T) {
						f := &fault{at: at, dies: dies}
						failSave(t, directories(t.TempDir(), shared), rank, f)
						more = f.what != "" // or there are no more operations
						t.Log(f.what)
					})
				}
			}
		}
	}
}

func failSave(t *testing.T, dirs []string, rank int, f *fault) {
	all := newMembers(t, dirs, 1, third)
	for _, err := range each(all, func(_ int, m member) error {
		return errors.Join(m.loadState(1), m.store().Prepare(), m.save(1))
	}) {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range all {
		m.free()
	}

	all = newMembers(t, dirs, 2, third)
	f.member = all[rank]
	errs := each(all, func(r int, m member) error {
		defer m.free()
		if err := m.loadState(2); err != nil {
			return err
		}
		store := m.store()
		store.Keep = 1
		if r == rank {
			store = store.WithBefore(f.before)
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
	// a member that dies after the others need it no more leaves them with a saved checkpoint
	if (f.what == "") != (saved == len(all)) && !f.dies || f.dies && saved > 0 && f.what != "" && saved < len(all)-1 {
		t.Errorf("%s: %d members have saved; errors %v", f.what, saved, errs)
	}
	if !f.dies && f.what != "" && !strings.HasPrefix(f.what, "remove") {
		for _, dir := range dirs {
			if left := leftovers(t, dir); len(left) > 0 {
				t.Errorf("%s leaves %q", f.what, left)
			}
		}
	}

	// Other processes go on from there.
	restored := make([]int64, len(dirs))
	all = newMembers(t, dirs, 3, third)
	for r, err := range each(all, func(r int, m member) error {
		defer m.free()
		release, err := m.store().Lock()
		if err != nil {
			return err
		}
		defer release()
		if restored[r], err = m.restore(); err != nil {
			return err
		}
		return m.same(uint64(restored[r]))
	}) {
		if err != nil {
			t.Errorf("%s: rank %d: %v", f.what, r, err)
		}
	}
	if slices.Min(restored) != slices.Max(restored) || saved > 0 && restored[0] != 2 {
		t.Errorf("%s: %d members saved step 2, and steps %v are restored", f.what, saved, restored)
	}
	for _, dir := range dirs {
		if left := leftovers(t, dir); len(left) > 0 {
			t.Errorf("%s: after Lock there is %q", f.what, left)
		}
	}
}

// TestSaveFailsTwiceWhileRenaming: rank 1 cannot rename its directory and does not learn whether
// rank 0 has renamed, as rank 2 dies. It keeps what it has prepared, and the next Lock completes the
// checkpoint.
func TestSaveFailsTwiceWhileRenaming(t *testing.T) {
	check(t)
	dirs := directories(t.TempDir(), []int{0, 1, 2})
	all := newMembers(t, dirs, 2, third)
	dies, renames := &fault{at: -1, dies: true, member: all[2]}, make(chan struct{})
	for r, err := range each(all, func(r int, m member) error {
		defer m.free()
		store := m.store()
		if err := errors.Join(m.loadState(2), store.Prepare()); err != nil {
			return err
		}
		store = store.WithBefore(func(operation, path string) error {
			if operation == "rename" {
				if r == 0 {
					close(renames) // panics if it is taken back
					return nil
				}
				<-renames
			}
			switch {
			case r == 1 && operation == "rename":
				return errFault
			case r == 2 && operation == "rename":
				dies.at = dies.seen
				return dies.before(operation, path)
			case r == 2:
				return dies.before(operation, path)
			}
			return nil
		})
		if _, err := store.Save(train.Progress{Step: 2}, recipe(), m.model, m.opt); err == nil {
			return errors.New("it has saved")
		}
		return nil
	}) {
		if err != nil {
			t.Fatalf("rank %d: %v", r, err)
		}
	}
	for dir, want := range map[string]string{dirs[0]: "step-000002", dirs[1]: ".step-000002.tmp", dirs[2]: ".step-000002.tmp"} {
		if got := names(t, dir); !slices.Equal(got, []string{want}) {
			t.Errorf("%s has %q, want %q", dir, got, want)
		}
	}
	all = newMembers(t, dirs, 3, third)
	for r, err := range each(all, func(_ int, m member) error {
		defer m.free()
		release, err := m.store().Lock()
		if err != nil {
			return err
		}
		defer release()
		if _, err := m.restore(); err != nil {
			return err
		}
		return m.same(2)
	}) {
		if err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}

// leftovers lists what is no checkpoint in a directory.
func leftovers(t testing.TB, dir string) []string {
	return slices.DeleteFunc(names(t, dir), func(name string) bool { return strings.HasPrefix(name, "step-") })
}

// TestSaveAfterAFailure: members of whom one could not write save again, as the group goes on.
func TestSaveAfterAFailure(t *testing.T) {
	check(t)
	for layout, shared := range layouts {
		dirs := directories(t.TempDir(), shared)
		all := newMembers(t, dirs, 5, third)
		for r, err := range each(all, func(r int, m member) error {
			defer m.free()
			store := m.store()
			if err := errors.Join(m.loadState(5), store.Prepare()); err != nil {
				return err
			}
			failing := store
			if r == 1 {
				failing = store.WithBefore(func(operation, path string) error {
					if operation == "write" {
						return errFault
					}
					return nil
				})
			}
			if _, err := failing.Save(train.Progress{Step: 4}, recipe(), m.model, m.opt); err == nil || !strings.Contains(err.Error(), "boom") {
				return fmt.Errorf("the error of a save that fails on rank 1 is %v", err)
			}
			if err := m.save(5); err != nil {
				return err
			}
			step, err := m.restore()
			if err == nil && step != 5 {
				err = fmt.Errorf("step %d", step)
			}
			return errors.Join(err, m.same(5))
		}) {
			if err != nil {
				t.Errorf("%s: rank %d: %v", layout, r, err)
			}
		}
	}
}

// TestDamagedShards: a shard that is missing or damaged is an error on every member, which names the
// file and the layers in it.
func TestDamagedShards(t *testing.T) {
	check(t)
	// network's layers with parameters are 1, 2, 5 and 7
	byLayer := func(rank, param int) bool { return rank == []int{0, 0, 1, 1, 1, 1, 1, 2, 2, 2, 2}[param] }
	for layout, shared := range layouts {
		for _, tt := range []struct {
			what, file string
			do         func(path string) error
			want       []string
		}{
			{"missing", "model-00002-of-00003.safetensors", os.Remove, []string{"model-00002-of-00003.safetensors is missing", "of layer 2"}},
			{"missing", "model-00003-of-00003.safetensors", os.Remove, []string{"is missing", "of the layers 5 and 7"}},
			{"missing", "optimizer-00001-of-00003.safetensors", os.Remove, []string{"optimizer-00001-of-00003.safetensors is missing", "of layer 1"}},
			{"cut", "model-00003-of-00003.safetensors", func(path string) error { return os.Truncate(path, 100) }, []string{"is truncated", "of the layers 5 and 7"}},
		} {
			dirs := directories(t.TempDir(), shared)
			all := newMembers(t, dirs, 1, byLayer)
			errs := each(all, func(_ int, m member) error {
				defer m.free()
				return errors.Join(m.loadState(1), m.store().Prepare(), m.save(1))
			})
			done := false
			for _, dir := range dirs {
				path := filepath.Join(dir, "step-000001", tt.file)
				if _, err := os.Stat(path); err == nil && !done {
					errs, done = append(errs, tt.do(path)), true
				}
			}
			if err := errors.Join(errs...); err != nil || !done {
				t.Fatal(err, done)
			}
			all = newMembers(t, dirs, 1, byLayer)
			for r, err := range each(all, func(_ int, m member) error {
				defer m.free()
				_, err := m.store().Latest()
				m.group.Fail(group.Failure{Stage: -1, MicroBatch: -1, Message: "it goes"}) // others may not have seen yet what is wrong
				return err
			}) {
				var damaged *train.DamagedError
				var missing *train.MissingError
				if errors.As(err, &missing) != (tt.what == "missing") || errors.As(err, &damaged) == (tt.what == "missing") {
					t.Errorf("%s, %s %s, rank %d: %v", layout, tt.file, tt.what, r, err)
					continue
				}
				for _, want := range tt.want {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("%s, %s %s, rank %d: %v; want %q", layout, tt.file, tt.what, r, err, want)
					}
				}
			}
		}
	}
}

// TestLockInAGroup: of the processes that share a directory one locks it, and another run is refused
// on every rank.
func TestLockInAGroup(t *testing.T) {
	for layout, shared := range layouts {
		root := t.TempDir()
		dirs := directories(root, shared)
		lock := func(g *group.Group, r int) (func() error, error) {
			store := train.Store{Dir: dirs[r], Group: g}
			if err := store.Prepare(); err != nil {
				return nil, err
			}
			return store.Lock()
		}
		both := func(f func(r int)) {
			var wg sync.WaitGroup
			for r := range dirs {
				wg.Go(func() { f(r) })
			}
			wg.Wait()
		}
		first, second := group.Local(len(dirs)), group.Local(len(dirs))
		releases := make([]func() error, len(dirs))
		both(func(r int) {
			var err error
			if releases[r], err = lock(first[r], r); err != nil {
				t.Errorf("%s: rank %d: %v", layout, r, err)
			}
		})
		both(func(r int) {
			if _, err := lock(second[r], r); err == nil || !strings.Contains(err.Error(), train.ErrLocked.Error()) {
				t.Errorf("%s: a second run, rank %d: %v", layout, r, err)
			}
		})
		both(func(r int) {
			if err := releases[r](); err != nil {
				t.Errorf("%s: rank %d: %v", layout, r, err)
			}
		})
		both(func(r int) {
			release, err := lock(second[r], r)
			if err != nil {
				t.Errorf("%s: after its release, rank %d: %v", layout, r, err)
				return
			}
			release()
		})
	}
}

// TestRestoreFailsOnAllMembers: a file that is lost after it was checked, or a member that is gone,
// is an error on every member that is there, and nobody waits for ever.
func TestRestoreFailsOnAllMembers(t *testing.T) {
	check(t)
	for layout, shared := range layouts {
		for _, gone := range []bool{false, true} {
			dirs := directories(t.TempDir(), shared)
			all := newMembers(t, dirs, 1, third)
			for _, err := range each(all, func(_ int, m member) error {
				defer m.free()
				return errors.Join(m.loadState(1), m.store().Prepare(), m.save(1))
			}) {
				if err != nil {
					t.Fatal(err)
				}
			}
			// each needs what another one has
			all = newMembers(t, dirs, 2, func(rank, param int) bool { return param%3 == (rank+1)%3 })
			saved := make([]*train.Checkpoint, len(all))
			for rank, err := range each(all, func(rank int, m member) (err error) { saved[rank], err = m.store().Latest(); return err }) {
				if err != nil {
					t.Fatalf("%s: rank %d: %v", layout, rank, err)
				}
			}
			lost := "model-00002-of-00003.safetensors"
			if !gone {
				if err := os.Remove(filepath.Join(dirs[1], "step-000001", lost)); err != nil {
					t.Fatal(err)
				}
			}
			for rank, err := range each(all, func(rank int, m member) error {
				defer m.free()
				if gone && rank == 1 {
					m.group.Close()
					return errFault
				}
				return saved[rank].RestoreInto(m.model, m.places(), m.opt)
			}) {
				if err == nil || !gone && !strings.Contains(err.Error(), lost) && !strings.Contains(err.Error(), "cannot read") {
					t.Errorf("%s, a member is gone %t: rank %d: %v", layout, gone, rank, err)
				}
			}
		}
	}
}

// TestLatestOfDifferentRuns: directories that have different checkpoints of one step are refused on
// every rank.
func TestLatestOfDifferentRuns(t *testing.T) {
	check(t)
	dirs := directories(t.TempDir(), []int{0, 1})
	for seed, dir := range dirs {
		alone := newMembers(t, []string{dir}, uint64(seed), func(int, int) bool { return true })[0]
		if err := errors.Join(alone.store().Prepare(), alone.save(3)); err != nil {
			t.Fatal(err)
		}
		alone.free()
	}
	all := newMembers(t, dirs, 1, func(rank, param int) bool { return true })
	for rank, err := range each(all, func(_ int, m member) error { defer m.free(); _, err := m.store().Latest(); return err }) {
		if err == nil || !strings.Contains(err.Error(), "another one on rank 1 than on rank 0") {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}
