package report

import "penstock.example/metrics"

// mostSteps is about how many steps a page has: more than a screen has points.
const mostSteps = 20000

// columns is a History as the page's script gets it: an array for each step, in this order, and for
// each test and validation.
type columns struct {
	Steps [][]any `json:"steps"` // step, epoch, time, loss, lr, grad norm or null, samples/s, peak bytes by device
	// step, epoch, time, and those that were computed of accuracy, loss, mean squared error
	Tests       [][]any `json:"tests"`
	Validations [][]any `json:"validations"`
}

// newColumns is a history with about mostSteps steps at most: of those that are next to each other, the ones with
// the least and with the greatest loss.
func newColumns(h metrics.History) columns {
	out := columns{Steps: [][]any{}, Tests: testRows(h.Tests), Validations: testRows(h.Validations)}
	each := (2*len(h.Steps) + mostSteps - 1) / mostSteps
	for from := 0; from < len(h.Steps); {
		if len(h.Steps) <= mostSteps {
			out.Steps = append(out.Steps, stepRow(h.Steps[from]))
			from++
			continue
		}
		to := min(from+each, len(h.Steps))
		least, most := from, from
		for i := from; i < to; i++ {
			if h.Steps[i].Loss < h.Steps[least].Loss {
				least = i
			}
			if h.Steps[i].Loss > h.Steps[most].Loss {
				most = i
			}
		}
		for i := from; i < to; i++ {
			if i == least || i == most || i == len(h.Steps)-1 {
				out.Steps = append(out.Steps, stepRow(h.Steps[i]))
			}
		}
		from = to
	}
	return out
}

func stepRow(s metrics.Step) []any {
	return []any{s.Step, s.Epoch, s.Time, s.Loss, s.LR, s.GradNorm, s.SamplesPerSecond, s.PeakBytes}
}

func testRows(list []metrics.Test) [][]any {
	out := [][]any{}
	for _, t := range list {
		out = append(out, []any{t.Step, t.Epoch, t.Time, t.Accuracy, t.TestLoss, t.MSE})
	}
	return out
}

// payload is all that the page's script gets.
type payload struct {
	View    view       `json:"view"`
	History columns    `json:"history"`
	Curves  []Curve    `json:"curves"`
	Step    *StepCurve `json:"step,omitempty"`
	Live    string     `json:"live,omitempty"`    // where further events come from
	Edition int        `json:"edition,omitempty"` // of View, for those
}
