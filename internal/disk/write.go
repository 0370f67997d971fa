package disk

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
)

// Write writes the file at path as a whole or not at all. Later readers, also after a failure or a loss of
// power, find either the complete new file or the old one. The directory must exist, and the file's mode
// follows the umask.
//
// Write makes a temporary file in the same directory, forces it to disk, renames it to path, and forces the
// directory to disk. An error removes the temporary file. A crash may leave it, as path followed by a number
// and ".tmp".
//
// A character device, such as /dev/null, is written directly. Anything else that is not a regular
// file is refused. Also refused are new files in /dev, likely a mistake, and the links /dev/stdout
// and /dev/stderr.
func Write(path string, content func(io.Writer) error) error {
	device, err := checkTarget(path)
	if err != nil {
		return err
	}
	if device {
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		return errors.Join(writeBuffered(f, content), f.Close())
	}
	temporary, err := createBeside(path)
	if err != nil {
		return err
	}
	if err = writeBuffered(temporary, content); err == nil {
		err = temporary.Sync()
	}
	if err = cmp.Or(err, temporary.Close()); err == nil {
		err = os.Rename(temporary.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(temporary.Name()))
	}
	directory, err := os.Open(filepath.Dir(path))
	if err == nil {
		err = errors.Join(directory.Sync(), directory.Close())
	}
	if err != nil {
		return fmt.Errorf("it is written but may not survive a loss of power: %w", err)
	}
	return nil
}

// Probe returns the error that Write would return at path without calling content.
func Probe(path string) error {
	if device, err := checkTarget(path); device || err != nil {
		return err
	}
	f, err := createBeside(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// checkTarget returns an error unless path is free, a regular file or a character device (device).
func checkTarget(path string) (device bool, err error) {
	info, err := os.Stat(path)
	if err == nil && info.Mode()&fs.ModeCharDevice != 0 {
		return true, nil
	}
	if directory, err := filepath.Abs(filepath.Dir(path)); err != nil || directory == "/dev" ||
		directory == "/dev/fd" {
		refused := errors.New("a file in /dev; want one in another directory")
		return false, errors.Join(&fs.PathError{Op: "create", Path: path, Err: refused}, err)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, err
	}
	return false, checkRegular(path, info)
}

// createBeside creates a new file next to path. It replaces os.CreateTemp, whose files only their owner can
// read. Its errors name path, which the caller knows.
func createBeside(path string) (*os.File, error) {
	f, err := os.OpenFile(fmt.Sprintf("%s.%d.tmp", path, rand.Uint64()),
		os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if failed := (*fs.PathError)(nil); errors.As(err, &failed) {
		failed.Path = path
	}
	return f, err
}

// writeBuffered writes through a buffer, as models may have thousands of tensors of some 100 bytes.
func writeBuffered(file *os.File, content func(io.Writer) error) error {
	w := bufio.NewWriterSize(file, 1<<20)
	if err := content(w); err != nil {
		return err
	}
	return w.Flush()
}
