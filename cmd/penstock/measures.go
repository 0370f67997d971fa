package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"penstock.example/metrics"
	"penstock.example/torch"
	"penstock.example/train"
)

// measures is what takes the numbers of each step: files, and who looks at the run. Its zero value
// takes nothing. In a group rank 0 has it.
type measures struct {
	writers []metrics.Writer
	clipped bool // gradients have a norm
	epoch   int  // of the last step
}

// checkDirectories refuses an --out or a --tensorboard that is no directory, before anything is made.
func (j *job) checkDirectories(context.Context, io.Writer) error {
	if err := checkDirectory("out", j.out); err != nil || j.member.Rank > 0 {
		return err
	}
	return checkDirectory("tensorboard", j.tensorboard)
}

// checkDirectory refuses a path that is no directory, or below what is none. Without a path it does nothing.
func checkDirectory(flag, path string) error {
	if path == "" {
		return nil
	}
	for dir := filepath.Clean(path); ; dir = filepath.Dir(dir) {
		switch info, err := os.Stat(dir); {
		case err == nil && info.IsDir() || dir == filepath.Dir(dir):
			return nil
		case err == nil:
			return badUsage("--%s %s: %s is no directory; want one, or a name that there is not", flag, path, dir)
		}
	}
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
		if err := j.keepConfig(); err != nil {
			return err
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
	out := metrics.Step{Step: s.Step, Epoch: s.Epoch, Time: metrics.Seconds(time.Now()), Loss: s.Loss, LR: s.LR,
		SamplesPerSecond: s.SamplesPerSecond, PeakBytes: s.Peak}
	if m.clipped {
		out.GradNorm = &s.GradNorm
	}
	return m.each(func(w metrics.Writer) error { return w.Step(out) })
}

// score is how well the model does on the test data: one of the two.
type score struct{ accuracy, mse *float64 }

// score tests the model.
func (j *job) score(ctx context.Context) (s score, err error) {
	e, err := train.Evaluate(ctx, j.pipe, j.test, train.EvaluateConfig{Batch: j.batch,
		OnBatch: func(done, all int) { j.show.evaluating("testing", done, all) }})
	return score{e.Accuracy, e.MSE}, err
}

// test takes the score after a step.
func (m *measures) test(step int64, s score) error {
	out := metrics.Test{Step: step, Epoch: m.epoch, Time: metrics.Seconds(time.Now()), Accuracy: s.accuracy, MSE: s.mse}
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
		tested, err := j.score(ctx)
		switch {
		case err != nil && ctx.Err() != nil:
			return nil
		case errors.Is(err, torch.ErrOutOfMemory):
			return withFlags(err, remedyForTest)
		case err != nil:
			return fmt.Errorf("testing after step %d: %w", s.Step, err)
		}
		return j.measures.test(s.Step, tested)
	})
}
