package train

import (
	"context"
	"fmt"

	"penstock/data"
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

// StateBytes is how many bytes of state an optimizer by this name will make for a stage beside what it has made already.
func StateBytes(name string, config optim.Config, o optim.Optimizer, stage *pipe.Stage) (int64, error) {
	slots, err := optim.Slots(name, config)
	if err != nil {
		return 0, err
	}
	var bytes int64
	names := map[string]bool{}
	for _, p := range stage.Params() {
		names[p.Name] = true
		bytes += int64(slots) * p.Numel() * p.DType().Size()
	}
	for _, s := range o.State() {
		if names[s.Param()] {
			_, there := s.Tensor.Storage()
			bytes -= there
		}
	}
	return max(bytes, 0), nil
}

// PlanMemory plans what is recomputed (pipe.Optimal) for batches of so many rows of a data set, before anything is trained, and checks that updates fit in the limits of the devices. It returns a *pipe.BudgetError or a
// *MemoryError where a limit is too low. The loop's Pipe, Loss and Optimizer must be set; name and config are those of the optimizer.
func (l *Loop) PlanMemory(ctx context.Context, set data.Dataset, rows int, name string, config optim.Config) error {
	rows = min(rows, set.Len())
	indices := make([]int, rows)
	for i := range indices {
		indices[i] = i
	}
	var sample data.Batch
	if err := set.Fill(&sample, indices); err != nil {
		return err
	}
	stages := l.Pipe.Stages()
	first := torch.NewCtx(torch.Options{Device: stages[0].Device})
	defer first.Close()
	last := torch.NewCtx(torch.Options{Device: stages[len(stages)-1].Device})
	defer last.Close()
	var b pipe.Batch
	err := torch.Try(func() {
		b.Input = tensorOf(first, sample.Inputs)
		b.Target = tensorOf(last, sample.Targets)
	})
	if err == nil {
		err = l.Pipe.Plan(ctx, b, l.Loss)
	}
	if err != nil {
		return fmt.Errorf("train: planning the memory: %w", err)
	}
	first.Close()
	last.Close()
	for i, s := range stages {
		if err := l.checkUpdate(i, s, name, config); err != nil {
			return err
		}
	}
	return nil
}

// checkUpdate checks that the update of a stage fits: the batch and the activations are gone by then.
func (l *Loop) checkUpdate(i int, s *pipe.Stage, name string, config optim.Config) error {
	m := s.Device.Memory()
	if m.Limit == 0 {
		return nil
	}
	workspace, err := optim.Workspace(name, config, s.Params(), torch.CPU(torch.MaxCPU-1))
	if err != nil {
		return fmt.Errorf("train: what an update takes: %w", err)
	}
	least, err := StateBytes(name, config, l.Optimizer, s)
	if err != nil {
		return err
	}
	least += m.Live + workspace
	for _, p := range s.Params() {
		if !p.Tensor().HasGrad() {
			least += p.Numel() * p.DType().Size()
		}
	}
	if least > m.Limit {
		return &MemoryError{i, s.Device, m.Limit, least}
	}
	return nil
}
