package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"penstock.example/torch"
	"penstock.example/train"
)

// newTrain makes the verb. args is the whole command line, for telling how to resume.
func newTrain(args []string) *cobra.Command {
	var flags trainFlags
	cmd := &cobra.Command{
		Use:   "train --model NAME --data NAME [flags]",
		Short: "Train a model",
		Long: `Train a model as a pipeline of micro-batches.

The weights that come out depend on the flags that describe the training and on
--threads, not on --stages, --balance, --devices, --schedule, --virtual, --checkpoint
and --memory-limit.

Ctrl-C or SIGTERM lets the running step finish, saves if there is --out, says how
to go on, and exits with 1. A second one ends the process at once. A run that an
error ends saves as well, also where a step failed, which then counts as not
taken. Not so several processes or --replicas, which end at once where one of
them fails, and after a loss that is not a number: there the last checkpoint is
the one to go on from (--save-every).

--init starts from the weights of a file, and says what it has loaded. The names
in it are made the model's by --init-rename, which replaces parts of names, and what
is not to be loaded, such as the head for other classes, is left out by --init-skip.
With --resume the checkpoint's weights count.

Several processes share a run if penstock launch, torchrun, srun or mpirun has
started them, or with --processes, --rank and --rendezvous. Each has some of the
stages. All must have the same command line, data and program. --replicas has the
pipeline several times, in as many processes as there are, or in one.

Without --threads a run measures for some seconds, unless it is short, whether more
than one thread on each device is faster, says what it takes and writes it down: a run
that is resumed has the same. The last bits of the weights depend on it.

With --plan auto a run measures the model, and what values take from process to process,
and plans itself, with a device for each process at least. With --devices one process
plans for these, each once. Resumed in the same world it keeps its plan, and in another,
with other processes, cores, devices, flags or limits, it plans again and says what has
changed.

With --checkpoint optimal the run says first, for each stage, how many bytes it
will hold, how many forwards it runs again, and how much time that takes.`,
		Example: `  penstock train --model resnet20 --data fashion-mnist --stages 2 --epochs 3 --out out/fashion
  penstock train --model gpt --data text --data-dir shakespeare.txt --optimizer adamw --steps 500
  penstock train --model resnet20 --data synthetic --stages 2 --memory-limit 64MiB --steps 20 --format json
  penstock train --plan plan.json
  penstock train --model resnet20 --data synthetic --chunks 1 --batch 128 --memory-limit 100MiB --checkpoint optimal --steps 5`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := flags.prepare(cmd, args)
			if err != nil {
				return err
			}
			if p.listener != nil {
				defer p.listener.Close()
			}
			err = together(p.members(), func(p plan) error { return runTraining(cmd, p) })
			if p.member.Rank > 0 { // rank 0 says what is to be done now
				return withRemedy(err)
			}
			var stopped *interruptedError
			if errors.As(err, &stopped) && stopped.saved != "" {
				return fmt.Errorf("%w. %s", err, p.resumption(args))
			}
			err = withRemedy(err)
			var failed *failedError
			switch {
			case !errors.As(err, &failed) || failed.kept == "":
				return err
			case failed.more:
				return fmt.Errorf("%w\n%s. %s", err, failed.kept, p.resumption(args))
			}
			return fmt.Errorf("%w\n%s", err, failed.kept)
		},
	}
	flags.register(cmd)
	cmd = configurable(cmd)
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return flags.inPlan(run(cmd, args)) }
	return cmd
}

// prepare is what a process does before it meets the others.
func (f *trainFlags) prepare(cmd *cobra.Command, args []string) (p plan, err error) {
	if err := f.takePlan(cmd); err != nil {
		return p, err
	}
	if p, err = f.plan(cmd.Flags(), os.Getenv); err != nil {
		return p, err
	}
	p.args, p.effective = args, effectiveConfig(cmd)
	p.member.Log = slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
	p.decide = func(line searchLine) (plan, error) {
		if err := f.take(cmd.Flags(), line); err != nil {
			return plan{}, err
		}
		f.decided = true
		return f.plan(cmd.Flags(), os.Getenv)
	}
	if p.member.Rank == 0 { // the others write nothing
		p.data.OnText = showText(cmd.ErrOrStderr())
		if err := checkOutput(cmd.OutOrStdout()); err != nil {
			return p, err
		}
	}
	p.listener, err = p.listen()
	return p, err
}

// runTraining does what a plan asks for, as a member of the group.
func runTraining(cmd *cobra.Command, p plan) (err error) {
	ctx, stdout, stderr := cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr()
	if p.member.Rank > 0 { // what one process would say is said by rank 0
		stdout, stderr = io.Discard, io.Discard
	}
	defer announce(ctx, stderr)()
	for _, k := range kernelsInUse() {
		if slow := k.Slow(); slow != "" {
			fmt.Fprintln(stderr, slow)
		}
	}
	p.numerics.apply()
	j, err := openJob(ctx, p, stderr)
	if ctx.Err() != nil && err != nil {
		return errors.New("interrupted before the first step; nothing is lost")
	}
	if err != nil {
		return err
	}
	defer func() {
		if !j.together {
			j.tellGroup(err)
		}
		err = errors.Join(err, j.keepEnd(err), j.close())
	}()

	var show reporter
	if p.format == "json" {
		show = newJSONReporter(stdout, stderr)
	} else {
		show = newTextReporter(stdout, stderr, j)
	}
	j.show = show
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	j.loop.OnStep = append([]train.Hook{j.inOrder(show.step, stop), j.inOrder(j.measures.step, stop), func(s train.StepInfo) error { j.peaks.add(s); return nil }}, j.loop.OnStep...)
	if afterStep != nil {
		j.loop.OnStep = append(j.loop.OnStep, afterStep)
	}
	if p.within == nil || p.member.Rank == 0 {
		defer sparingly()()
	}
	show.begin()
	result, err := j.loop.Run(ctx)
	show.endSteps()
	if err != nil {
		return j.keep(j.remedyInRun(err))
	}
	if result.Stopped {
		fmt.Fprintf(stderr, "--patience %d: stopped after step %d; the lowest validation loss was %.4g, after step %d\n", j.patience, result.Step, j.loop.Best.Loss, j.loop.Best.Step)
	}
	saved, err := j.save()
	if err != nil {
		return j.keep(err)
	}
	if err := j.trace.finish(j.pipe, stderr); err != nil {
		return j.keep(err)
	}
	if result.Interrupted {
		j.together = true
		return j.interruption(ctx, result.Step, saved)
	}
	for _, d := range j.pipe.Devices() {
		d.ResetPeak()
	}
	tested, err := j.score(ctx)
	if ctx.Err() != nil {
		return &interruptedError{result.Step, saved}
	}
	if err != nil {
		return j.keep(withFlags(err, remedyForTest))
	}
	if err := j.measures.test(result.Step, tested); err != nil {
		return j.keep(err)
	}
	sum, err := train.ParamsSHA256In(j.group, j.model)
	if err != nil {
		return j.keep(err)
	}
	o := outcome{result.Step, tested, j.peaks.safeLimit(j.pipe), torch.ProcessMemory{}, reservedOn(j.pipe.Devices()), sum, saved, p.traceFile}
	o.memory = torch.ReadProcessMemory() // of all that was done
	if err := show.done(o); err != nil {
		return j.keep(err)
	}
	return nil
}

// reservedOn is the memory of devices of which some are GPUs; nil if none is. Those of CPUs have nothing.
func reservedOn(devices []torch.Device) (list []torch.Memory) {
	for i, d := range devices {
		if d.Kind == torch.KindCPU {
			continue
		}
		if list == nil {
			list = make([]torch.Memory, len(devices))
		}
		list[i] = d.Memory()
	}
	return list
}

// inOrder is a hook whose error, in a group, ends the run as a signal does: all processes finish the
// step and save. Otherwise the others would wait for this one.
func (j *job) inOrder(hook train.Hook, stop context.CancelCauseFunc) train.Hook {
	if j.group == nil {
		return hook
	}
	return func(s train.StepInfo) error {
		if err := hook(s); err != nil {
			stop(err)
		}
		return nil
	}
}

// interruption is the error of a run that ctx ended.
func (j *job) interruption(ctx context.Context, step int64, saved string) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, ctx.Err()) {
		return &failedError{err: cause, kept: keptAt(step, saved), more: saved != ""}
	}
	return &interruptedError{step, saved}
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

// resumption says how to resume a run.
func (p *plan) resumption(args []string) string {
	command := p.getenv(launchedBy)
	switch {
	case command == "" && p.member.Size > p.here:
		return "To go on, start all processes again with --resume"
	case command == "":
		command = shellQuoted(append([]string{os.Args[0]}, args...))
	}
	if !p.resume && !p.autoresume {
		command += " --resume"
	}
	return "To go on:\n  " + command
}

// withRemedy adds to an error of the library which flags help.
func withRemedy(err error) error {
	var mismatch *train.MismatchError
	var damaged *train.DamagedError
	switch {
	case errors.As(err, &mismatch):
		return fmt.Errorf("%w; resume with the %s of then, or start anew with another --out", err, flagOf(mismatch.Field))
	case errors.As(err, &damaged):
		return fmt.Errorf("%w; remove %s to go on from the checkpoint before it, if there is one, or start anew with another --out",
			err, damaged.Path)
	case errors.Is(err, train.ErrNoCheckpoint):
		return fmt.Errorf("%w; leave --resume out to start anew", err)
	case errors.Is(err, train.ErrDiverged):
		return fmt.Errorf("%w: a smaller --lr, or --clip-norm", err)
	}
	return err
}
