package train

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"penstock/data"
	"penstock/nn"
	"penstock/optim"
	"penstock/pipe"
	"penstock/torch"
)

// MemoryError says that a stage cannot be trained within its device's limit, whatever is recomputed: its parameters, their gradients, the optimizer's state and what an update takes are more.
type MemoryError struct {
	Stage        int
	Device       torch.Device
	Limit, Least int64 // bytes
}

func (e *MemoryError) Error() string {
	return fmt.Sprintf("train: stage %d on %v cannot be updated within %d bytes: parameters, gradients, the optimizer's state and its temporaries take %d", e.Stage, e.Device, e.Limit, e.Least)
}

// PlanMemory plans what is recomputed (pipe.Optimal) for batches of so many rows of a data set, before anything is trained, and checks that updates fit in the limits of the devices, if the optimizer is of package
// optim. It returns a *pipe.BudgetError or a *MemoryError where a limit is too low. The loop's Pipe, Loss and Optimizer must be set.
func (l *Loop) PlanMemory(ctx context.Context, set data.Dataset, rows int) error {
	sample, err := firstRows(set, min(rows, set.Len()))
	if err != nil {
		return err
	}
	b, free, err := l.place(sample)
	if err == nil {
		err = l.Pipe.Plan(ctx, b, l.Loss)
	}
	free()
	if err != nil {
		return fmt.Errorf("train: planning the memory: %w", err)
	}
	for i, s := range l.Pipe.Stages() {
		if err := l.checkUpdate(i, s); err != nil {
			return err
		}
	}
	return nil
}

// checkUpdate checks that the update of a stage fits: the batch and the activations are gone by then. What it takes beside the parameters is, as they are updated one after the other, what the largest takes.
func (l *Loop) checkUpdate(i int, s *pipe.Stage) error {
	m, params := s.Device.Memory(), s.Params()
	least, ok := optim.Unmade(l.Optimizer, params)
	if m.Limit == 0 || !ok || len(params) == 0 {
		return nil
	}
	bytes := func(p nn.NamedParam) int64 { return p.Numel() * p.DType().Size() }
	largest := slices.MaxFunc(params, func(a, b nn.NamedParam) int { return cmp.Compare(bytes(a), bytes(b)) })
	c := torch.NewCtx(torch.Options{Device: torch.CPU(torch.MaxCPU - 1), Threads: 1}) // nobody uses it meanwhile
	defer c.Close()
	err := torch.Try(func() {
		update, _ := optim.Rehearse(c, l.Optimizer, largest)
		least += m.Live + update.Later
	})
	if err != nil {
		return fmt.Errorf("train: what an update takes: %w", err)
	}
	for _, p := range params {
		if !p.Tensor().HasGrad() {
			least += bytes(p)
		}
	}
	if least > m.Limit {
		return &MemoryError{i, s.Device, m.Limit, least}
	}
	return nil
}
