package metrics

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Step has the numbers of a step.
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
// a second one of the same step is left out. A Writer is for one goroutine.
type Writer interface {
	Step(Step) error
	Test(Test) error
	// Sync returns when all that was written would survive a loss of power.
	Sync() error
	Close() error
}

// Seconds is a moment in seconds since 1970 UTC, to a millisecond.
func Seconds(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }

// errNotAscending says that a line is not about a later step than the one before.
var errNotAscending = errors.New("the steps do not ascend")

// add adds a line of a file: of a later step, or of a first test or validation after the last step.
// Fields that it does not know are passed over.
func (h *History) add(text []byte) error {
	var step Step
	var test Test
	if err := errors.Join(json.Unmarshal(text, &step), json.Unmarshal(text, &test)); err != nil {
		return err
	}
	if step.Step < 1 || step.Epoch < 0 {
		return fmt.Errorf("step %d of epoch %d; want a step from 1, an epoch from 0", step.Step, step.Epoch)
	}
	latest, tests := h.lastStep(), h.lastTests()
	of := tests.of(test)
	switch isTest := test.Accuracy != nil || test.MSE != nil; {
	case step.Step < latest || step.Step == latest && !isTest || isTest && step.Step <= *of:
		return fmt.Errorf("step %d after step %d: %w", step.Step, latest, errNotAscending)
	case isTest && test.Validation:
		h.Validations = append(h.Validations, test)
	case isTest:
		h.Tests = append(h.Tests, test)
	default:
		h.Steps = append(h.Steps, step)
	}
	return nil
}

// lastTests is the step of the last test and of the last validation; 0 is none.
type lastTests struct{ test, validation int64 }

func (l *lastTests) of(t Test) *int64 {
	if t.Validation {
		return &l.validation
	}
	return &l.test
}

// isNew reports whether a Test is the first of its kind after its step, and counts it.
func (l *lastTests) isNew(t Test) bool {
	last := l.of(t)
	isNew := t.Step > *last
	*last = max(*last, t.Step)
	return isNew
}

func (h *History) lastTests() (l lastTests) {
	if n := len(h.Tests); n > 0 {
		l.test = h.Tests[n-1].Step
	}
	if n := len(h.Validations); n > 0 {
		l.validation = h.Validations[n-1].Step
	}
	return l
}

// lastStep is the latest step with a line.
func (h *History) lastStep() int64 {
	tests := h.lastTests()
	last := max(tests.test, tests.validation)
	if n := len(h.Steps); n > 0 {
		last = max(last, h.Steps[n-1].Step)
	}
	return last
}
