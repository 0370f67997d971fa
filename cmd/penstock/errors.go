package main

import (
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"strings"
	"syscall"

	"github.com/spf13/pflag"

	"penstock.example/pipe"
	"penstock.example/plan"
	"penstock.example/torch"
	"penstock.example/train"
)

// usageError is the error of a wrong command line, or of input that would be refused again.
type usageError struct{ error }

func (e *usageError) Unwrap() error { return e.error }

// badUsage makes a usage error of one line.
func badUsage(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }

// remedyError is an error with another text.
type remedyError struct {
	error
	text string
}

func (e *remedyError) Error() string { return e.text }
func (e *remedyError) Unwrap() error { return e.error }

// wrongInput turns err into a usage error: the same run would fail again. Failures of the system, such as a
// server that does not answer, lack of memory and nil stay as they are.
func wrongInput(err error) error {
	var errno syscall.Errno
	missing := errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) ||
		errors.Is(err, syscall.ENOTDIR)
	if err == nil || errors.Is(err, torch.ErrOutOfMemory) || errors.As(err, &errno) && !missing {
		return err
	}
	return &usageError{err}
}

// overLimit is err as a usage error if a run that has not begun does not fit into --memory-limit. Lack of
// the system's memory, other errors and nil stay as they are.
func overLimit(err error) error {
	var planned *plan.MemoryError
	var measured *torch.MemoryError
	if errors.As(err, &planned) || errors.As(err, &measured) && measured.Limit > 0 {
		return &usageError{err}
	}
	return err
}

// optionOf names the flags of fields of configurations that are not called like them.
var optionOf = map[string]string{
	"LR": "lr", "WeightDecay": "weight-decay", "WarmupSteps": "warmup", "TotalSteps": "schedule-steps",
	"Groups": "group",
}

// flagOf returns the flag of a field of a train.Recipe that may change, such as "optimizer.settings.lr".
func flagOf(field string) string {
	return "--" + strings.ReplaceAll(field[strings.LastIndexByte(field, '.')+1:], "_", "-")
}

// inFlags turns the refusal of a setting into a usage error that names the flag in place of the
// field. Other errors stay as they are.
func inFlags(s *pflag.FlagSet, err error) error {
	var e *pipe.ConfigError
	if !errors.As(err, &e) {
		return err
	}
	name, known := optionOf[e.Field]
	if !known {
		name = strings.ToLower(e.Field)
	}
	flag := s.Lookup(name)
	if flag == nil {
		return badUsage("%s", message(err))
	}
	advice := e.Remedy
	if e.Problem != "" { // a schedule repeats its name, the value
		problem := strings.TrimPrefix(message(errors.New(e.Problem)), flag.Value.String()+": ")
		advice = problem + "; " + e.Remedy
	}
	text := flag.Name
	if flag.Changed {
		text += " " + flag.Value.String()
	}
	return badUsage("--%s: %s", text, advice)
}

// libraryRemedy is what errors of the library advise.
var libraryRemedy = regexp.MustCompile(`[:;] use .*`)

// withRemedy adds to an error of the library which flags help. Other errors, and nil, stay as they are.
func withRemedy(err error) error {
	var said *remedyError
	var short *plan.MemoryError
	var mismatch *train.MismatchError
	var damaged *train.DamagedError
	switch {
	case errors.As(err, &said):
		return err
	case errors.As(err, &short):
		least := short.Least()
		return &remedyError{err, fmt.Sprintf("%s; the least that will do is --memory-limit %d (%s), or use "+
			"more --chunks, more --stages, or an --optimizer with less state", short.Shortages(), least,
			formatBytes(least))}
	case errors.Is(err, torch.ErrOutOfMemory):
		return &remedyError{err, libraryRemedy.ReplaceAllString(err.Error(), "") + "; use more --chunks, " +
			"more --stages, --checkpoint always, a smaller --batch, or a larger --memory-limit"}
	case errors.As(err, &mismatch):
		return fmt.Errorf("%w; resume with the flags and data of then, or start anew with another --out", err)
	case errors.As(err, &damaged):
		return fmt.Errorf("%w; remove %s to go on from the checkpoint before it, if there is one, or start "+
			"anew with another --out", err, damaged.Path)
	case errors.Is(err, train.ErrNoCheckpoint):
		return fmt.Errorf("%w; leave --resume out to start anew", err)
	case errors.Is(err, train.ErrDiverged):
		return fmt.Errorf("%w: a smaller --lr, or --clip-norm", err)
	}
	return err
}
