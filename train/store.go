package train

import (
	"bufio"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"penstock.example/data"
	"penstock.example/group"
	"penstock.example/internal/disk"
	"penstock.example/optim"
	"penstock.example/safetensors"
)

// Store is a directory of checkpoints.
//
//	DIR/step-000200/model.safetensors       parameters and buffers under their names in the model
//	DIR/step-000200/model-frozen.safetensors  frozen parameters, if any; checkpoints share it by links
//	DIR/step-000200/optimizer.safetensors   the optimizer's state, under the parameters' names
//	DIR/step-000200/state.json              the index: progress, recipe, size, hash and tensors of each file
//	DIR/step-000150/...                     the previous checkpoint
//
// In a group all processes share the directory. Each writes its tensors to files such as
// model-00002-of-00004.safetensors, and the first writes the index. Any number of processes with any cut
// can read the checkpoint.
//
// A checkpoint is written as DIR/.step-000200.tmp, forced to disk, and renamed. The rename is atomic,
// so a crash cannot leave an incomplete step-N. Other files in DIR are left alone.
type Store struct {
	Dir string
	// Keep is the number of newest checkpoints that remain after a Save, besides the best validation's
	// (Progress.Best). 0 is 2: if the disk damages the newest, an older one is left.
	Keep int
	// Group is the processes that train the model together; nil is this process alone. Collective
	// methods are called by all members in the same order, and an error on one is an error on all.
	Group *group.Group

	faultHook func(operation, path string) error // for tests: fails an operation on a file
}

// ErrNoCheckpoint is the error of Latest and OpenCheckpoint for a directory without checkpoints.
var ErrNoCheckpoint = errors.New("no checkpoint")

// ErrLocked is the error of Lock for a directory that another run uses.
var ErrLocked = errors.New("another run uses it")

// Names of directories. The name begins with a dot while the directory is written or removed.
const (
	stepPrefix      = "step-"
	temporaryPrefix = ".step-"
	temporarySuffix = ".tmp"
)

// Path returns the directory of a step's checkpoint, which need not exist.
func (s Store) Path(step int64) string {
	return filepath.Join(s.Dir, fmt.Sprintf("%s%06d", stepPrefix, step))
}

func (s Store) temporaryPath(step int64, state string) string {
	return filepath.Join(s.Dir, fmt.Sprintf("%s%06d%s%s", temporaryPrefix, step, state, temporarySuffix))
}

// onFirst runs f on rank 0 and returns its error on all ranks.
func (s Store) onFirst(what string, f func() error) error {
	_, err := group.FromFirst(context.Background(), s.Group, "train: "+what,
		func() (int, error) { return 0, f() })
	return err
}

// Lock creates the directory if necessary and locks it against other runs until release is called or the
// process ends. It removes the leftovers of a killed run and checks that the directory is writable. On a
// file system without locks it neither locks nor removes. Lock is collective, and fails unless all
// processes see rank 0's directory.
func (s Store) Lock() (release func() error, err error) {
	ctx := context.Background()
	release = func() error { return nil }
	probe, err := group.FromFirst(ctx, s.Group, "train: checkpoints locked", func() (string, error) {
		if err := os.MkdirAll(s.Dir, 0o777); err != nil {
			return "", err
		}
		directory, err := os.Open(s.Dir)
		if err != nil {
			return "", err
		}
		release = directory.Close
		switch err := syscall.Flock(int(directory.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); {
		case errors.Is(err, syscall.EWOULDBLOCK):
			return "", ErrLocked
		case err == nil: // the file system has locks
			leftovers, err := os.ReadDir(s.Dir)
			for _, e := range leftovers {
				if ok, _ := filepath.Match(temporaryPrefix+"*"+temporarySuffix, e.Name()); ok {
					err = cmp.Or(err, s.remove(filepath.Join(s.Dir, e.Name())))
				}
			}
			if err != nil {
				return "", err
			}
		}
		probe, err := os.MkdirTemp(s.Dir, temporaryPrefix+"probe-*"+temporarySuffix)
		return filepath.Base(probe), err
	})
	if err == nil {
		path := filepath.Join(s.Dir, probe)
		if _, unseen := os.Stat(path); unseen != nil {
			err = fmt.Errorf("rank %d does not see rank 0's files there; want a shared directory",
				s.Group.Rank())
		}
		_, err = group.Meet(ctx, s.Group, "train: directory of checkpoints seen", 0, err)
		if s.Group.Rank() == 0 {
			err = cmp.Or(err, os.RemoveAll(path))
		}
	}
	if err != nil {
		release() // the earlier error is reported
		return nil, fmt.Errorf("train: checkpoints cannot be kept in %s: %w", s.Dir, err)
	}
	return release, nil
}

// Steps lists the steps of the checkpoints in the directory, ascending. The directory need not exist.
func (s Store) Steps() ([]int64, error) {
	entries, err := os.ReadDir(s.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("train: checkpoints in %s: %w", s.Dir, err)
	}
	var steps []int64
	for _, e := range entries {
		step, err := strconv.ParseInt(strings.TrimPrefix(e.Name(), stepPrefix), 10, 64)
		if err == nil && e.IsDir() && filepath.Base(s.Path(step)) == e.Name() {
			steps = append(steps, step)
		}
	}
	slices.Sort(steps)
	return steps, nil
}

// removeOld removes all checkpoints but the newest and the best, which may be nil.
func (s Store) removeOld(best *Best) error {
	steps, err := s.Steps()
	if err != nil {
		return err
	}
	for _, step := range steps[:max(len(steps)-cmp.Or(s.Keep, 2), 0)] {
		if best != nil && step == best.Step {
			continue
		}
		// An interrupted removal must not leave part of a checkpoint under its name.
		removed := s.temporaryPath(step, ".removed")
		if err := cmp.Or(s.rename(s.Path(step), removed), s.remove(removed)); err != nil {
			return err
		}
	}
	return nil
}

// The methods below make all changes in the directory.

// do makes a change, unless a test refuses it.
func (s Store) do(operation, path string, change func() error) error {
	if s.faultHook != nil {
		if err := s.faultHook(operation, path); err != nil {
			return err
		}
	}
	return change()
}

func (s Store) rename(from, to string) error {
	return s.do("rename", from, func() error { return os.Rename(from, to) })
}

func (s Store) remove(path string) error {
	return s.do("remove", path, func() error { return os.RemoveAll(path) })
}

// writeFile writes a new file, forces it to disk and returns its size and hash.
func (s Store) writeFile(path string, write func(io.Writer) error) (entry File, err error) {
	var f *os.File
	if err := s.do("create", path, func() (err error) {
		f, err = os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
		return err
	}); err != nil {
		return File{}, err
	}
	defer func() { err = cmp.Or(err, f.Close()) }()
	h := sha256.New()
	w := bufio.NewWriterSize(io.MultiWriter(f, h), 1<<20)
	if err := cmp.Or(write(w), s.do("write", path, w.Flush), s.do("sync", path, f.Sync)); err != nil {
		return File{}, err
	}
	size, err := f.Seek(0, io.SeekCurrent)
	return File{Bytes: size, SHA256: hex.EncodeToString(h.Sum(nil))}, err
}

// syncDirectory forces a directory's list of names to disk.
func (s Store) syncDirectory(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	defer d.Close()
	return s.do("sync", path, d.Sync)
}

// formatVersion is the version of the format of checkpoints. It changes if older programs would
// misread them.
const formatVersion = 2

// stateFile is a checkpoint's index.
const stateFile = "state.json"

// Kinds of files with tensors. Names of tensors are unique within a kind.
const (
	modelKind     = "model"
	frozenKind    = "model-frozen" // parameters that are not trained; reading modelKind reads these files too
	optimizerKind = "optimizer"
)

// shardName returns the name of a rank's file, as Hugging Face names models in several files.
func shardName(kind string, rank, ranks int) string {
	if ranks == 1 {
		return kind + ".safetensors"
	}
	return fmt.Sprintf("%s-%05d-of-%05d.safetensors", kind, rank+1, ranks)
}

// Progress is the state of a run between two steps.
type Progress struct {
	Step     int64         `json:"step"`     // steps taken, including those before a resume
	Position data.Position `json:"position"` // of the next batch
	// Best is the best validation, nil before the first. Store keeps its checkpoint.
	Best *Best `json:"best,omitempty"`
	// Scaler and Plateau are copies of the Loop's. They may be nil.
	Scaler  *optim.Scaler  `json:"scaler,omitempty"`
	Plateau *optim.Plateau `json:"plateau,omitempty"`
}

// Contents is the index of a checkpoint: the content of state.json.
type Contents struct {
	Version int `json:"version"` // of the format
	Progress
	Recipe  json.RawMessage  `json:"recipe"`
	Updates map[string]int64 `json:"updates"` // the optimizer's count for each parameter
	Files   map[string]File  `json:"files"`   // by name
	SHA256  string           `json:"sha256"`  // of state.json with an empty SHA256
}

// File describes a file with the model's tensors or the optimizer's state.
type File struct {
	Bytes   int64             `json:"bytes"`
	SHA256  string            `json:"sha256"`
	Tensors map[string]Tensor `json:"tensors,omitempty"` // by name
}

// Tensor is the type and shape of a tensor in a file, written as "F32[12 16]".
type Tensor struct {
	DType safetensors.DType
	Shape []int64
}

func (t Tensor) String() string { return fmt.Sprintf("%s%v", t.DType, t.Shape) }

// Bytes returns the size of the tensor.
func (t Tensor) Bytes() int64 {
	size, _ := safetensors.Tensor{DType: t.DType, Shape: t.Shape}.Size()
	return size
}

// MarshalText returns String's text.
func (t Tensor) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText reads what MarshalText wrote.
func (t *Tensor) UnmarshalText(text []byte) error {
	dtype, shape, _ := strings.Cut(string(text), "[")
	t.DType = safetensors.DType(dtype)
	return json.Unmarshal([]byte("["+strings.ReplaceAll(shape, " ", ",")), &t.Shape)
}

// fileNames lists the files whose names begin with a kind, sorted. An empty kind is all files.
func (c Contents) fileNames(kind string) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(c.Files)),
		func(name string) bool { return !strings.HasPrefix(name, kind) })
}

// encode returns the content of state.json with its hash.
func (c Contents) encode() ([]byte, error) {
	c.SHA256 = ""
	plain, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(plain)
	c.SHA256 = hex.EncodeToString(sum[:])
	text, err := json.MarshalIndent(c, "", "  ")
	return append(text, '\n'), err
}

// DamagedError is returned for a checkpoint that was changed after it was written.
type DamagedError struct {
	Path    string // of the checkpoint
	Problem error
}

func (e *DamagedError) Error() string {
	return fmt.Sprintf("train: checkpoint %s is damaged: %v", e.Path, e.Problem)
}

func (e *DamagedError) Unwrap() error { return e.Problem }

// check returns an error unless the file at path has the size and the hash of f.
func (f File) check(path string) error {
	file, err := disk.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	h := sha256.New()
	n, err := file.WriteTo(h)
	switch {
	case err != nil:
		return err
	case n != f.Bytes:
		return fmt.Errorf("%s has %d bytes, %d were written", filepath.Base(path), n, f.Bytes)
	case hex.EncodeToString(h.Sum(nil)) != f.SHA256:
		return fmt.Errorf("%s: its content does not match its hash", filepath.Base(path))
	}
	return nil
}
