package train

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"penstock/data"
	"penstock/internal/arg"
	"penstock/optim"
	"penstock/pipe"
	"penstock/planner"
)

// PlanMemory plans before training what is recomputed (pipe.Optimal) for batches of so many rows of
// a data set, and checks that updates fit in the limits of the devices. It returns a
// *planner.MemoryError with all stages whose limit is too low, each with what its steps and updates
// take together. The loop's Pipe, Loss and Optimizer must be set; the pipe need not be placed yet
// (see pipe.Open), so that a model that does not fit is found before it is made. What is measured
// may exceed the limits: the batch, and a layer at a time.
func (l *Loop) PlanMemory(ctx context.Context, set data.Dataset, rows int) error {
	if err := cmp.Or(arg.Context(ctx, "train"), l.complete(),
		arg.Given(set, "train: PlanMemory: the data set", "a data.Dataset")); err != nil {
		return err
	}
	if set.Len() == 0 {
		return errors.New("train: PlanMemory: the data set is empty; want a sample to plan with")
	}
	if err := arg.AtLeast("train", "the number of rows", rows, 1); err != nil {
		return err
	}
	sample, err := firstRows(set, min(rows, set.Len()))
	if err != nil {
		return err
	}
	b, free, err := l.placeBeyond(sample)
	if err == nil {
		_, err = l.Pipe.PlanFor(ctx, b, l.Loss)
	}
	free()
	var short *planner.MemoryError
	if err != nil && !errors.As(err, &short) {
		return fmt.Errorf("train: planning the memory: %w", err)
	}
	if all := l.withUpdates(short); len(all) > 0 {
		return &planner.MemoryError{Stages: all}
	}
	return nil
}

// placeBeyond is place, whatever the limits are.
func (l *Loop) placeBeyond(batch data.Batch) (b pipe.Batch, free func(), err error) {
	for _, d := range l.Pipe.Devices() {
		defer d.SetLimit(d.Memory().Limit)
		d.SetLimit(0)
	}
	return l.place(batch)
}

// withUpdates lists the stages whose steps or updates do not fit. short says what the steps lack.
func (l *Loop) withUpdates(short *planner.MemoryError) (all []planner.Shortage) {
	if short != nil {
		all = slices.Clone(short.Stages)
	}
	for i, s := range l.Pipe.Stages() {
		update, m := l.updating(i), s.Device.Memory()
		if m.Limit == 0 || update <= m.Limit {
			continue
		}
		at := slices.IndexFunc(all, func(s planner.Shortage) bool { return s.Stage == i })
		if at < 0 {
			at = len(all)
			all = append(all, planner.Shortage{Stage: i, Device: s.Device.String(), Limit: m.Limit})
		}
		if update > all[at].Least {
			all[at].Least, all[at].SetBy = update, "the optimizer's update"
		}
	}
	slices.SortFunc(all, func(a, b planner.Shortage) int { return cmp.Compare(a.Stage, b.Stage) })
	return all
}

// updating is the bytes on a stage's device while its parameters are updated: gradients and the
// optimizer's state count, the batch and the activations are freed by then.
func (l *Loop) updating(stage int) int64 {
	s := l.Pipe.Stages()[stage]
	params := s.Params()
	need := l.Optimizer.Need(params)
	if l.ClipNorm > 0 {
		need.Scratch = max(need.Scratch, optim.NormNeed(params))
	}
	bytes := s.Device.Memory().Live + l.Pipe.Unplaced(stage) + need.State + need.Scratch
	for _, p := range params {
		if !p.Exists() || !p.Tensor().HasGrad() {
			bytes += p.Bytes()
		}
	}
	return bytes
}
