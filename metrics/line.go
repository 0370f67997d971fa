package metrics

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"
)

// Step is what is known of a step that was taken.
type Step struct {
	Step             int64    `json:"step"`  // counted from 1
	Epoch            int      `json:"epoch"` // counted from 0
	Time             float64  `json:"time"`  // of the step's end, in seconds since 1970 UTC (Seconds)
	Loss             float64  `json:"loss"`
	LR               float64  `json:"lr"`
	GradNorm         *float64 `json:"grad_norm"` // before clipping; nil if it was not computed
	SamplesPerSecond float64  `json:"samples_per_s"`
	PeakBytes        []int64  `json:"peak_bytes"` // the most that was live during the step, by device
}

// Test is how well the model does after a step on the test data or, at the end of an epoch, on those for
// validation: the share that it gets right or, for regression, its mean squared error. The other is
// nil.
type Test struct {
	Step       int64    `json:"step"`
	Epoch      int      `json:"epoch"`
	Time       float64  `json:"time"`
	Accuracy   *float64 `json:"accuracy,omitempty"` // from 0 to 1
	MSE        *float64 `json:"mse,omitempty"`
	TestLoss   *float64 `json:"test_loss,omitempty"` // nil if it was not computed
	Validation bool     `json:"validation,omitempty"`
}

// History is all that a run has measured, by ascending step.
type History struct {
	Steps       []Step `json:"steps"`
	Tests       []Test `json:"tests"`
	Validations []Test `json:"validations,omitempty"`
}

// Writer takes what a run measures, step by step. A Test follows the Step that it was made after, and
// one that was taken before is left out. A Writer is for one goroutine.
type Writer interface {
	Step(Step) error
	Test(Test) error
	// Sync returns when all that was written would survive a loss of power.
	Sync() error
	Close() error
}

// Seconds is a moment in seconds since 1970 UTC, to a millisecond.
func Seconds(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }

// line is a line of a file as it is read: of a step or of a test.
type line struct {
	Step
	Accuracy   *float64 `json:"accuracy"`
	MSE        *float64 `json:"mse"`
	TestLoss   *float64 `json:"test_loss"`
	Validation bool     `json:"validation"`
}

// tested says whether the line is of a test.
func (l line) tested() bool { return l.Accuracy != nil || l.MSE != nil }

// test is the Test of a line that is of one.
func (l line) test() Test {
	return Test{l.Step.Step, l.Epoch, l.Time, l.Accuracy, l.MSE, l.TestLoss, l.Validation}
}

// parse reads a line without its end. Fields that it does not know are passed over.
func parse(text []byte) (line, error) {
	var l line
	if err := json.Unmarshal(text, &l); err != nil {
		return line{}, err
	}
	if l.Step.Step < 1 || l.Epoch < 0 {
		return line{}, fmt.Errorf("step %d of epoch %d; want a step from 1, an epoch from 0", l.Step.Step, l.Epoch)
	}
	return l, nil
}

// format writes a line. Numbers that JSON has no form for are refused.
func format(step any) ([]byte, error) {
	text, err := json.Marshal(step)
	return append(bytes.TrimSpace(text), '\n'), err
}

// errDisorder says that a line is not about a later step than the one before.
var errDisorder = errors.New("the steps do not ascend")

// add adds a line, which must be of a later step, or of a first test or validation after the last step.
func (h *History) add(l line) error {
	last, tested := h.last()
	latest := max(last, tested.test, tested.validation)
	same := *tested.of(l.Validation)
	switch {
	case l.tested() && (l.Step.Step < latest || l.Step.Step <= same), !l.tested() && l.Step.Step <= latest:
		return fmt.Errorf("step %d after step %d: %w", l.Step.Step, latest, errDisorder)
	case l.tested() && l.Validation:
		h.Validations = append(h.Validations, l.test())
	case l.tested():
		h.Tests = append(h.Tests, l.test())
	default:
		h.Steps = append(h.Steps, l.Step)
	}
	return nil
}

// tested is the step of the last test and of the last validation; 0 is none.
type tested struct{ test, validation int64 }

// of is that of one of the two.
func (t *tested) of(validation bool) *int64 {
	if validation {
		return &t.validation
	}
	return &t.test
}

// first reports whether a Test is the first of its kind after its step, and counts it.
func (t *tested) first(test Test) bool {
	last := t.of(test.Validation)
	if test.Step <= *last {
		return false
	}
	*last = test.Step
	return true
}

// last is the step of the last Step, and those of the last tests.
func (h *History) last() (step int64, t tested) {
	if n := len(h.Steps); n > 0 {
		step = h.Steps[n-1].Step
	}
	if n := len(h.Tests); n > 0 {
		t.test = h.Tests[n-1].Step
	}
	if n := len(h.Validations); n > 0 {
		t.validation = h.Validations[n-1].Step
	}
	return step, t
}

// finite reports whether there is a number to write.
func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }
