package train

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// ErrLocked is what Lock returns for a directory that another run uses.
var ErrLocked = errors.New("another run uses it")

// Lock keeps other runs that lock the directory, which must exist, out of it until release is called or the process ends, however it ends. It leaves nothing behind: the
// lock is on the directory itself, not on a file in it. A file system without locks is taken to be free.
func (s Store) Lock() (release func() error, err error) {
	d, err := os.Open(s.Dir)
	if err != nil {
		return nil, fmt.Errorf("train: checkpoints in %s: %w", s.Dir, err)
	}
	if err := syscall.Flock(int(d.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); errors.Is(err, syscall.EWOULDBLOCK) {
		d.Close()
		return nil, fmt.Errorf("train: checkpoints in %s: %w", s.Dir, ErrLocked)
	}
	return d.Close, nil
}
