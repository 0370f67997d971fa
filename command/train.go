package command

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"penstock.example/internal/metrics"
	"penstock.example/internal/progress"
	"penstock.example/internal/system"
	"penstock.example/torch"
	"penstock.example/train"
)

// newTrain makes the verb, which checks its command line and calls run. args is the whole command line.
func newTrain(args []string, getenv func(string) string,
	run func(*cobra.Command, runOptions) error) *cobra.Command {
	var flags trainFlags
	cmd := &cobra.Command{
		Use:   "train --model NAME --data NAME [flags]",
		Short: "Train a model",
		Long: `Train a model as a pipeline of micro-batches.

The trained weights do not depend on --stages, --balance, --devices, --schedule,
--virtual, --checkpoint and --memory-limit. Their last bits depend on --threads.

Ctrl-C, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2 or SIGXCPU ends the run after the running step,
with exit code 1. Ctrl-C again ends it at once. With --out a run saves a checkpoint when it
ends or fails. It saves none if its loss is not a number or another process has failed.

Processes share the stages of a run if penstock launch, torchrun, srun or mpirun starts
them, or with --rank. All need the same command line, data and program.`,
		Example: `  penstock train --model gpt --data text --data-dir shakespeare.txt --steps 500
  penstock train --plan plan.json --out out/planned
  penstock train --out out/planned --resume`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o, err := flags.prepare(cmd, args, getenv)
			if err != nil {
				return err
			}
			return run(cmd, o)
		},
	}
	flags.register(cmd)
	return configurable(cmd)
}

func (f *trainFlags) prepare(cmd *cobra.Command, args []string, getenv func(string) string) (o runOptions,
	err error) {
	err = f.takePlan(cmd)
	if given := f.planFrom; err == nil && (f.resume || f.autoresume) {
		if err = readSaved(cmd, f.out); err == nil && given == "" { // the saved flags may have a plan
			err = f.takePlan(cmd)
		}
	}
	if steps, _ := (train.Store{Dir: f.out}).Steps(); len(steps) > 0 && (f.resume || f.autoresume) {
		f.folder = modelFolder(f.modelName, f.out)
	}
	if err == nil {
		err = f.takeAdapter(cmd.Flags())
	}
	if err == nil {
		o, err = f.check(cmd.Flags(), getenv)
	}
	if err != nil {
		return o, err
	}
	o.args, o.effective = args, effectiveConfig(cmd)
	o.member.Log = slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
	o.decide = func(line planJSON) (runOptions, error) {
		if err := f.setFromPlan(cmd.Flags(), line); err != nil {
			return runOptions{}, err
		}
		f.planFrom = "" // its flags are set
		return f.check(cmd.Flags(), getenv)
	}
	if o.member.Rank == 0 { // the others write nothing
		o.data.OnText = progress.Texts(cmd.ErrOrStderr())
	}
	return o, nil
}

// afterStep is a hook of tests. Nil is none.
var afterStep train.Hook

func runMember(cmd *cobra.Command, o runOptions) (err error) {
	ctx, stdout, stderr := cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr()
	if o.member.Rank > 0 { // rank 0 speaks for all
		stdout, stderr = io.Discard, io.Discard
	}
	if file, ok := stderr.(*os.File); ok { // other writers may not be safe for several goroutines
		defer context.AfterFunc(ctx, func() {
			fmt.Fprint(file, "\nfinishing the step; Ctrl-C again ends at once\n")
		})()
	}
	for _, k := range kernelsInUse() {
		if slow := k.Slow(); slow != "" {
			fmt.Fprintln(stderr, slow)
		}
	}
	o.numerics.apply()
	j, err := openJob(ctx, o, stderr)
	switch {
	case err != nil && ctx.Err() != nil:
		return errors.New("interrupted before the first step; nothing is lost")
	case err != nil:
		return err
	}
	defer func() {
		if !j.endedWithPeers {
			err = failGroup(j.group, err)
		}
		err = errors.Join(err, j.recordEnd(err), j.close())
	}()
	j.show = newReporter(stdout, stderr, j)
	result, err := j.takeSteps(ctx)
	if err != nil {
		return j.saveAfterFailure(err)
	}
	if result.Stopped {
		fmt.Fprintf(stderr, "--patience %d: stopped after step %d; the lowest validation loss was %.4g, "+
			"after step %d\n", j.patience, result.Step, j.loop.Best.Loss, j.loop.Best.Step)
	}
	saved, err := j.save()
	if err == nil {
		err = j.writeTrace(stderr)
	}
	if err != nil {
		return j.saveAfterFailure(err)
	}
	if result.Interrupted {
		j.endedWithPeers = true
		return j.interruption(result.Step, saved)
	}
	if err = j.finish(ctx, result.Step, saved); err != nil && ctx.Err() != nil {
		return j.interruption(result.Step, saved)
	} else if err != nil {
		return j.saveAfterFailure(err)
	}
	return nil
}

func (j *job) takeSteps(ctx context.Context) (train.Result, error) {
	peaks := func(s train.StepInfo) error { losesWork.Store(true); j.peaks.add(s); return nil }
	j.loop.OnStep = append([]train.Hook{j.writeStep, peaks}, j.loop.OnStep...)
	j.loop.OnStep = append(j.loop.OnStep, j.show.step) // comes last: it fails if the reader of stdout is gone
	if afterStep != nil {
		j.loop.OnStep = append(j.loop.OnStep, afterStep)
	}
	if j.localGroup == nil || j.member.Rank == 0 {
		defer debug.SetGCPercent(limitGarbage())
	}
	defer j.show.endSteps()
	return j.loop.Run(ctx)
}

func (j *job) finish(ctx context.Context, step int64, saved string) error {
	for _, d := range j.pipe.Devices() {
		d.ResetPeak()
	}
	tested, err := j.evaluate(ctx)
	if err != nil {
		return err
	}
	err = j.writeTest(metrics.Test{Step: step, Epoch: j.epoch}, tested)
	sum, failed := train.ParamsSHA256(j.group, j.model)
	if err = cmp.Or(err, failed); err != nil {
		return err
	}
	resident, peak := system.ResidentMemory()
	return j.show.done(doneLine{Done: true, Steps: step, TestAccuracy: tested.Accuracy, TestMSE: tested.MSE,
		ParamsSHA256: sum, SafeLimitBytes: j.peaks.safeLimit(j.pipe), ResidentBytes: resident,
		PeakResidentBytes: peak, checkpoint: saved, trace: j.traceFile})
}

// failedError is the error of an open run, with advice how to go on.
type failedError struct{ remedyError }

var errInterrupted = errors.New("interrupted")

func (j *job) interruption(step int64, saved string) error {
	if saved == "" {
		return fmt.Errorf("%w after step %d; nothing was saved, as there is no --out", errInterrupted, step)
	}
	return j.withAdvice(fmt.Errorf("%w after step %d; saved in %s", errInterrupted, step, saved), goOn)
}

const goOn = "; to go on, start it again with --resume"

// withAdvice adds advice to an error. Only rank 0 gives advice.
func (j *job) withAdvice(err error, advice string) error {
	if j.member.Rank > 0 {
		advice = ""
	}
	return &failedError{remedyError{err, err.Error() + advice}}
}

// saveAfterFailure saves a run, as a failed step leaves the weights as they were, and returns the
// error with advice. It does not save if the loss diverged or half of an update is done.
func (j *job) saveAfterFailure(failure error) error {
	advice := goOn
	if errors.Is(failure, torch.ErrOutOfMemory) {
		advice = "; to go on, change the flags as said and start it again with --resume"
	}
	diverged := errors.Is(failure, train.ErrDiverged)
	if diverged {
		advice = "" // it would diverge again
	}
	var step *train.StepError
	inStep := errors.As(failure, &step)
	if usage := inFlags(j.flags, failure); !inStep && usage != failure { // saving would not help
		return usage
	}
	failure = withRemedy(failure, true)
	if info := j.training.Info(); diverged && j.dataName == "csv" && info.Mean == nil {
		failure = fmt.Errorf("%w, or --data-set standardise=1 for columns of different scales", failure)
	}
	if j.out == "" {
		return j.withAdvice(failure, "")
	}
	// Outside of a step only this process fails, and the others do not save.
	lost := diverged || inStep && step.Half() || j.group != nil && (j.group.Err() != nil || !inStep)
	if !lost && !j.saveFailed && j.loop.Step > 0 {
		path, err := j.save()
		if path != "" {
			j.endedWithPeers = true
			return j.withAdvice(failure, fmt.Sprintf("\nstep %d is saved in %s%s", j.loop.Step, path, advice))
		}
		failure = fmt.Errorf("%w; nor can step %d be saved: %w", failure, j.loop.Step, err)
	}
	if j.savedStep == 0 {
		return j.withAdvice(failure, "\nthere is no checkpoint in "+j.out)
	}
	return j.withAdvice(failure,
		fmt.Sprintf("\nthe last checkpoint in %s is step %d%s", j.out, j.savedStep, advice))
}

// limitGarbage keeps the garbage in Go's heap below 16 MiB and returns the old GOGC. By default used batches
// may take as much memory as the data set. The data set has no pointers, so collections are cheap.
func limitGarbage() (before int) {
	system.TrimProcess() // after reading data and planning
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return debug.SetGCPercent(int(min(max(100*16<<20/max(m.HeapAlloc, 1), 5), 100)))
}

// stepLine, validationLine and doneLine are the lines of --format json.
type stepLine struct {
	Step             int64   `json:"step"`
	Loss             float64 `json:"loss"`
	SamplesPerSecond float64 `json:"samples_per_s"`
	PeakBytes        []int64 `json:"peak_bytes"`
}

type doneLine struct {
	Done           bool     `json:"done"`
	Steps          int64    `json:"steps"`
	TestAccuracy   *float64 `json:"test_accuracy,omitempty"`
	TestMSE        *float64 `json:"test_mse,omitempty"` // for regression, in place of TestAccuracy
	ParamsSHA256   string   `json:"params_sha256"`
	StepMedian     *float64 `json:"step_ms_median"`   // null if no step was left to take
	SafeLimitBytes []int64  `json:"safe_limit_bytes"` // see safeLimit; null if no step was left to take
	// Of the whole process, as the system counts. 0 is unknown.
	ResidentBytes     int64 `json:"resident_bytes"`
	PeakResidentBytes int64 `json:"peak_resident_bytes"`

	checkpoint, trace string // "" without --out and without --trace
}

type validationLine struct {
	Epoch    int      `json:"epoch"` // counted from 0
	Step     int64    `json:"step"`
	Loss     float64  `json:"validation_loss"`
	Accuracy *float64 `json:"validation_accuracy,omitempty"`
	MSE      *float64 `json:"validation_mse,omitempty"`
	Better   bool     `json:"best"`              // so far
	Partial  bool     `json:"partial,omitempty"` // the run has ended within the epoch
}

// reporter shows the progress of a run on stderr, and the outcome or JSON on stdout.
type reporter struct {
	stdout, stderr io.Writer
	lines          *json.Encoder // nil is text
	title          string        // "resnet20 on fashion-mnist"
	devices        []torch.Device
	names          []string // of devices
	last           int64    // the number of the run's last step

	task           *progress.Task                   // nil without a terminal
	state          string                           // of task
	showEvaluation func(what string, done, all int) // without task
	shown          time.Time                        // when progress was shown last
	peaks          peakBytes
	took, speed    []float64 // of steps: milliseconds, samples a second
}

func newReporter(stdout, stderr io.Writer, j *job) *reporter {
	r := &reporter{stdout: stdout, stderr: stderr, title: j.modelName + " on " + j.dataName,
		devices: j.pipe.Devices(), names: j.pipe.Config().DeviceNames(), last: j.last}
	_, live := progress.Width(stderr)
	if j.format == "json" {
		r.lines = json.NewEncoder(stdout)
	} else if live && j.loop.Step < r.last {
		r.task, r.state = progress.New(stderr, "training", ""), "no step was done"
		r.stderr = r.task
	}
	if r.showEvaluation = func(string, int, int) {}; live || r.lines == nil {
		r.showEvaluation = progress.Successive(stderr, "samples")
	}
	return r
}

func (r *reporter) step(s train.StepInfo) error {
	r.took = append(r.took, 1000*s.Duration.Seconds())
	r.speed = append(r.speed, s.SamplesPerSecond)
	r.peaks.add(s)
	if r.lines != nil {
		return r.lines.Encode(stepLine{s.Step, s.Loss, s.SamplesPerSecond, s.Peak})
	}
	text := fmt.Sprintf("step %d/%d  loss %.4f  %.0f samples/s  %s", s.Step, r.last, s.Loss,
		s.SamplesPerSecond, r.memory(s.Peak))
	if r.task != nil {
		r.state = text
		r.task.Note(text)
		r.task.At(len(r.took), len(r.took)+int(r.last-s.Step))
	} else if s.Step == r.last || time.Since(r.shown) >= progress.LineEvery {
		r.shown = time.Now()
		_, err := fmt.Fprintln(r.stderr, text)
		return err
	}
	return nil
}

func (r *reporter) evaluating(what string, done, all int) {
	if r.task != nil {
		r.task.Note(fmt.Sprintf("%s %d/%d", what, done, all))
	} else {
		r.showEvaluation(what, done, all)
	}
}

func (r *reporter) validated(v train.ValidationInfo) error {
	if r.lines != nil {
		return r.lines.Encode(validationLine{v.Epoch, v.Step, *v.Loss, v.Accuracy, v.MSE, v.Better,
			v.Partial})
	}
	text := fmt.Sprintf("epoch %d", v.Epoch+1)
	if v.Partial {
		text += fmt.Sprintf(", ended after step %d", v.Step)
	}
	text += fmt.Sprintf(": validation loss %.4f", *v.Loss)
	if v.MSE != nil {
		text += fmt.Sprintf(", mean squared error %.4g", *v.MSE)
	} else {
		text += fmt.Sprintf(", accuracy %.2f %%", 100**v.Accuracy)
	}
	if v.Better {
		text += ", the best so far"
	}
	_, err := fmt.Fprintln(r.stderr, text)
	return err
}

// endSteps leaves the last step on the terminal.
func (r *reporter) endSteps() {
	if r.task != nil {
		r.task.Line(r.state)
		r.task.End()
		r.task = nil
	}
}

func (r *reporter) memory(bytes []int64) string {
	var parts []string
	for i, d := range r.devices {
		part := fmt.Sprintf("%s %s", r.names[i], formatBytes(bytes[i]))
		if limit := d.Memory().Limit; limit > 0 {
			part += " of " + formatBytes(limit)
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, "  ")
}

// median sorts the numbers.
func median(x []float64) float64 {
	slices.Sort(x)
	return (x[(len(x)-1)/2] + x[len(x)/2]) / 2
}

func (r *reporter) done(o doneLine) error {
	if len(r.took) > 0 {
		o.StepMedian = new(median(r.took))
	}
	if r.lines != nil {
		return r.lines.Encode(o)
	}
	return printTable(r.stdout, func(w io.Writer) {
		fmt.Fprintf(w, "%s: %s done\n", r.title, counted(int(o.Steps), "step"))
		if o.TestMSE != nil {
			fmt.Fprintf(w, "test error\t%.4g (mean squared)\n", *o.TestMSE)
		} else {
			fmt.Fprintf(w, "test accuracy\t%.2f %%\n", 100**o.TestAccuracy)
		}
		if o.StepMedian != nil {
			fmt.Fprintf(w, "speed\t%.0f samples/s, %.3f ms a step (medians)\npeak memory\t%s\n",
				median(r.speed), *o.StepMedian, r.memory(r.peaks))
		}
		if o.SafeLimitBytes != nil {
			n := slices.Max(o.SafeLimitBytes)
			fmt.Fprintf(w, "safe limit\t--memory-limit %d (%s) is enough, whichever stage runs ahead\n", n,
				formatBytes(n))
		}
		if o.PeakResidentBytes > 0 {
			fmt.Fprintf(w, "process\t%s resident, at most %s\n", formatBytes(o.ResidentBytes),
				formatBytes(o.PeakResidentBytes))
		}
		row(w, "params sha256", o.ParamsSHA256)
		for _, file := range [][2]string{{"checkpoint", o.checkpoint}, {"trace", o.trace}} {
			if file[1] != "" {
				row(w, file[0], file[1])
			}
		}
	})
}
