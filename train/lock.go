package train

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// ErrLocked is the error of Lock for a directory that another run uses.
var ErrLocked = errors.New("another run uses it")

// Lock locks the directory, which must exist, against other runs until release is called or the
// process ends in any way. The lock is on the directory itself, not on a file in it. Lock removes
// what a killed run left half written or half removed, as no other run can be at work. On a file
// system without locks it locks nothing and removes nothing; the next Save removes leftovers.
func (s Store) Lock() (release func() error, err error) {
	// which refuses a named pipe, where opening waits for its writer
	d, err := os.OpenFile(s.Dir, os.O_RDONLY|syscall.O_DIRECTORY, 0)
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
