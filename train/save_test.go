package train_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"penstock.example/internal/must"
	"penstock.example/train"
)

// TestSaveForcesToDisk: what a crash of the machine must not undo is on disk before what relies on
// it. Files are complete when they are forced, their directory lists all of them when it is, the
// checkpoint has its name only afterwards, and the name is forced last.
func TestSaveForcesToDisk(t *testing.T) {
	check(t)
	s, _ := newRig(t, setup{})
	dir := t.TempDir()
	final, temporary := filepath.Join(dir, "step-000001"), filepath.Join(dir, ".step-000001.tmp")
	exists := func(path string) bool { _, err := os.Lstat(path); return err == nil }
	sizes := map[string]int64{}
	var order []string
	store := train.Store{Dir: dir}.WithFaults(func(operation, path string) error {
		if operation != "sync" {
			return nil
		}
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		if named := exists(final); named != (path == dir) {
			t.Errorf("forcing %s: it is %t that the checkpoint has its name", path, named)
		}
		switch path {
		case dir:
			order = append(order, "parent")
		case temporary:
			order = append(order, "directory")
			if files := names(t, temporary); len(files) != 3 {
				t.Errorf("forcing a directory with %q", files)
			}
		default:
			order = append(order, "file")
			sizes[filepath.Base(path)] = info.Size()
		}
		return nil
	})
	if _, err := store.Save(train.Progress{Step: 1}, recipe(), s.model, s.Optimizer); err != nil {
		t.Fatal(err)
	}
	if want := []string{"file", "file", "file", "directory", "parent"}; !slices.Equal(order, want) {
		t.Errorf("forced %q, want %q", order, want)
	}
	for _, name := range names(t, final) {
		info := must.Get(os.Stat(filepath.Join(final, name)))(t)
		if forced, ok := sizes[name]; !ok || forced != info.Size() {
			t.Errorf("%s was forced with %d bytes of %d", name, forced, info.Size())
		}
	}
}

// TestSaveWithoutDisk: what cannot be forced to disk is not saved, whichever part it is.
func TestSaveWithoutDisk(t *testing.T) {
	check(t)
	s, _ := newRig(t, setup{})
	boom := errors.New("boom")
	for fails := range 5 {
		n := 0
		store := train.Store{Dir: t.TempDir()}.WithFaults(func(operation, _ string) error {
			if operation != "sync" {
				return nil
			}
			if n++; n == fails+1 {
				return boom
			}
			return nil
		})
		if _, err := store.Save(train.Progress{Step: 1}, recipe(), s.model, s.Optimizer); !errors.Is(err, boom) {
			t.Errorf("call %d fails, Save returns %v", fails, err)
		}
		if left := names(t, store.Dir); fails < 4 && len(left) > 0 {
			t.Errorf("call %d fails, %q is left", fails, left)
		}
	}
}
