package train

import (
	"bufio"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"penstock.example/group"
)

// Store is a directory of checkpoints.
//
//	DIR/step-000200/model.safetensors       parameters and buffers under their names in the model
//	DIR/step-000200/optimizer.safetensors   the optimizer's state, under the parameters' names
//	DIR/step-000200/state.json              the index: progress, recipe, and each file's size, hash and tensors
//	DIR/step-000150/...                     the checkpoint before
//
// In a group all processes share the directory. Each writes what exists in it, as
// model-00002-of-00004.safetensors and optimizer-..., and the first writes the index. Any number of
// processes with any cut can read the checkpoint.
//
// A checkpoint is written as DIR/.step-000200.tmp, forced to disk, and renamed. The rename is atomic,
// so step-N is complete whenever a run dies. Other files in DIR are left alone.
type Store struct {
	Dir string
	// Keep is the number of newest checkpoints that remain after a Save. The one of the best validation
	// (Progress.Best) remains as well. 0 is 2, as the disk may damage the newest.
	Keep int
	// Group is the processes that train the model together; nil is this process alone. In a group
	// Lock, Save, Latest and Checkpoint.Restore are collective: all members call them in the same
	// order, and an error on one is an error on all.
	Group *group.Group

	faultHook func(operation, path string) error // in tests: may refuse an operation on a file
}

// ErrNoCheckpoint is the error of Latest for a directory without checkpoints.
var ErrNoCheckpoint = errors.New("no checkpoint")

// ErrLocked is the error of Lock for a directory that another run uses.
var ErrLocked = errors.New("another run uses it")

// Names of directories. A directory that is being written or removed begins with a dot.
const (
	stepPrefix      = "step-"
	temporaryPrefix = ".step-"
	temporarySuffix = ".tmp"
)

// Path is where the checkpoint of a step is, or would be.
func (s Store) Path(step int64) string {
	return filepath.Join(s.Dir, fmt.Sprintf("%s%06d", stepPrefix, step))
}

func (s Store) temporary(step int64, more string) string {
	return filepath.Join(s.Dir, fmt.Sprintf("%s%06d%s%s", temporaryPrefix, step, more, temporarySuffix))
}

// onFirst runs f on rank 0 and returns its error on all ranks.
func (s Store) onFirst(what string, f func() error) error {
	_, err := group.FromFirst(context.Background(), s.Group, "train: "+what,
		func() (int, error) { return 0, f() })
	return err
}

// Lock makes the directory if necessary, and locks it against other runs until release is called or the
// process ends in any way. It removes the leftovers of a killed run, and returns an error unless a
// checkpoint can be written there. On a file system without locks it neither locks nor removes. In a group
// it is collective, and all processes have to see the directory of the first.
func (s Store) Lock() (release func() error, err error) {
	var directory *os.File
	release = func() error {
		if directory == nil {
			return nil
		}
		return directory.Close()
	}
	ctx := context.Background()
	probe, err := group.FromFirst(ctx, s.Group, "train: checkpoints locked", func() (string, error) {
		err := os.MkdirAll(s.Dir, 0o777)
		if err == nil {
			directory, err = os.Open(s.Dir)
		}
		if err != nil {
			return "", err
		}
		switch err := syscall.Flock(int(directory.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); {
		case errors.Is(err, syscall.EWOULDBLOCK):
			return "", ErrLocked
		case err == nil: // the file system has locks
			leftovers, err := os.ReadDir(s.Dir)
			for _, e := range leftovers {
				if strings.HasPrefix(e.Name(), temporaryPrefix) && strings.HasSuffix(e.Name(),
					temporarySuffix) {
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
			err = fmt.Errorf("rank %d does not see what rank 0 writes there; want a directory that all "+
				"processes share", s.Group.Rank())
		}
		_, err = group.Meet(ctx, s.Group, "train: directory of checkpoints seen", 0, err)
		if s.Group.Rank() == 0 {
			err = cmp.Or(err, os.RemoveAll(path))
		}
	}
	if err != nil {
		release() // the first error is the one to report
		return nil, fmt.Errorf("train: checkpoints cannot be kept in %s: %w", s.Dir, err)
	}
	return release, nil
}

// Steps lists the steps of the checkpoints in the directory, ascending. A directory that does not
// exist has none.
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

// clean removes all checkpoints but the newest and the best, which may be nil.
func (s Store) clean(best *Best) error {
	steps, err := s.Steps()
	if err != nil {
		return err
	}
	for _, step := range steps[:max(len(steps)-cmp.Or(s.Keep, 2), 0)] {
		if best != nil && step == best.Step {
			continue
		}
		// Renamed first: an interrupted removal must not leave what looks like a checkpoint.
		removed := s.temporary(step, ".removed")
		err := s.rename(s.Path(step), removed)
		if err == nil {
			err = s.remove(removed)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// All changes in the directory go through the methods below.

func (s Store) fault(operation, path string) error {
	if s.faultHook == nil {
		return nil
	}
	return s.faultHook(operation, path)
}

func (s Store) rename(from, to string) error {
	if err := s.fault("rename", from); err != nil {
		return err
	}
	return os.Rename(from, to)
}

// remove removes a file or a directory with all that is in it.
func (s Store) remove(path string) error {
	if err := s.fault("remove", path); err != nil {
		return err
	}
	return os.RemoveAll(path)
}

// writeFile writes a new file, forces it to disk and returns its size and hash.
func (s Store) writeFile(path string, write func(io.Writer) error) (entry File, err error) {
	if err := s.fault("create", path); err != nil {
		return File{}, err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return File{}, err
	}
	defer func() { err = cmp.Or(err, f.Close()) }()
	h := sha256.New()
	w := bufio.NewWriterSize(io.MultiWriter(f, h), 1<<20)
	if err := cmp.Or(write(w), s.fault("write", path), w.Flush(), s.sync(f)); err != nil {
		return File{}, err
	}
	size, err := f.Seek(0, io.SeekCurrent)
	return File{Bytes: size, SHA256: hex.EncodeToString(h.Sum(nil))}, err
}

func (s Store) syncDirectory(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	defer d.Close()
	return s.sync(d)
}

// sync returns when a file, or a directory's list of names, would survive a loss of power.
func (s Store) sync(f *os.File) error {
	if err := s.fault("sync", f.Name()); err != nil {
		return err
	}
	return f.Sync()
}
