package train_test

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	"penstock.example/data"
	"penstock.example/internal/must"
	"penstock.example/nn"
	"penstock.example/torch"
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
	must.Get(store.Save(train.Progress{Step: 1}, recipe(), s.model, s.Optimizer))(t)
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

// names lists a directory.
func names(t testing.TB, dir string) []string {
	t.Helper()
	entries := must.Get(os.ReadDir(dir))(t)
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func write(t testing.TB, path, content string) {
	t.Helper()
	must.Do(t, os.WriteFile(path, []byte(content), 0o666))
}

func TestSaveKeepsTheNewest(t *testing.T) {
	check(t)
	s, _ := newRig(t, setup{})
	for _, tt := range []struct {
		keep int
		want []string
	}{
		{0, []string{"notes.txt", "step-000009", "step-1000000"}},
		{1, []string{"notes.txt", "step-1000000"}},
		{3, []string{"notes.txt", "step-000002", "step-000009", "step-1000000"}},
	} {
		store := train.Store{Dir: filepath.Join(t.TempDir(), "made", "here[*]"), Keep: tt.keep}
		must.Do(t, os.MkdirAll(store.Dir, 0o777))
		write(t, filepath.Join(store.Dir, "notes.txt"), "of someone else")
		must.Do(t, os.Mkdir(filepath.Join(store.Dir, ".step-000001.tmp"), 0o777))
		for _, step := range []int64{1, 2, 9, 1000000} {
			must.Get(store.Save(train.Progress{Step: step}, recipe(), s.model, s.Optimizer))(t)
		}
		if got := names(t, store.Dir); !reflect.DeepEqual(got, tt.want) {
			t.Errorf("keep %d: got %q, want %q", tt.keep, got, tt.want)
		}
		if c := latest(t, store); c.Step != 1000000 {
			t.Errorf("keep %d: the latest is %d", tt.keep, c.Step)
		}
	}
}

func TestSaveOfTheSameStepChangesNothing(t *testing.T) {
	check(t)
	s, _ := newRig(t, setup{})
	s.Steps = 2
	s.run(t)
	store := train.Store{Dir: t.TempDir()}
	path := save(t, store, s)
	before := must.Get(os.Stat(filepath.Join(path, "model.safetensors")))(t)
	if again := save(t, store, s); again != path {
		t.Errorf("saved again as %s", again)
	}
	after, err := os.Stat(filepath.Join(path, "model.safetensors"))
	if err != nil || !os.SameFile(before, after) {
		t.Errorf("the file was replaced: %v", err)
	}
}

func TestLatestWithoutCheckpoints(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "step-000001"), "a file")
	for _, name := range []string{"step-1", "step-x", "step-000002x", ".step-000003.tmp"} {
		must.Do(t, os.Mkdir(filepath.Join(dir, name), 0o777))
	}
	for _, d := range []string{dir, filepath.Join(dir, "nowhere")} {
		if _, err := (train.Store{Dir: d}).Latest(); !errors.Is(err, train.ErrNoCheckpoint) {
			t.Errorf("%s: %v", d, err)
		}
	}
	if _, err := (train.Store{Dir: filepath.Join(dir, "step-000001")}).Latest(); err == nil ||
		errors.Is(err, train.ErrNoCheckpoint) {
		t.Errorf("a file: %v", err)
	}
}

// TestDamageIsFound changes a checkpoint in every way that a disk, a copy that was cut short or an
// editor might.
func TestDamageIsFound(t *testing.T) {
	check(t)
	s, _ := newRig(t, setup{})
	s.Steps = 2
	s.run(t)
	model, optimizer, state := "model.safetensors", "optimizer.safetensors", "state.json"
	edit := func(f func([]byte) []byte) func(t *testing.T, path string) {
		return func(t *testing.T, path string) {
			content := must.Get(os.ReadFile(path))(t)
			write(t, path, string(f(content)))
		}
	}
	truncate := edit(func(b []byte) []byte { return b[:len(b)/2] })
	extend := edit(func(b []byte) []byte { return append(b, 0) })
	flip := edit(func(b []byte) []byte { b[len(b)*3/4] ^= 1; return b })
	replace := func(from, to string) func(t *testing.T, path string) {
		return edit(func(b []byte) []byte {
			if !strings.Contains(string(b), from) {
				t.Fatalf("%q is not in %s", from, b)
			}
			return []byte(strings.Replace(string(b), from, to, 1))
		})
	}
	remove := func(t *testing.T, path string) {
		must.Do(t, os.Remove(path))
	}
	pipe := func(t *testing.T, path string) {
		must.Do(t, errors.Join(os.Remove(path), syscall.Mkfifo(path, 0o666)))
	}
	tests := []struct {
		what, file string
		do         func(t *testing.T, path string)
		want       string
	}{
		{"truncated", model, truncate, "model.safetensors has"},
		{"a named pipe", model, pipe, "named pipe"},
		{"truncated", state, truncate, "state.json: unexpected end"},
		{"longer", state, extend, "state.json: invalid character"},
		{"a bit flipped", model, flip, "model.safetensors: its content does not match its hash"},
		{"a bit flipped", optimizer, flip, "optimizer.safetensors: its content does not match its hash"},
		{"missing", state, remove, "state.json: no such file"},
		{"missing", model, remove, "model.safetensors: no such file"},
		{"another step", state, replace(`"step": 2`, `"step": 3`), "its content does not match its hash"},
		{"a member more", state, replace(`"recipe"`, `"x": 1, "recipe"`),
			"its content does not match its hash"},
	}
	for _, tt := range tests {
		t.Run(tt.file+" "+tt.what, func(t *testing.T) {
			store := train.Store{Dir: t.TempDir()}
			path := save(t, store, s)
			tt.do(t, filepath.Join(path, tt.file))
			_, err := store.Latest()
			var damaged *train.DamagedError
			if !errors.As(err, &damaged) || damaged.Path != path || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
	t.Run("another version", func(t *testing.T) {
		store := train.Store{Dir: t.TempDir()}
		replace(`"version": 2`, `"version": 3`)(t, filepath.Join(save(t, store, s), state))
		if _, err := store.Latest(); err == nil || !strings.Contains(err.Error(), "version 3") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("renamed", func(t *testing.T) {
		store := train.Store{Dir: t.TempDir()}
		must.Do(t, os.Rename(save(t, store, s), filepath.Join(store.Dir, "step-000077")))
		if _, err := store.Latest(); err == nil || !strings.Contains(err.Error(), "is of step 2") {
			t.Errorf("got %v", err)
		}
	})
}

func TestFingerprint(t *testing.T) {
	seen := map[string]int{}
	for i, s := range []data.Synthetic{{}, {Seed: 1}, {Train: 1000}, {Classes: 9}, {Height: 27}, {Train: 3}} {
		set, _, err := s.Open()
		must.Do(t, err)
		f := must.Get(train.Fingerprint(set))(t)
		if other, ok := seen[f]; ok {
			t.Errorf("sets %d and %d have the same fingerprint", other, i)
		}
		seen[f] = i
		if again, err := train.Fingerprint(set); err != nil || again != f {
			t.Errorf("set %d: %s and %s, %v", i, f, again, err)
		}
	}
}

func TestLock(t *testing.T) {
	store := train.Store{Dir: t.TempDir()}
	release := must.Get(store.Lock())(t)
	if _, err := store.Lock(); !errors.Is(err, train.ErrLocked) {
		t.Errorf("a second lock: %v", err)
	}
	other := must.Get(train.Store{Dir: t.TempDir()}.Lock())(t)
	must.Do(t, errors.Join(other(), release()))
	must.Do(t, must.Get(store.Lock())(t)())
	if left := names(t, store.Dir); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
	file := filepath.Join(store.Dir, "file")
	write(t, file, "")
	for dir, want := range map[string]string{
		file:                       "not a directory",
		filepath.Join(file, "sub"): "not a directory",
		"/proc/penstock":           "no such file", // nobody, not even root, makes directories there
		"/proc":                    "cannot be kept in /proc",
	} {
		if _, err := (train.Store{Dir: dir}).Lock(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v", dir, err)
		}
	}
}

// TestFrozenParametersAreLinked: checkpoints have one file of the frozen parameters, as long as those stay
// the same.
func TestFrozenParametersAreLinked(t *testing.T) {
	check(t)
	s, _ := newRig(t, setup{})
	nn.Freeze(s.model.Slice(0, 2))
	store := train.Store{Dir: t.TempDir()}
	frozen := nn.State(s.model)[0]
	const name = "model-frozen.safetensors"
	var files []os.FileInfo
	for step := range int64(3) {
		if step == 2 {
			must.Do(t, torch.SetBytes(frozen.Tensor(), make([]byte, frozen.Bytes())))
		}
		path := must.Get(store.Save(train.Progress{Step: step + 1}, recipe(), s.model, s.Optimizer))(t)
		files = append(files, must.Get(os.Stat(filepath.Join(path, name)))(t))
	}
	if !os.SameFile(files[0], files[1]) || os.SameFile(files[1], files[2]) {
		t.Error("the second is not the first, or the third is, whose parameters are others")
	}
	c := latest(t, store)
	if d := c.Damage(); d != nil || len(c.Files) != 3 ||
		c.Files[name].Tensors[frozen.Name].Bytes() != frozen.Bytes() {
		t.Errorf("%v, %v", d, c.Files)
	}
	must.Do(t, c.Check(recipe(), s.model))
}
