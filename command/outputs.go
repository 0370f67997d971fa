package command

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"penstock.example/data"
	"penstock.example/internal/draw"
	"penstock.example/internal/metrics"
	"penstock.example/internal/option"
	"penstock.example/internal/report"
	"penstock.example/internal/solver"
	"penstock.example/internal/trace"
	"penstock.example/models"
	"penstock.example/torch"
	"penstock.example/train"
)

func (j *job) openMetrics(context.Context, io.Writer) error {
	if j.member.Rank > 0 {
		return nil
	}
	if j.out != "" {
		log, err := metrics.Open(filepath.Join(j.out, metrics.FileName), j.loop.Step)
		if err == nil {
			j.writers = append(j.writers, log)
			err = writeFile(filepath.Join(j.out, flagsFile), j.effective)
		}
		if err == nil && models.IsFolder(j.modelName) {
			err = copySmallFiles(filepath.Join(j.out, "model"), j.folder)
		}
		if err != nil {
			return unwritable("out", j.out, err)
		}
	}
	if j.tensorboard != "" {
		events, err := metrics.OpenEvents(j.tensorboard, j.config.DeviceNames(), j.loop.Step)
		if err != nil {
			return unwritable("tensorboard", j.tensorboard, err)
		}
		j.writers = append(j.writers, events)
	}
	return nil
}

func (j *job) writeStep(s train.StepInfo) error {
	j.epoch = s.Epoch
	out := metrics.Step{Step: s.Step, Epoch: s.Epoch, Time: metrics.Seconds(time.Now()), Loss: s.Loss,
		LR: s.LR, SamplesPerSecond: s.SamplesPerSecond, PeakBytes: s.Peak}
	if j.clipNorm > 0 {
		out.GradNorm = &s.GradNorm
	}
	return j.writers.Step(out)
}

func (j *job) writeTest(out metrics.Test, e train.Evaluation) error {
	out.Time, out.Accuracy, out.MSE = metrics.Seconds(time.Now()), e.Accuracy, e.MSE
	return j.writers.Test(out)
}

func (j *job) evaluate(ctx context.Context) (train.Evaluation, error) {
	return train.Evaluate(ctx, j.pipe, j.test, train.EvaluateConfig{Batch: j.batch,
		OnBatch: func(done, all int) { j.show.evaluating("testing", done, all) }})
}

// testing is the hook of --test-every. A signal interrupts the test, but not in a group.
func (j *job) testing(ctx context.Context) train.Hook {
	if j.group != nil {
		ctx = context.WithoutCancel(ctx)
	}
	return func(s train.StepInfo) error {
		if s.Step%j.testEvery != 0 || s.Step == j.last { // which is tested at the end
			return nil
		}
		tested, err := j.evaluate(ctx)
		switch {
		case err != nil && ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("testing after step %d: %w", s.Step, err)
		}
		return j.writeTest(metrics.Test{Step: s.Step, Epoch: s.Epoch}, tested)
	}
}

func (j *job) validation() *train.Validation {
	set := j.heldOut
	if j.validate == partTest {
		set = j.test
	}
	if set == nil {
		return nil
	}
	return &train.Validation{Set: set, Batch: j.batch, Patience: j.patience,
		OnBatch: func(done, all int) { j.show.evaluating("validating", done, all) },
		OnResult: func(r train.ValidationInfo) error {
			j.peaks.add(train.StepInfo{Peak: j.pipe.Peaks()})
			err := j.writeTest(metrics.Test{Step: r.Step, Epoch: r.Epoch, TestLoss: r.Loss,
				Validation: true}, r.Evaluation)
			return cmp.Or(err, j.show.validated(r))
		}}
}

// listen opens the address of the dashboard before anything is read or measured.
func (j *job) listen(context.Context, io.Writer) (err error) {
	if j.dashboardAt == "" || j.member.Rank > 0 {
		return nil
	}
	if j.listener, err = net.Listen("tcp", j.dashboardAt); err != nil {
		err = badUsage("--dashboard %s: %w", j.dashboardAt, err)
	}
	return err
}

func (j *job) serveDashboard(_ context.Context, stderr io.Writer) (err error) {
	if j.listener == nil {
		return nil
	}
	var past metrics.History
	if j.out != "" {
		past, err = metrics.Read(filepath.Join(j.out, metrics.FileName))
	}
	if err == nil {
		j.live, err = report.NewLive(j.describeRun(), past)
	}
	if err != nil {
		return err
	}
	j.live.Host, _, _ = net.SplitHostPort(j.dashboardAt)
	j.live.Serve(j.listener)
	j.writers = append(j.writers, j.live)
	_, err = fmt.Fprintf(stderr, "dashboard: http://%v/\n", j.listener.Addr())
	return err
}

// recordStep is a hook. It makes the pipe record the timeline of one step, and puts it on the page.
func (j *job) recordStep(s train.StepInfo) error {
	j.pipe.SetRecord(s.Step+1 == j.recorded)
	if s.Timeline == nil || s.Step != j.recorded || j.member.Rank > 0 {
		return nil
	}
	j.page = new(j.describeRun())
	j.page.Step, j.page.Rows, j.page.Ran, j.page.Plan = s.Step, j.batch, s.Timeline, j.pipe.Plan()
	if l := j.loop.Loader; l.Position().Batch == l.Batches() {
		j.page.Rows = l.LastBatch()
	}
	planned, predicted, err := j.page.Plan.Timeline()
	if err != nil {
		return err
	}
	if predicted {
		j.page.Planned = &planned
	}
	return j.updatePage()
}

func (j *job) updatePage() (err error) {
	if j.live != nil {
		err = j.live.SetRun(*j.page)
	}
	if j.out == "" || err != nil {
		return err
	}
	return unwritable("out", j.out, j.page.WriteFile(filepath.Join(j.out, report.FileName)))
}

// recordEnd writes the end to the run's page, or to its old one if a resumed run recorded no step.
func (j *job) recordEnd(end error) error {
	if j.member.Rank > 0 || j.out == "" && j.live == nil {
		return nil
	}
	ended := &report.Ended{How: "finished", Time: metrics.Seconds(time.Now())}
	if failed := (*failedError)(nil); errors.As(end, &failed) {
		end = failed.error // without advice
	}
	if end != nil {
		ended.How, ended.Why = "failed", message(end)
	}
	if errors.Is(end, errInterrupted) {
		ended.How = "interrupted"
	}
	if j.page == nil {
		r, err := report.ReadFile(filepath.Join(j.out, report.FileName))
		if r.Last = j.last; j.from == nil || err != nil {
			r = j.describeRun()
		}
		j.page = &r
	}
	j.page.Ended = ended
	err := j.updatePage()
	if j.live != nil {
		j.live.End(ended.How)
	}
	if end != nil {
		return nil
	}
	return err
}

func (j *job) describeRun() report.Run {
	config := j.pipe.Config()
	batch := fmt.Sprintf("%d samples in %s", j.batch, counted(config.Chunks, "micro-batch"))
	if j.accumulate > 1 {
		batch += fmt.Sprintf(", %d batches in a step", j.accumulate)
	}
	facts := []report.Fact{
		{Name: "Command", Value: strings.Join(append([]string{programName}, j.args...), " ")},
		{Name: "Batch", Value: batch},
		{Name: "Cut", Value: option.Joined(config.Balance) + " layers"},
		{Name: "Schedule", Value: cmp.Or(j.schedule, "gpipe")},
		{Name: "Recomputation", Value: config.Checkpoint.String()},
		{Name: "Optimizer", Value: fmt.Sprintf("%s, learning rate %g, %s", j.optimizerName, j.update.LR,
			j.lrSchedule.name)},
		{Name: "Threads", Value: fmt.Sprintf("%d within an operator", max(config.Threads, 1))},
	}
	if j.group != nil {
		facts = append(facts, report.Fact{Name: "Processes", Value: fmt.Sprint(j.group.Size())})
	}
	r := report.DescribePipe(j.pipe)
	r.Title, r.Last = j.modelName+" on "+j.dataName, j.last
	r.Facts = append(facts, originFacts("Recorded")...)
	if j.from != nil {
		r.From = j.from.Step
	}
	return r
}

func originFacts(name string) []report.Fact {
	return []report.Fact{
		{Name: "Versions", Value: fmt.Sprintf("penstock %s, libtorch %s", ownVersion(), torch.Version())},
		{Name: name, Value: time.Now().Format("2 January 2006, 15:04 MST")},
	}
}

func newReport() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "report DIR|PLAN --out FILE.html",
		Short: "Write a page about a run or a plan, to look at in a browser",
		Long: `Write a page about a run of penstock train --out DIR, or a plan of penstock plan --out
PLAN. It shows a step as it was planned and as it ran, on one time axis, with the bytes of
each device; loss, accuracy, learning rate and speed over the steps; the layers and their
costs; and with --checkpoint optimal the time of a step over memory.

The page is one file that loads nothing. It can be written while the run goes on; penstock
train --dashboard shows it live.`,
		Example: `  penstock report out/run --out report.html
  penstock report plan.json --out plan.html`,
		Args: arguments("DIR, or PLAN,", "--out"),
	}
	return resultVerb(cmd, "`FILE` to write, of HTML", func(cmd *cobra.Command, args []string) (r result,
		err error) {
		page, err := readPage(cmd, args[0])
		if err != nil {
			return r, err
		}
		for _, c := range page.Run.Chains {
			points, err := solver.Curve(cmd.Context(), c.Chain, solver.Options{})
			if err != nil {
				return r, err
			}
			page.Curves = append(page.Curves, report.NewCurve(c.Stage, c.Chain, points, page.Run.Plan))
		}
		text, err := page.HTML()
		what := page.Run.Title
		if n := len(page.History.Steps); n > 0 {
			what += ": " + counted(n, "step")
		}
		return result{what, func(w io.Writer) { fmt.Fprintln(w, what) }, text}, err
	})
}

// readPage reads a plan, or the recorded step and the metrics of a run. A run may lack either.
func readPage(cmd *cobra.Command, from string) (page report.Page, err error) {
	refuse := func(problem string) error {
		return badUsage("%s: %s; want the directory of a run, which penstock train --out has written, or a "+
			"file of penstock plan --out", from, problem)
	}
	if info, err := os.Stat(from); err == nil && !info.IsDir() {
		line, err := readParsed(cmd, from, func(text []byte) (line struct{ Page report.Run }, err error) {
			return line, json.Unmarshal(text, &line)
		})
		if page.Run = line.Page; err == nil && page.Run.Plan == nil {
			err = refuse("there is no plan in it to show")
		}
		return page, err
	}
	var noStep, noNumbers error
	page.Run, noStep = report.ReadFile(filepath.Join(from, report.FileName))
	page.History, noNumbers = metrics.Read(filepath.Join(from, metrics.FileName))
	for _, err := range []error{noStep, noNumbers} {
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return page, wrongInput(err)
		}
	}
	if noStep != nil {
		page.Run.Title = filepath.Base(from)
		if len(page.History.Steps) == 0 {
			return page, refuse("no step of a run there")
		}
	}
	return page, nil
}

// stepToRecord returns the step to record for the page and the trace; 0 is none. The first two steps touch
// fresh memory, and an epoch's last batch may be smaller.
func (j *job) stepToRecord() int64 {
	l, accumulate := &j.loop, max(j.accumulate, 1)
	if j.traceFile == "" && j.out == "" && j.dashboardAt == "" {
		return 0
	}
	steps := func(batches int) int64 { return int64((batches + accumulate - 1) / accumulate) }
	epoch, left := steps(l.Loader.Batches()), steps(l.Loader.Batches()-l.Loader.Position().Batch)
	for _, k := range []int64{3, 4, 2, 1} {
		if l.Step+k <= j.last && (l.Loader.LastBatch() == j.batch || (k-left)%epoch != 0) {
			return l.Step + k
		}
	}
	return min(l.Step+3, j.last)
}

func (j *job) openTrace(context.Context, io.Writer) error {
	if j.traceFile == "" || j.member.Rank > 0 {
		return nil
	}
	inputs, err := data.Files(j.dataName, j.dataDir, j.data)
	if err != nil {
		return err
	}
	if j.from != nil {
		inputs = append(inputs, j.from.Paths()...)
	}
	return probe("trace", j.traceFile, inputs...)
}

func (j *job) writeTrace(stderr io.Writer) error {
	switch {
	case j.traceFile == "" || j.member.Rank > 0:
		return nil
	case j.page == nil:
		fmt.Fprintf(stderr, "no step was recorded, %s is not written\n", j.traceFile)
		return nil
	}
	fmt.Fprintf(stderr, "step %d, recorded in %s\n", j.recorded, j.traceFile)
	var workers []string
	for i, name := range j.pipe.Config().DeviceNames() {
		workers = append(workers, fmt.Sprintf("worker %d · %s", i, name))
	}
	if filepath.Ext(j.traceFile) == ".svg" {
		return writeFile(j.traceFile, draw.SVG(*j.page.Ran, draw.Options{Workers: workers, Bytes: formatBytes,
			Title: fmt.Sprintf("step %d", j.recorded)}))
	}
	return writeFile(j.traceFile, trace.JSON(*j.page.Ran, workers))
}
