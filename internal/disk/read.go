package disk

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// MaxJSON is the most bytes of a JSON file that is read: the state of a checkpoint, a chain, a
// plan. It is a hundred times the size of the largest of them.
const MaxJSON = 64 << 20

// ErrNotRegular is what opening anything but a regular file returns.
var ErrNotRegular = errors.New("not a regular file")

// Open opens the regular file at path for reading; links are followed. It never blocks. A named
// pipe, a device, a socket or a directory is refused before it is opened, and again after, as the
// file may have been replaced in between. The error is an *fs.PathError, with ErrNotRegular for
// these. The caller closes the file.
func Open(path string) (*os.File, error) {
	before, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if err := regular(path, before); err != nil {
		return nil, err
	}
	// Without O_NONBLOCK, opening a named pipe waits for its writer.
	return openRegular(path, os.O_RDONLY)
}

// openRegular opens a file and closes it again unless it is regular. Its mode follows the umask if
// it is made.
func openRegular(path string, flags int) (*os.File, error) {
	f, err := os.OpenFile(path, flags|syscall.O_NONBLOCK, 0o666)
	if err != nil {
		return nil, err
	}
	opened, err := f.Stat()
	if err == nil {
		err = regular(path, opened)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// Read reads the regular file at path whole. A file of more than most bytes is refused before any
// of it is read.
func Read(path string, most int64) ([]byte, error) {
	f, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if size := info.Size(); size > most {
		err := fmt.Errorf("it has %d bytes; want at most %d: this may be another kind of file", size, most)
		return nil, &fs.PathError{Op: "read", Path: path, Err: err}
	}
	content, err := ReadStream(f, most) // the size may have changed, and files of /proc do not tell theirs
	if err != nil {
		return nil, &fs.PathError{Op: "read", Path: path, Err: err}
	}
	return content, nil
}

// ReadStream reads r to its end, and no further than most bytes.
func ReadStream(r io.Reader, most int64) ([]byte, error) {
	content, err := io.ReadAll(io.LimitReader(r, most+1))
	if err != nil {
		return nil, err
	}
	if int64(len(content)) > most {
		return nil, fmt.Errorf("it has more than %d bytes: this may be another kind of file", most)
	}
	return content, nil
}

// regular returns an error unless the file is regular.
func regular(path string, info fs.FileInfo) error {
	if info.Mode().IsRegular() {
		return nil
	}
	return &fs.PathError{Op: "open", Path: path, Err: fmt.Errorf("%w but a %s", ErrNotRegular,
		kind(info.Mode()))}
}

func kind(mode fs.FileMode) string {
	switch {
	case mode.IsDir():
		return "directory"
	case mode&fs.ModeNamedPipe != 0:
		return "named pipe"
	case mode&fs.ModeSocket != 0:
		return "socket"
	case mode&fs.ModeDevice != 0:
		return "device"
	}
	return "file of another kind"
}
