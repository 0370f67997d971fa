// Package metrics records the numbers of a training run after each step: as lines of JSON, which a
// resumed run continues without gaps or repetitions ([Log]), and as event files for TensorBoard
// ([Events]).
//
//	{"step":7,"epoch":0,"time":1763838000.123,"loss":0.61,"lr":0.1,"grad_norm":1.2,"samples_per_s":912.5,"peak_bytes":[8123456]}
//	{"step":7,"epoch":0,"time":1763838001.456,"accuracy":0.8125}
//
// The first line is a [Step], the second a [Test]. Fields may be added, but not removed.
package metrics

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Step has the numbers of a training step.
type Step struct {
	Step             int64    `json:"step"`  // counted from 1
	Epoch            int      `json:"epoch"` // counted from 0
	Time             float64  `json:"time"`  // of the step's end, in seconds since 1970 UTC (Seconds)
	Loss             float64  `json:"loss"`
	LR               float64  `json:"lr"`
	GradNorm         *float64 `json:"grad_norm"` // before clipping; nil if it was not computed
	SamplesPerSecond float64  `json:"samples_per_s"`
	PeakBytes        []int64  `json:"peak_bytes"` // the peak during the step, by device
}

// Test is a result on the test data, or on the validation data, after a step. It has the accuracy
// or, for regression, the mean squared error; the other is nil.
type Test struct {
	Step       int64    `json:"step"`
	Epoch      int      `json:"epoch"`
	Time       float64  `json:"time"`
	Accuracy   *float64 `json:"accuracy,omitempty"` // from 0 to 1
	MSE        *float64 `json:"mse,omitempty"`
	TestLoss   *float64 `json:"test_loss,omitempty"` // nil if it was not computed
	Validation bool     `json:"validation,omitempty"`
}

// History has all numbers of a run, by ascending step.
type History struct {
	Steps       []Step `json:"steps"`
	Tests       []Test `json:"tests"`
	Validations []Test `json:"validations,omitempty"`
}

// Writer takes the numbers of a run. A Test follows its Step. A Writer is for one goroutine.
type Writer interface {
	Step(Step) error
	Test(Test) error
	// Sync returns when everything written survives a loss of power.
	Sync() error
	Close() error
}

// Writers writes to each of several.
type Writers []Writer

func (w Writers) Step(s Step) error { return w.each(func(one Writer) error { return one.Step(s) }) }
func (w Writers) Test(t Test) error { return w.each(func(one Writer) error { return one.Test(t) }) }
func (w Writers) Sync() error       { return w.each(Writer.Sync) }
func (w Writers) Close() error      { return w.each(Writer.Close) }

func (w Writers) each(f func(Writer) error) error {
	var errs []error
	for _, one := range w {
		errs = append(errs, f(one))
	}
	return errors.Join(errs...)
}

// Seconds converts a time to seconds since 1970 UTC, to the millisecond.
func Seconds(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }

// add adds a line of a file: a later step, or the first test or validation after the last step. It
// ignores unknown fields.
func (h *History) add(text []byte) error {
	var step Step
	var test Test
	if err := errors.Join(json.Unmarshal(text, &step), json.Unmarshal(text, &test)); err != nil {
		return err
	}
	isTest, tests, latest := test.Accuracy != nil || test.MSE != nil, &h.Tests, h.lastStep()
	if test.Validation {
		tests = &h.Validations
	}
	switch {
	case step.Step < max(latest, 1), step.Step == latest && (!isTest || lastOf(*tests) == latest):
		return fmt.Errorf("step %d after step %d", step.Step, latest)
	case isTest:
		*tests = append(*tests, test)
	default:
		h.Steps = append(h.Steps, step)
	}
	return nil
}

// lastStep is the latest step with a line; 0 is none.
func (h *History) lastStep() (last int64) {
	if n := len(h.Steps); n > 0 {
		last = h.Steps[n-1].Step
	}
	return max(last, lastOf(h.Tests), lastOf(h.Validations))
}

// lastOf is the step of the last test; 0 is none.
func lastOf(tests []Test) (last int64) {
	if n := len(tests); n > 0 {
		last = tests[n-1].Step
	}
	return last
}
