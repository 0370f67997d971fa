package main

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"penstock/pipe"
	"penstock/torch"
	"penstock/train"
)

// newTrain makes the verb. args is the whole command line, for telling how to resume.
func newTrain(args []string) *cobra.Command {
	var flags trainFlags
	cmd := &cobra.Command{
		Use:   "train --model NAME --data NAME [flags]",
		Short: "Train a model",
		Long: `Train a model as a pipeline of micro-batches.

The weights that come out depend on the flags that describe the training, not on
--stages, --balance, --devices, --checkpoint and --memory-limit.

Ctrl-C or SIGTERM lets the running step finish, saves if there is --out, says how
to go on, and exits with 1. A second one ends the process at once.`,
		Example: `  penstock train --model resnet20 --data fashion-mnist --stages 2 --epochs 3 --out out/fashion
  penstock train --model gpt --data text --data-dir shakespeare.txt --optimizer adamw --steps 500
  penstock train --model resnet20 --data synthetic --stages 2 --memory-limit 64MiB --steps 20 --format json`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := flags.plan(cmd.Flags().Changed)
			if err != nil {
				return err
			}
			err = runTraining(cmd, p)
			var stopped *interruptedError
			if errors.As(err, &stopped) && stopped.saved != "" {
				return fmt.Errorf("%w. To go on:\n  %s", err, resumption(args))
			}
			return withRemedy(err)
		},
	}
	flags.register(cmd)
	return cmd
}

// runTraining does what a plan asks for.
func runTraining(cmd *cobra.Command, p plan) (err error) {
	ctx, stderr := cmd.Context(), cmd.ErrOrStderr()
	j, err := openJob(ctx, p, stderr)
	if ctx.Err() != nil && err != nil {
		return errors.New("interrupted before the first step; nothing is lost")
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, j.close()) }()

	var show reporter
	if p.format == "json" {
		show = newJSONReporter(cmd.OutOrStdout())
	} else {
		show = newTextReporter(cmd.OutOrStdout(), stderr, j)
	}
	j.loop.OnStep = append([]train.Hook{show.step}, j.loop.OnStep...)
	result, err := j.loop.Run(ctx)
	show.endSteps()
	if err != nil {
		return err
	}
	saved, err := j.save()
	if err != nil {
		return err
	}
	if err := j.trace.finish(j.pipe, stderr); err != nil {
		return err
	}
	if result.Interrupted {
		return &interruptedError{result.Step, saved}
	}
	accuracy, err := train.Accuracy(ctx, j.pipe, j.test, p.batch)
	if ctx.Err() != nil {
		return &interruptedError{result.Step, saved}
	}
	if err != nil {
		return err
	}
	return show.done(outcome{result.Step, accuracy, train.ParamsSHA256(j.model), saved, p.traceFile})
}

// interruptedError says that a signal ended a run early.
type interruptedError struct {
	step  int64
	saved string // the checkpoint; "" without --out
}

func (e *interruptedError) Error() string {
	if e.saved == "" {
		return fmt.Sprintf("interrupted after step %d; nothing was saved, as there is no --out", e.step)
	}
	return fmt.Sprintf("interrupted after step %d; saved in %s", e.step, e.saved)
}

// resumption is what to type to go on with what a command line began.
func resumption(args []string) string {
	words := append([]string{os.Args[0]}, args...)
	if !slices.Contains(words, "--resume") {
		words = append(words, "--resume")
	}
	return shellQuoted(words)
}

// withRemedy adds to an error of the library which flags help.
func withRemedy(err error) error {
	var mismatch *train.MismatchError
	var damaged *train.DamagedError
	var located *pipe.Error // says what helps against want of memory
	switch {
	case errors.As(err, &mismatch):
		return fmt.Errorf("%w; resume with the %s of then, or start anew with another --out", err, flagOf(mismatch.Field))
	case errors.As(err, &damaged):
		return fmt.Errorf("%w; remove %s to go on from the checkpoint before it, if there is one, or start anew with another --out", err, damaged.Path)
	case errors.Is(err, torch.ErrOutOfMemory) && !errors.As(err, &located):
		return fmt.Errorf("%w; use more --chunks, --checkpoint always, more --stages, or a larger --memory-limit", err)
	case errors.Is(err, train.ErrNoCheckpoint):
		return fmt.Errorf("%w; leave --resume out to start anew", err)
	case errors.Is(err, train.ErrDiverged):
		return fmt.Errorf("%w: a smaller --lr, or --clip-norm", err)
	}
	return err
}
