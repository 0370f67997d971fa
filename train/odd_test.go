package train_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"penstock.example/internal/disk"
	"penstock.example/internal/must"
	"penstock.example/train"
)

// A named pipe, a device or a hole of a terabyte in place of a checkpoint's file is damage, found
// without waiting for it or reading it.
func TestCheckpointsAreOfRegularFiles(t *testing.T) {
	check(t)
	s, _ := newRig(t, setup{})
	for _, name := range []string{"model.safetensors", "optimizer.safetensors", "state.json"} {
		for what, put := range map[string]func(path string) error{
			"named pipe": func(path string) error { return syscall.Mkfifo(path, 0o666) },
			"device":     func(path string) error { return os.Symlink("/dev/zero", path) },
			"directory":  func(path string) error { return os.Mkdir(path, 0o777) },
		} {
			store := train.Store{Dir: t.TempDir()}
			path := filepath.Join(save(t, store, s), name)
			must.Do(t, errors.Join(os.Remove(path), put(path)))
			_, err := store.Latest()
			var damaged *train.DamagedError
			if !errors.As(err, &damaged) || !errors.Is(err, disk.ErrNotRegular) || !strings.Contains(err.Error(), what) {
				t.Errorf("%s, a %s: error %v", name, what, err)
			}
		}
		store := train.Store{Dir: t.TempDir()}
		path := filepath.Join(save(t, store, s), name)
		must.Do(t, os.Truncate(path, 1<<40))
		_, err := store.Latest()
		var damaged *train.DamagedError
		if !errors.As(err, &damaged) || !strings.Contains(err.Error(), "has 1099511627776 bytes") {
			t.Errorf("%s, a hole: error %v", name, err)
		}
	}
}

// Files are all of a checkpoint.
func TestFilesOfACheckpoint(t *testing.T) {
	check(t)
	s, _ := newRig(t, setup{})
	store := train.Store{Dir: t.TempDir()}
	path := save(t, store, s)
	files := latest(t, store).Files()
	if there := names(t, path); len(there) != len(files) {
		t.Errorf("%q of %q", files, there)
	}
	for _, file := range files {
		if _, err := os.Stat(file); err != nil {
			t.Error(err)
		}
	}
}

// What a killed run left is removed when the next one takes the lock, and no sooner; checkpoints
// and others' files stay.
func TestLockRemovesLeftovers(t *testing.T) {
	store := train.Store{Dir: filepath.Join(t.TempDir(), "here[*]")}
	leftover := filepath.Join(store.Dir, ".step-000007.tmp")
	for _, dir := range []string{leftover, filepath.Join(store.Dir, "step-000005")} {
		must.Do(t, os.MkdirAll(dir, 0o777))
	}
	write(t, filepath.Join(leftover, "model.safetensors"), "half")
	write(t, filepath.Join(store.Dir, "notes.txt"), "of someone else")
	release := must.Get(store.Lock())(t)
	if got := strings.Join(names(t, store.Dir), " "); got != "notes.txt step-000005" {
		t.Errorf("there is %s", got)
	}
	must.Do(t, os.Mkdir(leftover, 0o777))
	if _, err := store.Lock(); !errors.Is(err, train.ErrLocked) {
		t.Errorf("a second lock: %v", err)
	}
	if _, err := os.Stat(leftover); err != nil {
		t.Errorf("a run without the lock removed what another writes: %v", err)
	}
	must.Do(t, release())
}

// A named pipe in place of the directory is refused, not waited for.
func TestLockOfANamedPipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	must.Do(t, syscall.Mkfifo(path, 0o666))
	if _, err := (train.Store{Dir: path}).Lock(); !errors.Is(err, syscall.ENOTDIR) {
		t.Errorf("error %v", err)
	}
}
