package train

import (
	"cmp"
	"context"
	"fmt"
	"math"

	"penstock.example/data"
)

// Validation says what a Loop evaluates at the end of each epoch, with the Loop's Loss, and once more
// where Steps ends the run within an epoch. The best checkpoint is the one with the lowest loss; Store
// keeps it if OnEpoch saves, and the caller after Run.
type Validation struct {
	Set   data.Dataset // that is not trained with, such as a part of data.Split
	Batch int          // samples that are run at once; 0 is the Loader's
	// Patience ends the run when the loss has not become lower in so many whole epochs in a row. 0 never
	// does.
	Patience int

	// OnBatch is told after each batch how many samples are done, of how many, and OnResult what came
	// out, before Loop.OnEpoch; its error ends the run. Nil is nobody.
	OnBatch  func(done, all int)
	OnResult func(ValidationInfo) error
}

// ValidationInfo is a validation that was done.
type ValidationInfo struct {
	Step  int64 // steps taken
	Epoch int   // of the last step, counted from 0
	Evaluation
	Better  bool // than all before
	Partial bool // the run has ended within the epoch, which goes on if it is resumed
}

// Best is the best validation of a run.
type Best struct {
	Step  int64   `json:"step"`
	Epoch int     `json:"epoch"` // counted from 0
	Loss  float64 `json:"loss"`
	Since int     `json:"since"`          // whole epochs after it, none of which was better
	Last  int64   `json:"last,omitempty"` // step of the last validation; 0 if an older penstock has saved it
}

// stopped says that the run has ended for lack of progress.
func (l *Loop) stopped() bool {
	return l.Validation != nil && l.Validation.Patience > 0 && l.Best != nil &&
		l.Best.Since >= l.Validation.Patience
}

// validate evaluates at the end of an epoch, or where Steps ends the run within one, which Patience does not
// count: after the last step before a position, once.
func (l *Loop) validate(ctx context.Context, at data.Position) error {
	v, partial := l.Validation, at.Batch < l.Loader.Batches()
	if v == nil || at.Batch == 0 || l.Best != nil && l.Best.Last == l.Step {
		return nil
	}
	e, err := Evaluate(ctx, l.Pipe, v.Set, EvaluateConfig{Batch: cmp.Or(v.Batch, l.Loader.BatchSize()),
		Loss: l.Loss, OnBatch: v.OnBatch})
	if err != nil {
		return err
	}
	if math.IsNaN(*e.Loss) || math.IsInf(*e.Loss, 0) {
		return fmt.Errorf("train: validating after step %d, in epoch %d: loss %v: %w", l.Step, at.Epoch+1,
			*e.Loss, ErrDiverged)
	}
	better := l.Best == nil || *e.Loss < l.Best.Loss
	if v.OnResult != nil {
		if err := v.OnResult(ValidationInfo{Step: l.Step, Epoch: at.Epoch, Evaluation: e, Better: better,
			Partial: partial}); err != nil {
			return err
		}
	}
	b := Best{Step: l.Step, Epoch: at.Epoch, Loss: *e.Loss}
	if !better {
		b = *l.Best // which may be part of a Progress
		if !partial {
			b.Since++
		}
	}
	b.Last = l.Step
	l.Best = &b
	return nil
}
