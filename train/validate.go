package train

import (
	"cmp"
	"context"
	"fmt"
	"math"

	"penstock.example/data"
)

// Validation is evaluated with the Loop's Loss at the end of each epoch, and when Steps ends the run
// within an epoch. The best checkpoint has the lowest loss. Store keeps it if a checkpoint is saved in
// OnEpoch and after Run.
type Validation struct {
	Set   data.Dataset // not trained on, such as a part of data.Split
	Batch int          // samples run at once; 0 is the Loader's
	// Patience is the number of whole epochs in a row without a lower loss that ends the run. 0 is no limit.
	Patience int

	// OnBatch is called after each batch with the number of samples done and the total. OnResult is
	// called with the result, before Loop.OnEpoch. Its error ends the run. Both may be nil.
	OnBatch  func(done, all int)
	OnResult func(ValidationInfo) error
}

// ValidationInfo is the result of a validation.
type ValidationInfo struct {
	Step  int64 // steps taken
	Epoch int   // counted from 0
	Evaluation
	Better  bool // the lowest loss so far
	Partial bool // the run ended within the epoch
}

// Best is the best validation of a run.
type Best struct {
	Step  int64   `json:"step"`
	Epoch int     `json:"epoch"` // counted from 0
	Loss  float64 `json:"loss"`
	Since int     `json:"since"`          // whole epochs since, none of them better
	Last  int64   `json:"last,omitempty"` // step of the last validation; 0 in older checkpoints
}

// validate evaluates once after the last step of an epoch, or of the run. Patience counts whole epochs
// only. next is the position of the next batch.
func (l *Loop) validate(ctx context.Context, next data.Position) error {
	v, partial := l.Validation, next.Batch < l.Loader.Batches()
	if v == nil || next.Batch == 0 || l.Best != nil && l.Best.Last == l.Step {
		return nil
	}
	e, err := Evaluate(ctx, l.Pipe, v.Set, EvaluateConfig{Batch: cmp.Or(v.Batch, l.Loader.BatchSize()),
		Loss: l.Loss, OnBatch: v.OnBatch})
	if err != nil {
		return err
	}
	if math.IsNaN(*e.Loss) || math.IsInf(*e.Loss, 0) {
		return fmt.Errorf("train: validating after step %d, in epoch %d: loss %v: %w", l.Step, next.Epoch+1,
			*e.Loss, ErrDiverged)
	}
	better := l.Best == nil || *e.Loss < l.Best.Loss
	if v.OnResult != nil {
		if err := v.OnResult(ValidationInfo{l.Step, next.Epoch, e, better, partial}); err != nil {
			return err
		}
	}
	b := Best{Step: l.Step, Epoch: next.Epoch, Loss: *e.Loss}
	if !better {
		b = *l.Best // a copy: a Progress may share the old one
		if !partial {
			b.Since++
		}
	}
	if l.Plateau != nil && !partial {
		l.Plateau.Observe(*e.Loss)
	}
	b.Last = l.Step
	l.Best = &b
	return nil
}
