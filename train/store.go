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

	"penstock.example/group"
)

// Store is a directory of checkpoints.
//
//	DIR/step-000200/model.safetensors       parameters and buffers under their names in the model
//	DIR/step-000200/optimizer.safetensors   the optimizer's state, under the parameters' names
//	DIR/step-000200/state.json              the rest, and the other files: size, hash, tensors
//	DIR/step-000150/...                     the one before
//
// In a group each process writes what it has, as model-00002-of-00004.safetensors and optimizer-...,
// and the index lists the files of all. Which tensors are in which file depends on where they were;
// their names, and what any process reads, do not. So a run goes on at another number of processes,
// stages or with another schedule, and no process has the whole model.
//
// The newest is the one with the highest step. A checkpoint is written as DIR/.step-000200.tmp,
// forced to disk, and renamed: the rename is atomic, so whenever a run dies every step-N is
// complete. There is no pointer to the newest, which would have to agree with the directories.
// Other files in DIR are left alone.
//
// Processes that do not share a file system have a directory each, with their own files and the same
// index. All of them force their files to disk before one of them renames. If a run dies between the
// renames, the next Lock completes them. What is not in a process's directory is sent to it.
//
// One run at a time may use a directory; Lock sees to it.
type Store struct {
	Dir string
	// Keep is how many checkpoints remain after a Save, besides that of the best validation
	// (Progress.Best). 0 is 2: if the disk damages the newest there is another.
	Keep int
	// Group is the processes that train the model together, nil for this one alone. In a group
	// Prepare, Lock, Save, Latest and Checkpoint.Restore are collective: all members call them in
	// the same order. They end on all members with the same outcome; an error on one is an error on
	// all. They block until all members have called them, or the group has failed.
	Group *group.Group

	before func(operation, path string) error // in tests: may refuse an operation on a file
}

// ErrNoCheckpoint is the error of Latest for a directory without checkpoints.
var ErrNoCheckpoint = errors.New("no checkpoint")

// Prepare makes the directory if there is none and finds out whether a checkpoint can be written to
// it, so that a run does not fail at its first Save. It is collective in a group.
func (s Store) Prepare() error { return peers{s.Group}.agree("checkpoints prepared", s.prepare()) }

func (s Store) prepare() error {
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
	removedSuffix   = ".removed" + temporarySuffix // of a checkpoint that is being removed
	sharePrefix     = temporaryPrefix + "share-"   // of a file by which members find who shares a directory
)

// Path is where the checkpoint of a step is, or would be.
func (s Store) Path(step int64) string {
	return filepath.Join(s.Dir, fmt.Sprintf("%s%06d", stepPrefix, step))
}

func (s Store) temporary(step int64) string {
	return filepath.Join(s.Dir, fmt.Sprintf("%s%06d%s", temporaryPrefix, step, temporarySuffix))
}

// Steps lists the steps that there are checkpoints of in this process's directory, ascending. A
// directory that does not exist has none.
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
		if err == nil && filepath.Base(s.Path(step)) == e.Name() {
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
		if err := s.remove(path); err != nil {
			return err
		}
	}
	return nil
}

// clean removes leftovers, and all checkpoints but the newest and the best, which may be nil.
func (s Store) clean(best *Best) error {
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
		if best != nil && step == best.Step {
			continue
		}
		// Renamed first: a removal that is cut short must not leave something that looks like a
		// checkpoint.
		removed := strings.TrimSuffix(s.temporary(step), temporarySuffix) + removedSuffix
		if err := s.rename(s.Path(step), removed); err != nil {
			return err
		}
		if err := s.remove(removed); err != nil {
			return err
		}
	}
	return nil
}

// globQuoted is a path as a pattern that matches only itself.
func globQuoted(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}
