package main

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/pflag"

	"penstock.example/data"
	"penstock.example/metrics"
	"penstock.example/torch"
	"penstock.example/train"
)

// validateFlags say what is validated at the end of each epoch and of the run, and what follows from it.
type validateFlags struct {
	validate string // a share, test, or "" for none
	patience int
	newest   int // checkpoints that are kept
}

func (f *validateFlags) register(s *pflag.FlagSet) {
	s.Var(&value{read: func(text string) error {
		if x, err := strconv.ParseFloat(text, 64); text != partTest && (err != nil || !(x > 0 && x < 1)) {
			return errors.New("want a share of the samples to train with between 0 and 1, such as 0.1, or test for the data to test with")
		}
		f.validate = text
		return nil
	}}, "validate", "`SHARE` of the samples to train with that is held out, and validated after each epoch, and where --steps ends the run; or test, for the data to test with. With --out the checkpoint with the lowest loss is kept")
	count(s, &f.patience, "patience", 0, "stop after `N` whole epochs in a row in which --validate found no lower loss (default: never)")
	count(s, &f.newest, "keep", 2, "`N` newest checkpoints that are kept, besides the best of --validate")
}

// checkValidate checks the flags against each other.
func (p *plan) checkValidate(s *pflag.FlagSet) error {
	switch {
	case p.patience > 0 && p.validate == "":
		return badUsage("--patience %d: it counts epochs of --validate, which is not there; want both, or neither", p.patience)
	case s.Changed("keep") && p.out == "":
		return badUsage("--keep %d: it is for checkpoints in --out DIR, which is not there", p.newest)
	}
	return nil
}

// held parts the samples to train with: those that are trained with, and those for validation, nil
// where none are held out.
func (p *plan) held(training data.Dataset) (kept, held data.Dataset, err error) {
	if p.validate == "" || p.validate == partTest {
		return training, nil, nil
	}
	share, err := strconv.ParseFloat(p.validate, 64)
	if err != nil {
		return nil, nil, err
	}
	kept, held, err = data.Split(training, share, p.config.Seed)
	if err != nil {
		err = fmt.Errorf("--validate %s: %w", p.validate, err)
	}
	return kept, held, err
}

// validation is what the loop validates after each epoch and at its end; nil is nothing.
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

// saveAfterEpoch saves at the end of an epoch, unless --save-every says when. The best is always saved.
func (j *job) saveAfterEpoch(int) error {
	if j.saveEvery > 0 && (j.loop.Best == nil || j.loop.Best.Step != j.loop.Step) {
		return nil
	}
	_, err := j.save()
	return err
}

// remedyInRun is the error of a run with what to do where memory was short.
func (j *job) remedyInRun(err error) error {
	var step *train.StepError
	var said *remedyError
	switch {
	case errors.As(err, &said): // by a hook
		return err
	case errors.Is(err, torch.ErrOutOfMemory) && !errors.As(err, &step): // in a validation
		return withFlags(err, remedyForTest)
	}
	return withLimit(err, j.remedyInStep(err))
}

// validation takes a validation.
func (m *measures) validation(r train.ValidationInfo) error {
	out := metrics.Test{Step: r.Step, Epoch: r.Epoch, Time: metrics.Seconds(time.Now()), Accuracy: r.Accuracy, MSE: r.MSE, TestLoss: r.Loss, Validation: true}
	return m.each(func(w metrics.Writer) error { return w.Test(out) })
}
