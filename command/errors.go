package command

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	"github.com/spf13/pflag"

	"penstock.example/pipe"
	"penstock.example/plan"
	"penstock.example/torch"
	"penstock.example/train"
)

// usageError is the error of a wrong command line or input: the same run would fail again.
type usageError struct{ error }

func (e *usageError) Unwrap() error { return e.error }

func badUsage(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }

// remedyError is an error with another text.
type remedyError struct {
	error
	text string
}

func (e *remedyError) Error() string { return e.text }
func (e *remedyError) Unwrap() error { return e.error }

// wrongInput turns err into a usage error, unless it is nil, lack of memory, or a failure of the system.
func wrongInput(err error) error {
	var errno syscall.Errno
	missing := errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) ||
		errors.Is(err, syscall.ENOTDIR)
	if err == nil || errors.Is(err, torch.ErrOutOfMemory) || errors.As(err, &errno) && !missing {
		return err
	}
	return &usageError{err}
}

// overLimit turns err into a usage error if it says that the run does not fit into --memory-limit.
func overLimit(err error) error {
	var measured *torch.MemoryError
	if errors.As(err, new(*plan.MemoryError)) || errors.As(err, &measured) && measured.Limit > 0 {
		return &usageError{err}
	}
	return err
}

var flagOfField = map[string]string{
	"LR": "lr", "WeightDecay": "weight-decay", "WarmupSteps": "warmup", "TotalSteps": "schedule-steps",
	"Groups": "group", "DropLast": "drop-last", "Betas[0]": "betas", "Betas[1]": "betas",
	"MinLR": "lr-schedule", "Rise": "lr-schedule", "DivFactor": "lr-schedule", "Gamma": "lr-schedule",
	"FinalDivFactor": "lr-schedule", "StepSize": "lr-schedule", "MicroBatches": "chunks",
	"Schedules": "schedule", "Limit": "memory-limit", "plan Devices": "stages",
}

// inFlags turns a *pipe.ConfigError into a usage error that names the flag in place of the field.
func inFlags(s *pflag.FlagSet, err error) error {
	var e *pipe.ConfigError
	if !errors.As(err, &e) {
		return err
	}
	flag := s.Lookup(cmp.Or(flagOfField[e.Of+" "+e.Field], flagOfField[e.Field], strings.ToLower(e.Field)))
	if flag == nil {
		return badUsage("%s", message(err))
	}
	advice := e.Remedy
	if e.Problem != "" { // a schedule's problem begins with the value
		advice = strings.TrimPrefix(message(errors.New(e.Problem)), flag.Value.String()+": ") + "; " + advice
	}
	text := flag.Name
	if flag.Changed {
		text += " " + flag.Value.String()
	}
	return badUsage("--%s: %s", text, advice)
}

var libraryRemedy = regexp.MustCompile(`[:;] (use|lower) .*`)

// withRemedy adds the flags that help to an error of the library. trains is true for the verb train.
func withRemedy(err error, trains bool) error {
	var short *plan.MemoryError
	var mismatch *train.MismatchError
	var damaged *train.DamagedError
	var sample interface{ OfSample() } // of the data's loader
	switch {
	case errors.As(err, new(*remedyError)):
		return err
	case errors.As(err, &sample):
		return wrongInput(err)
	case errors.As(err, &short):
		least, text := short.Least(), "the least that will do is --memory-limit %d (%s), or use more "+
			"--chunks or --stages, or an --optimizer with less state"
		if short.Stages[0].SetBy == "parameters and buffers alone" {
			text = "use more than --memory-limit %d (%s), or more --stages"
		}
		return &remedyError{err, short.Shortages() + "; " + fmt.Sprintf(text, least, formatBytes(least))}
	case errors.Is(err, torch.ErrOutOfMemory):
		text := "; use more --chunks, more --stages, --checkpoint always, a smaller --batch, or a larger " +
			"--memory-limit"
		if !trains {
			text = strings.Replace(text, "--checkpoint always, ", "", 1)
		}
		return &remedyError{err, libraryRemedy.ReplaceAllString(err.Error(), "") + text}
	case errors.As(err, &mismatch):
		changed := ""
		if strings.HasPrefix(mismatch.Field, "data.settings.") {
			changed = ", accept the change with --changed-data"
		}
		return fmt.Errorf("%w; resume with the saved flags and data%s, or start anew with another --out", err,
			changed)
	case errors.As(err, &damaged):
		advice := "; start anew with another --out"
		if steps, _ := (train.Store{Dir: filepath.Dir(damaged.Path)}).Steps(); len(steps) > 1 {
			advice = fmt.Sprintf("; remove %s to use an earlier one, or take another --out", damaged.Path)
		}
		return badUsage("%w%s", err, advice)
	case errors.Is(err, train.ErrNoCheckpoint):
		return fmt.Errorf("%w; leave --resume out to start anew", err)
	case errors.Is(err, train.ErrDiverged):
		return &remedyError{err, libraryRemedy.ReplaceAllString(err.Error(), "") +
			"; use a smaller --lr, or --clip-norm"}
	}
	return err
}
