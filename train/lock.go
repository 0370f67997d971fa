package train

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// ErrLocked is what Lock returns for a directory that another run uses.
var ErrLocked = errors.New("another run uses it")

// Lock keeps other runs that lock the directory, which must exist, out of it until release is called or the process ends, however it ends. The lock is on the directory
// itself, not on a file in it. Whoever holds it is alone here, so what a run that was killed left half written or half removed is removed now. A file system without
// locks is taken to be free, and what lies there stays until the next Save.
func (s Store) Lock() (release func() error, err error) {
	d, err := os.OpenFile(s.Dir, os.O_RDONLY|syscall.O_DIRECTORY, 0) // which refuses a named pipe, where opening waits for its writer
	if err != nil {
		return nil, fmt.Errorf("train: checkpoints in %s: %w", s.Dir, err)
	}
	err = syscall.Flock(int(d.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		d.Close()
		return nil, fmt.Errorf("train: checkpoints in %s: %w", s.Dir, ErrLocked)
	}
	if err == nil {
		if err := s.removeLeftovers(); err != nil {
			d.Close()
			return nil, fmt.Errorf("train: checkpoints in %s: a killed run's remains cannot be removed: %w", s.Dir, err)
		}
	}
	return d.Close, nil
}
