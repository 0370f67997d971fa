package train

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Store is a directory of checkpoints.
//
//	DIR/step-000200/model.safetensors       parameters and buffers under their names in the model
//	DIR/step-000200/optimizer.safetensors   the optimizer's state
//	DIR/step-000200/state.json              the rest, and the hashes of the two
//	DIR/step-000150/...                     the one before
//
// The newest is the one with the highest step. A checkpoint is written as DIR/.step-000200.tmp,
// forced to disk, and renamed: the rename is atomic, so whenever a run dies every step-N is
// complete. There is no pointer to the newest, which would have to agree with the directories.
// Other files in DIR are left alone.
//
// One run at a time may use a directory; Lock sees to it.
type Store struct {
	Dir string
	// Keep is how many checkpoints remain after a Save. 0 is 2: if the disk damages the newest
	// there is another.
	Keep int

	sync func(*os.File) error // nil is File.Sync; tests watch the order
}

// ErrNoCheckpoint is the error of Latest for a directory without checkpoints.
var ErrNoCheckpoint = errors.New("no checkpoint")

// Prepare makes the directory if there is none and finds out whether a checkpoint can be written to
// it, so that a run does not fail at its first Save.
func (s Store) Prepare() error {
	if info, err := os.Stat(s.Dir); err == nil && !info.IsDir() {
		return fmt.Errorf("train: checkpoints cannot be kept in %s: it is not a directory", s.Dir)
	}
	if err := os.MkdirAll(s.Dir, 0o777); err != nil {
		return fmt.Errorf("train: checkpoints cannot be kept in %s: %w", s.Dir, err)
	}
	probe, err := os.MkdirTemp(s.Dir, temporaryPrefix+"probe-*"+temporarySuffix)
	if err != nil {
		return fmt.Errorf("train: checkpoints cannot be kept in %s: %w", s.Dir, err)
	}
	if err := os.Remove(probe); err != nil && !errors.Is(err, fs.ErrNotExist) { // a run that saves here removes what it takes for leftovers
		return fmt.Errorf("train: checkpoints cannot be kept in %s: %w", s.Dir, err)
	}
	return nil
}

// Names of directories. What is being written or removed begins with a dot and is no checkpoint.
const (
	stepPrefix      = "step-"
	temporaryPrefix = ".step-"
	temporarySuffix = ".tmp"
)

func (s Store) path(step int64) string {
	return filepath.Join(s.Dir, fmt.Sprintf("%s%06d", stepPrefix, step))
}

func (s Store) temporary(step int64) string {
	return filepath.Join(s.Dir, fmt.Sprintf("%s%06d%s", temporaryPrefix, step, temporarySuffix))
}

// Steps lists the steps that there are checkpoints of, ascending. A directory that does not exist
// has none.
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
		digits, ok := strings.CutPrefix(e.Name(), stepPrefix)
		if !ok || !e.IsDir() {
			continue
		}
		step, err := strconv.ParseInt(digits, 10, 64)
		if err == nil && filepath.Base(s.path(step)) == e.Name() {
			steps = append(steps, step)
		}
	}
	slices.Sort(steps)
	return steps, nil
}

// removeLeftovers removes what a run that died has left half written or half removed.
func (s Store) removeLeftovers() error {
	leftovers, err := filepath.Glob(filepath.Join(globQuoted(s.Dir), temporaryPrefix+"*"+temporarySuffix))
	if err != nil {
		return err
	}
	for _, path := range leftovers {
		if err := os.RemoveAll(path); err != nil {
			return err
		}
	}
	return nil
}

// clean removes leftovers, and all checkpoints but the newest.
func (s Store) clean() error {
	if err := s.removeLeftovers(); err != nil {
		return err
	}
	keep := s.Keep
	if keep <= 0 {
		keep = 2
	}
	steps, err := s.Steps()
	if err != nil {
		return err
	}
	for _, step := range steps[:max(len(steps)-keep, 0)] {
		// Renamed first: a removal that is cut short must not leave something that looks like a
		// checkpoint.
		if err := os.Rename(s.path(step), s.temporary(step)); err != nil {
			return err
		}
		if err := os.RemoveAll(s.temporary(step)); err != nil {
			return err
		}
	}
	return nil
}

// globQuoted is a path as a pattern that matches only itself.
func globQuoted(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}
