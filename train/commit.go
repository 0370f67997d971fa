package train

import (
	"cmp"
	"errors"
	"slices"
)

// A checkpoint in several directories is committed in two phases:
//
//	prepared    files and index are complete and on disk as .step-N.tmp, in every directory
//	renamed     to step-N, once all directories are prepared
//
// So where one directory has step-N, every other has it too or has it prepared, until all have it.

// commit gives a checkpoint that is prepared in every directory its name. After an error it has its
// name nowhere, unless the error came after all renames; temporaries may then be left, which the
// next Lock completes or removes.
func (s shared) commit(temporary, path string) error {
	renamed := false
	err := s.led("checkpoint renamed", func() error {
		err := s.rename(temporary, path)
		renamed = err == nil
		return err
	})
	switch {
	case err == nil:
		return s.led("its name forced to disk", func() error { return s.syncDirectory(s.Dir) })
	case s.lost() && s.apart():
		return err // others may have renamed theirs
	case s.lost():
		if !renamed {
			s.lead(func() error { return s.remove(temporary) }) // the first error is the one to report
		}
		return err
	}
	// Nothing is removed before it has its name nowhere.
	undone := s.led("names taken back", func() error {
		if !renamed {
			return nil
		}
		return s.rename(path, temporary)
	})
	if undone == nil {
		s.led("remains removed", func() error { return s.remove(temporary) })
	}
	return err
}

// newest is the newest checkpoint of a directory.
type newest struct {
	Step   int64  // -1 for none
	SHA256 string // of the index
}

// complete renames the newest checkpoint in the directories in which it is prepared, if it has its
// name in another.
func (s shared) complete() error {
	if !s.apart() {
		return nil
	}
	mine := newest{Step: -1}
	err := s.lead(func() error {
		steps, err := s.Steps()
		if err != nil || len(steps) == 0 {
			return err
		}
		mine.Step = steps[len(steps)-1]
		st, err := readState(s.Path(mine.Step))
		mine.SHA256 = st.SHA256
		if damaged := (*DamagedError)(nil); errors.As(err, &damaged) {
			return nil // which Latest tells
		}
		return err
	})
	all, err := meet(s.peers, "newest checkpoints", mine, err)
	if err != nil {
		return err
	}
	last := slices.MaxFunc(all, func(a, b newest) int { return cmp.Compare(a.Step, b.Step) })
	return s.led("checkpoint completed", func() error {
		if mine.Step >= last.Step {
			return nil
		}
		st, err := readState(s.temporary(last.Step))
		if err != nil || st.SHA256 != last.SHA256 {
			return nil // not prepared, or another one
		}
		if err := s.rename(s.temporary(last.Step), s.Path(last.Step)); err != nil {
			return err
		}
		return s.syncDirectory(s.Dir)
	})
}
