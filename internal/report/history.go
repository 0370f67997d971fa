package report

import (
	"cmp"
	"slices"

	"penstock.example/internal/metrics"
)

// mostSteps is about how many steps a page has. A screen has fewer points.
const mostSteps = 20000

// columns is a History for the page's script: an array for each step, test and validation.
type columns struct {
	// step, epoch, time, loss, lr, grad norm or null, samples a second, peak bytes by device
	Steps       [][]any `json:"steps"`
	Tests       [][]any `json:"tests"` // step, epoch, time, accuracy, loss, mean squared error
	Validations [][]any `json:"validations"`
	Peaks       []int64 `json:"peaks"` // the greatest since the run was resumed, by device
}

// newColumns thins out a history to about mostSteps steps. Of adjacent steps it keeps the two with
// the least and the greatest loss. Peaks count after step from, where the run was resumed: cut and
// limits may have changed.
func newColumns(h metrics.History, from int64) columns {
	out := columns{Steps: [][]any{}, Tests: testRows(h.Tests), Validations: testRows(h.Validations),
		Peaks: []int64{}}
	for _, s := range h.Steps {
		for i := 0; i < len(s.PeakBytes) && s.Step > from; i++ {
			if i == len(out.Peaks) {
				out.Peaks = append(out.Peaks, 0)
			}
			out.Peaks[i] = max(out.Peaks[i], s.PeakBytes[i])
		}
	}
	chunk := 1
	if len(h.Steps) > mostSteps {
		chunk = (2*len(h.Steps) + mostSteps - 1) / mostSteps
	}
	byLoss := func(a, b metrics.Step) int { return cmp.Compare(a.Loss, b.Loss) }
	for part := range slices.Chunk(h.Steps, chunk) {
		least, most := slices.MinFunc(part, byLoss).Step, slices.MaxFunc(part, byLoss).Step
		for _, s := range part {
			if s.Step == least || s.Step == most || s.Step == h.Steps[len(h.Steps)-1].Step {
				out.Steps = append(out.Steps, []any{s.Step, s.Epoch, s.Time, s.Loss, s.LR, s.GradNorm,
					s.SamplesPerSecond, s.PeakBytes})
			}
		}
	}
	return out
}

func testRows(list []metrics.Test) [][]any {
	out := [][]any{}
	for _, t := range list {
		out = append(out, []any{t.Step, t.Epoch, t.Time, t.Accuracy, t.TestLoss, t.MSE})
	}
	return out
}

// payload is the data for the page's script.
type payload struct {
	View    view    `json:"view"`
	History columns `json:"history"`
	Curves  []Curve `json:"curves"`
	Live    string  `json:"live,omitempty"` // the URL of further events
}
