package safetensors

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
)

// WriteFile writes a file as Write does, as a whole or not at all: whoever opens path, after a failure or a loss of
// power too, finds either the new file complete or what was there before. It writes a temporary file in the same
// directory, forces it to disk, renames it to path, and forces the directory to disk. After an error the temporary file
// is removed; a crash may leave it, as path followed by a number and ".tmp".
func WriteFile(path string, tensors []Tensor, metadata map[string]string) error {
	temporary, err := createBeside(path)
	if err != nil {
		return fmt.Errorf("safetensors: %w", err)
	}
	if err := fillAndRename(temporary, path, tensors, metadata); err != nil {
		return errors.Join(fmt.Errorf("safetensors: writing %s: %w", path, err), os.Remove(temporary.Name()))
	}
	if err := syncDirectory(filepath.Dir(path)); err != nil {
		return fmt.Errorf("safetensors: %s is written but may not survive a loss of power: %w", path, err)
	}
	return nil
}

// createBeside creates a new file next to path. os.CreateTemp would do but for the mode: it makes files that only their
// owner can read, where a checkpoint is to follow the umask as any other file.
func createBeside(path string) (*os.File, error) {
	for {
		file, err := os.OpenFile(fmt.Sprintf("%s.%d.tmp", path, rand.Uint64()), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
		if !errors.Is(err, fs.ErrExist) {
			return file, err
		}
	}
}

// fillAndRename closes the file whatever happens.
func fillAndRename(file *os.File, path string, tensors []Tensor, metadata map[string]string) error {
	if err := fill(file, tensors, metadata); err != nil {
		file.Close() // the first error is the one to report
		return err
	}
	if err := file.Close(); err != nil {
		return err
	}
	return os.Rename(file.Name(), path)
}

func fill(file *os.File, tensors []Tensor, metadata map[string]string) error {
	w := bufio.NewWriterSize(file, 1<<20) // many a model has thousands of tensors of a few hundred bytes
	if err := write(w, tensors, metadata); err != nil {
		return err
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return file.Sync()
}

func syncDirectory(directory string) error {
	d, err := os.Open(directory)
	if err != nil {
		return err
	}
	if err := d.Sync(); err != nil {
		d.Close()
		return err
	}
	return d.Close()
}
