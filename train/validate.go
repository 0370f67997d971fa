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

// validated says that the last validation was after the last step.
func (l *Loop) validated() bool { return l.Best != nil && l.Best.Last == l.Step }

// validateLast evaluates where Steps ends the run: at the end of an epoch, which a resumed run then does
// not validate again, or within one. What ended before the first step of an epoch is validated.
func (l *Loop) validateLast(ctx context.Context, at data.Position) error {
	if l.Validation == nil || at.Batch == 0 || l.validated() {
		return nil
	}
	return l.validate(ctx, at.Epoch, at.Batch < l.Loader.Batches())
}

// validate evaluates at the end of an epoch, or of a run within one, which Patience does not count.
func (l *Loop) validate(ctx context.Context, epoch int, partial bool) error {
	v := l.Validation
	e, err := Evaluate(ctx, l.Pipe, v.Set, EvaluateConfig{Batch: cmp.Or(v.Batch, l.Loader.BatchSize()),
		Loss: l.Loss, OnBatch: v.OnBatch})
	if err != nil {
		return err
	}
	if math.IsNaN(*e.Loss) || math.IsInf(*e.Loss, 0) {
		return fmt.Errorf("train: validating after step %d, in epoch %d: loss %v: %w", l.Step, epoch+1,
			*e.Loss, ErrDiverged)
	}
	better := l.Best == nil || *e.Loss < l.Best.Loss
	if v.OnResult != nil {
		if err := v.OnResult(ValidationInfo{Step: l.Step, Epoch: epoch, Evaluation: e, Better: better,
			Partial: partial}); err != nil {
			return err
		}
	}
	b := Best{Step: l.Step, Epoch: epoch, Loss: *e.Loss}
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
