package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"penstock.example/internal/disk"
	"penstock.example/internal/metrics"
	"penstock.example/internal/report"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/remat"
	"penstock.example/torch"
	"penstock.example/train"
)

// measures writes the numbers of each step to files, and to who looks at the run. Its zero value
// writes nothing. In a group rank 0 has it.
type measures struct {
	writers []metrics.Writer
	clipped bool // gradients have a norm
	epoch   int  // of the last step
}

// openMeasures opens the files that get a line for each step.
func (j *job) openMeasures(context.Context, io.Writer) error {
	if j.member.Rank > 0 {
		return nil
	}
	m := &j.measures
	m.clipped = j.clipNorm > 0
	if j.from != nil {
		m.epoch = j.from.Position.Epoch
	}
	if j.out != "" {
		log, err := metrics.Open(filepath.Join(j.out, metrics.FileName), j.loop.Step)
		if err != nil {
			return unwritable("out", j.out, err)
		}
		m.writers = append(m.writers, log)
		err = disk.Write(filepath.Join(j.out, configName), func(w io.Writer) error {
			_, err := w.Write(j.effective)
			return err
		})
		if err != nil {
			return unwritable("out", j.out, err)
		}
	}
	if j.tensorboard != "" {
		events, err := metrics.OpenEvents(j.tensorboard, j.config.DeviceNames(), j.loop.Step)
		if err != nil {
			return unwritable("tensorboard", j.tensorboard, err)
		}
		m.writers = append(m.writers, events)
	}
	return nil
}

// step is a train.Hook.
func (m *measures) step(s train.StepInfo) error {
	m.epoch = s.Epoch
	out := metrics.Step{Step: s.Step, Epoch: s.Epoch, Time: metrics.Seconds(time.Now()), Loss: s.Loss,
		LR: s.LR, SamplesPerSecond: s.SamplesPerSecond, PeakBytes: s.Peak}
	if m.clipped {
		out.GradNorm = &s.GradNorm
	}
	return m.each(func(w metrics.Writer) error { return w.Step(out) })
}

// validation writes a validation.
func (m *measures) validation(r train.ValidationInfo) error {
	out := metrics.Test{Step: r.Step, Epoch: r.Epoch, Time: metrics.Seconds(time.Now()),
		Accuracy: r.Accuracy, MSE: r.MSE, TestLoss: r.Loss, Validation: true}
	return m.each(func(w metrics.Writer) error { return w.Test(out) })
}

// test writes the score after a step.
func (m *measures) test(step int64, e train.Evaluation) error {
	out := metrics.Test{Step: step, Epoch: m.epoch, Time: metrics.Seconds(time.Now()), Accuracy: e.Accuracy,
		MSE: e.MSE}
	return m.each(func(w metrics.Writer) error { return w.Test(out) })
}

func (m *measures) sync() error  { return m.each(metrics.Writer.Sync) }
func (m *measures) close() error { return m.each(metrics.Writer.Close) }

func (m *measures) each(f func(metrics.Writer) error) error {
	var errs []error
	for _, w := range m.writers {
		errs = append(errs, f(w))
	}
	return errors.Join(errs...)
}

// evaluate tests the model.
func (j *job) evaluate(ctx context.Context) (train.Evaluation, error) {
	return train.Evaluate(ctx, j.pipe, j.test, train.EvaluateConfig{Batch: j.batch,
		OnBatch: func(done, all int) { j.show.evaluating("testing", done, all) }})
}

// testing is the hook of --test-every. A signal ends the test: the run then saves and ends, as it does
// anyway. In a group all end after the same step, so the test is finished.
func (j *job) testing(ctx context.Context) train.Hook {
	if j.group != nil {
		ctx = context.WithoutCancel(ctx)
	}
	return train.Every(j.testEvery, func(s train.StepInfo) error {
		if s.Step == j.last { // tested at the end
			return nil
		}
		tested, err := j.evaluate(ctx)
		switch {
		case err != nil && ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("testing after step %d: %w", s.Step, err)
		}
		return j.measures.test(s.Step, tested)
	})
}

// validation returns the validation after each epoch and at the end; nil without --validate.
func (j *job) validation() *train.Validation {
	set := j.heldOut
	if j.validate == partTest {
		set = j.test
	}
	if set == nil {
		return nil
	}
	v := &train.Validation{Set: set, Batch: j.batch, Patience: j.patience}
	v.OnBatch = func(done, all int) { j.show.evaluating("validating", done, all) }
	v.OnResult = func(r train.ValidationInfo) error {
		j.peaks.add(train.StepInfo{Peak: j.pipe.Peaks()})
		if err := j.show.validated(r); err != nil {
			return err
		}
		return j.measures.validation(r)
	}
	return v
}

// dashboard serves the page of the run while it goes on. Its zero value serves nothing.
type dashboard struct {
	listener net.Listener
	live     *report.Live
	server   *http.Server
	over     chan struct{} // closed when the server has ended
}

// listen opens the address of the dashboard before anything is read or measured.
func (j *job) listen(context.Context, io.Writer) (err error) {
	if j.dashboardAt == "" || j.member.Rank > 0 {
		return nil
	}
	if j.dashboard.listener, err = net.Listen("tcp", j.dashboardAt); err != nil {
		err = badUsage("--dashboard %s: %w", j.dashboardAt, err)
	}
	return err
}

// serveDashboard starts the server of the page.
func (j *job) serveDashboard(_ context.Context, stderr io.Writer) (err error) {
	d := &j.dashboard
	if d.listener == nil {
		return nil
	}
	var past metrics.History
	if j.out != "" {
		if past, err = metrics.Read(filepath.Join(j.out, metrics.FileName)); err != nil {
			return err
		}
	}
	if d.live, err = report.NewLive(j.describeRun(), past); err != nil {
		return err
	}
	d.live.Host, _, _ = net.SplitHostPort(j.dashboardAt)
	d.server = &http.Server{Handler: d.live, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute}
	d.over = make(chan struct{})
	go func() {
		d.server.Serve(d.listener) // ends with the server
		close(d.over)
	}()
	j.measures.writers = append(j.measures.writers, d.live)
	_, err = fmt.Fprintf(stderr, "dashboard: http://%v/\n", d.listener.Addr())
	return err
}

// close gives pages two seconds to hear how the run ended.
func (d *dashboard) close() error {
	switch {
	case d.listener == nil:
		return nil
	case d.server == nil:
		return d.listener.Close()
	}
	d.live.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if d.server.Shutdown(ctx) != nil {
		d.server.Close() // of those who do not read
	}
	<-d.over
	return nil
}

// recordStep is a hook that has a step recorded, and updates the page of the run with it.
func (j *job) recordStep(s train.StepInfo) error {
	j.pipe.SetRecord(s.Step+1 == j.recorded)
	if s.Timeline == nil || s.Step != j.recorded || j.member.Rank > 0 {
		return nil
	}
	r := j.describeRun()
	r.Step, r.Ran, r.Plan = s.Step, s.Timeline, j.pipe.Plan()
	planned, predicted, err := r.Plan.Timeline()
	if err != nil {
		return err
	}
	if predicted {
		r.Planned = &planned
	}
	j.page = &r
	return j.updatePage()
}

// updatePage shows the run on the dashboard and keeps it for its page.
func (j *job) updatePage() error {
	if j.dashboard.live != nil {
		if err := j.dashboard.live.SetRun(*j.page); err != nil {
			return err
		}
	}
	if j.out == "" {
		return nil
	}
	return unwritable("out", j.out, j.page.WriteFile(filepath.Join(j.out, report.FileName)))
}

// recordEnd records how the run ended. If this part of a resumed run has recorded no step the page
// of the part before stays. After a failed run an error of recording is ignored.
func (j *job) recordEnd(end error) error {
	if j.member.Rank > 0 || j.out == "" && j.dashboard.live == nil {
		return nil
	}
	ended := &report.Ended{How: "finished", Time: metrics.Seconds(time.Now())}
	switch {
	case errors.Is(end, errInterrupted):
		ended.How = "interrupted"
	case end != nil:
		ended.How = "failed"
	}
	if failed := (*failedError)(nil); errors.As(end, &failed) {
		end = failed.error
	}
	if end != nil {
		ended.Why = message(end)
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
	if j.dashboard.live != nil {
		j.dashboard.live.End(ended.How)
	}
	if end != nil {
		return nil
	}
	return err
}

// describeRun describes the run before its first step.
func (j *job) describeRun() report.Run {
	config := j.pipe.Config()
	batch := fmt.Sprintf("%d samples in %s", j.batch, counted(config.Chunks, "micro-batch"))
	if j.accumulate > 1 {
		batch += fmt.Sprintf(", %d batches in a step", j.accumulate)
	}
	facts := []report.Fact{
		{Name: "Command", Value: strings.Join(append([]string{"penstock"}, j.args...), " ")},
		{Name: "Batch", Value: batch},
		{Name: "Cut", Value: numbers(config.Balance) + " layers"},
		{Name: "Schedule", Value: cmp.Or(j.runOptions.schedule, "gpipe")},
		{Name: "Recomputation", Value: config.Checkpoint.String()},
		{Name: "Optimizer", Value: fmt.Sprintf("%s, learning rate %g, %s", j.optimizerName, j.update.LR,
			j.lrSchedule)},
		{Name: "Threads", Value: fmt.Sprintf("%d within an operator", max(config.Threads, 1))},
	}
	if j.group != nil {
		facts = append(facts, report.Fact{Name: "Processes", Value: fmt.Sprint(j.group.Size())})
	}
	facts = append(facts, report.Fact{Name: "Versions", Value: fmt.Sprintf("penstock %s, libtorch %s",
		ownVersion(), torch.Version())},
		report.Fact{Name: "Recorded", Value: time.Now().Format("2 January 2006, 15:04 MST")})
	r := report.Run{Title: j.modelName + " on " + j.dataName, Last: j.last, Facts: facts,
		Layers: describeLayers(j.model, j.pipe), Chains: describeChains(j.pipe)}
	for _, d := range j.pipe.Devices() {
		r.Limits = append(r.Limits, d.Memory().Limit)
	}
	return r
}

// describeChains describes the units of a pipe's stages, if they were measured.
func describeChains(p *pipe.Pipe) (out []report.Chain) {
	for i, c := range p.Chains() {
		if len(c.Layers) > 0 { // something is trained
			later := c.Footprint.Chain(c.UnitTimes, c.Loss.Backward, c.Prologue, remat.Adds)
			out = append(out, report.Chain{Stage: i, Chain: later})
		}
	}
	return out
}

// describeLayers lists the layers of a model in a pipe, with measured costs: of each layer after a
// cut by time, of each unit after planning.
func describeLayers(model *nn.Sequential, on *pipe.Pipe) (out []report.Layer) {
	known := map[string]nn.LayerSummary{}
	for _, s := range nn.Summary(model) {
		known[s.Name] = s
	}
	for _, l := range on.Model().Layers() {
		out = append(out, report.Layer{Name: l.Name, Type: known[l.Name].Type,
			Parameters: known[l.Name].Bytes})
	}
	if p := on.Config().Profile; p != nil && len(p.Layers) == len(out) {
		for i, l := range p.Layers {
			out[i].Forward, out[i].Backward, out[i].Saved = l.Forward, l.Backward, l.Saved
		}
		return out
	}
	first := 0
	stages := on.Stages()
	for i, c := range on.Chains() {
		at, end := first, first+len(stages[i].Layers)
		for unit, n := range c.Units {
			if at >= end {
				break
			}
			out[at].Of = min(n, end-at) // a loss that ends a unit is no layer of the model
			if k := unit - c.Prologue; k < 0 {
				out[at].Forward = c.UnitTimes[unit].ForwardNoGrad / 1e6
			} else if k < len(c.Layers) {
				l := c.Layers[k]
				out[at].Forward, out[at].Backward, out[at].Saved = l.Forward/1e6, l.Later()/1e6, l.Saved
			}
			at += n
		}
		first = end
	}
	return out
}
