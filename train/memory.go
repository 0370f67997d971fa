package train

import (
	"context"
	"errors"
	"fmt"

	"penstock.example/data"
	"penstock.example/group"
	"penstock.example/internal/gradnorm"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/plan"
	"penstock.example/torch"
)

// PlanMemory plans recomputation (pipe.Optimal) before training, for batches of rows rows of a data
// set, and checks that updates fit in the devices' limits. The error is a *plan.MemoryError with
// every stage whose limit is too low for its steps and updates. The loop's Pipe, Loss and Optimizer
// must be set. The set may have fewer rows. Evaluate with a Batch of as many rows then fits, too.
// The pipe need not be placed (see pipe.Open), so a model can be checked before its weights are
// made. Measuring keeps to the limits unless the batch and a single layer already exceed them.
func (l *Loop) PlanMemory(ctx context.Context, set data.Dataset, rows int) error {
	if set.Len() == 0 {
		return errors.New("train: PlanMemory: the data set is empty")
	}
	sample, err := firstRows(set, rows)
	if err != nil {
		return err
	}
	var b pipe.Batch
	limits := map[torch.Device]int64{} // suspended while the batch is placed
	for _, d := range l.Pipe.Devices() {
		limits[d] = d.Memory().Limit
		d.SetLimit(0)
	}
	free, err := l.placeBatch(&b, sample)
	for d, limit := range limits {
		d.SetLimit(limit)
	}
	if err == nil && l.Accumulate > 1 && set.Len() > rows { // later batches start with gradients
		b.FirstMicroBatch = l.Pipe.MicroBatches(int64(sample.Rows))
		_, err = l.Pipe.PlanFor(ctx, b, l.Loss)
		b.FirstMicroBatch = 0
	}
	if err == nil {
		_, err = l.Pipe.PlanFor(ctx, b, l.Loss)
	}
	free()
	var short *plan.MemoryError
	var other *group.MemberError
	switch {
	case errors.As(err, &other):
	case err != nil && !errors.As(err, &short):
		err = fmt.Errorf("train: planning the memory: %w", err)
	default:
		err = nil
		if short = short.WithUpdates(l.updateBytes()); short != nil {
			err = short
		}
	}
	_, err = group.Meet(ctx, l.Pipe.Config().Group, "train: the memory", 0, err)
	return err
}

// updateBytes returns the bytes on each device of this process during an update: live tensors,
// parameters, gradients and the optimizer's state. Activations and the batch are freed before it.
func (l *Loop) updateBytes() (list []plan.Update) {
	stages := l.Pipe.Stages()
	for i, d := range l.Pipe.Devices() {
		if !l.Pipe.DeviceHere(i) {
			continue
		}
		m, u := d.Memory(), plan.Update{Device: d.String()}
		u.Limit, u.Bytes = m.Limit, m.Live
		var params []nn.NamedParam
		for i, s := range stages {
			if s.Device == d {
				u.Stages, params = append(u.Stages, i), append(params, s.Params()...)
				u.Bytes += l.Pipe.Unplaced(i)
			}
		}
		need := l.Optimizer.Need(params)
		if l.ClipNorm > 0 {
			need.Scratch = max(need.Scratch, gradnorm.PeakBytes(d, params))
		}
		u.Bytes += need.State + need.Scratch
		counted := map[*nn.Param]bool{} // stages of a device share tied parameters
		for _, p := range params {
			if owner := p.Owner(); !counted[owner] && (!p.Exists() || !p.Tensor().HasGrad()) {
				u.Bytes, counted[owner] = u.Bytes+p.Bytes(), true
			}
		}
		list = append(list, u)
	}
	return list
}
