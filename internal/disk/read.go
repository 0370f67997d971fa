// Package disk reads and writes regular files. It refuses named pipes, devices and sockets: reading them
// could block for ever or never end. Reads of whole files have a size limit. Writes are complete or leave no
// trace. The package also has the bounds that other readers of files keep.
package disk

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// ErrNotRegular is the error of opening anything but a regular file.
var ErrNotRegular = errors.New("not a regular file")

// Open opens the regular file at path for reading; links are followed. It never blocks. The error is an
// *fs.PathError.
func Open(path string) (*os.File, error) { return openRegular(path, os.O_RDONLY) }

// OpenAppend opens a file for reading and for writing at its end. It makes the file if it is missing.
func OpenAppend(path string) (*os.File, error) {
	return openRegular(path, os.O_RDWR|os.O_APPEND|os.O_CREATE)
}

// openRegular checks that the file is regular before opening it, as opening a named pipe could block.
func openRegular(path string, flags int) (*os.File, error) {
	if info, err := os.Stat(path); err == nil {
		if err := checkRegular(path, info); err != nil {
			return nil, err
		}
	}
	return os.OpenFile(path, flags, 0o666)
}

// Read reads the whole regular file at path. It refuses a file of more than most bytes.
func Read(path string, most int64) ([]byte, error) {
	f, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	var content []byte
	if err == nil && info.Size() > most {
		err = fmt.Errorf("it has %d bytes; want at most %d: perhaps another kind of file", info.Size(), most)
	}
	if err == nil {
		content, err = ReadStream(f, most) // the size may change, and is 0 for files of /proc
	}
	if err != nil {
		return nil, &fs.PathError{Op: "read", Path: path, Err: err}
	}
	return content, nil
}

// ReadStream reads r to its end. It fails after most bytes.
func ReadStream(r io.Reader, most int64) ([]byte, error) {
	content, err := io.ReadAll(io.LimitReader(r, most+1))
	if err != nil {
		return nil, err
	}
	if int64(len(content)) > most {
		return nil, fmt.Errorf("it has more than %d bytes: perhaps another kind of file", most)
	}
	return content, nil
}

func checkRegular(path string, info fs.FileInfo) error {
	if info.Mode().IsRegular() {
		return nil
	}
	kind := cmp.Or(map[fs.FileMode]string{fs.ModeDir: "directory", fs.ModeNamedPipe: "named pipe",
		fs.ModeSocket: "socket"}[info.Mode().Type()], "device")
	return &fs.PathError{Op: "open", Path: path, Err: fmt.Errorf("%w but a %s", ErrNotRegular, kind)}
}
