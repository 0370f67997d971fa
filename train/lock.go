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
//
// In a group Lock is collective, and one process of those that share a directory locks it. A
// checkpoint that a killed run had renamed in some directories and not yet in all is completed.
func (s Store) Lock() (release func() error, err error) {
	release, err = s.lock()
	if err != nil {
		return nil, fmt.Errorf("train: checkpoints in %s: %w", s.Dir, err)
	}
	return release, nil
}

func (s Store) lock() (release func() error, err error) {
	all, err := s.share()
	if err := all.agree("who shares a directory to lock", err); err != nil {
		return nil, err
	}
	var directory *os.File
	locked := false
	unlock := func() error {
		if directory == nil {
			return nil
		}
		return directory.Close()
	}
	defer func() {
		if err != nil {
			unlock() // the first error is the one to report
		}
	}()
	err = all.lead(func() (err error) { directory, locked, err = s.flock(); return err })
	if err := all.agree("checkpoints locked", err); err != nil {
		return nil, err
	}
	if err := all.complete(); err != nil {
		return nil, fmt.Errorf("what a killed run has left cannot be completed: %w", err)
	}
	err = all.led("leftovers removed", func() error {
		if !locked {
			return nil
		}
		return s.removeLeftovers()
	})
	if err != nil {
		return nil, fmt.Errorf("a killed run's remains cannot be removed: %w", err)
	}
	return unlock, nil
}

// flock locks the directory. On a file system without locks it is open and not locked.
func (s Store) flock() (directory *os.File, locked bool, err error) {
	// which refuses a named pipe, where opening waits for its writer
	d, err := os.OpenFile(s.Dir, os.O_RDONLY|syscall.O_DIRECTORY, 0)
	if err != nil {
		return nil, false, err
	}
	err = syscall.Flock(int(d.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		d.Close()
		return nil, false, ErrLocked
	}
	return d, err == nil, nil
}
