package train

import (
	"cmp"
	"context"
	"fmt"
	"math"

	"penstock.example/data"
	"penstock.example/internal/arg"
)

// Validation says what a Loop evaluates at the end of each epoch, with the Loop's Loss. The best
// checkpoint is the one after the epoch with the lowest loss; Store keeps it if OnEpoch saves.
type Validation struct {
	Set   data.Dataset // that is not trained with, such as a part of data.Split
	Batch int          // samples that are run at once; 0 is the Loader's
	// Patience ends the run when the loss has not become lower in so many epochs in a row. 0 never
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
	Epoch int   // that has ended, counted from 0
	Evaluation
	Better bool // than all before
}

// Best is the best validation of a run.
type Best struct {
	Step  int64   `json:"step"`
	Epoch int     `json:"epoch"` // counted from 0
	Loss  float64 `json:"loss"`
	Since int     `json:"since"` // epochs after it, none of which was better
}

// complete returns an error if a setting is missing or wrong. A nil Validation is complete.
func (v *Validation) complete() error {
	if v == nil {
		return nil
	}
	return cmp.Or(arg.Given(v.Set, "train: Validation.Set", "a data.Dataset"), arg.AtLeast("train: Validation", "Batch", v.Batch, 0),
		arg.AtLeast("train: Validation", "Patience", v.Patience, 0))
}

// stopped says that the run has ended for lack of progress.
func (l *Loop) stopped() bool {
	return l.Validation != nil && l.Validation.Patience > 0 && l.Best != nil && l.Best.Since >= l.Validation.Patience
}

// validate evaluates at the end of an epoch.
func (l *Loop) validate(ctx context.Context, epoch int) error {
	v := l.Validation
	e, err := Evaluate(ctx, l.Pipe, v.Set, EvaluateConfig{Batch: cmp.Or(v.Batch, l.Loader.BatchSize()), Loss: l.Loss, OnBatch: v.OnBatch})
	if err != nil {
		return err
	}
	if math.IsNaN(*e.Loss) || math.IsInf(*e.Loss, 0) {
		return fmt.Errorf("train: validating after epoch %d: loss %v: %w", epoch+1, *e.Loss, ErrDiverged)
	}
	better := l.Best == nil || *e.Loss < l.Best.Loss
	if v.OnResult != nil {
		if err := v.OnResult(ValidationInfo{l.Step, epoch, e, better}); err != nil {
			return err
		}
	}
	if better {
		l.Best = &Best{Step: l.Step, Epoch: epoch, Loss: *e.Loss}
	} else {
		b := *l.Best // the old one may be part of a Progress
		b.Since++
		l.Best = &b
	}
	return nil
}
