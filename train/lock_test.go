package train_test

import (
	"errors"
	"io/fs"
	"path/filepath"
	"testing"

	"penstock.example/internal/must"
	"penstock.example/train"
)

func TestLock(t *testing.T) {
	store := train.Store{Dir: t.TempDir()}
	release, err := store.Lock()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.Lock(); !errors.Is(err, train.ErrLocked) {
		t.Errorf("a second lock: %v", err)
	}
	other, err := train.Store{Dir: t.TempDir()}.Lock()
	if err != nil {
		t.Fatal(err)
	}
	must.Do(t, errors.Join(other(), release()))
	if release, err = store.Lock(); err != nil {
		t.Fatalf("after its release: %v", err)
	}
	must.Do(t, release())
	if left := names(t, store.Dir); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
	if _, err := (train.Store{Dir: filepath.Join(store.Dir, "nowhere")}).Lock(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no directory: %v", err)
	}
}
