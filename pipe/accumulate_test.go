package pipe_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"penstock.example/group"
	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// withNorm is a model with running statistics, whose gradients depend on nothing but the rows.
func withNorm() *nn.Sequential {
	return nn.NewSequential(nn.NewLinear(4, 8), nn.NewBatchNorm1d(8, nn.BatchNormConfig{}), nn.NewTanh(), nn.NewLinear(8, 3))
}

// accumulated is what a model has here: gradients, and the values of buffers, by name.
func accumulated(model *nn.Sequential) map[string]string {
	out := map[string]string{}
	for _, q := range nn.Params(model) {
		if q.Exists() {
			out[q.Name] = fmt.Sprintf("%x", gradient(q))
		}
	}
	for _, q := range nn.Buffers(model) {
		if q.Exists() {
			out[q.Name] = fmt.Sprintf("%x", torch.Bytes(q.Tensor()))
		}
	}
	return out
}

// sumOfReplicas is what replicas that accumulate by themselves, each with a pipe of one, have in
// the order of replicas. run is what each does. Buffers are those of replica 0.
func sumOfReplicas(t *testing.T, replicas int, cfg pipe.Config, run func(p *pipe.Pipe, replica int) error) map[string]string {
	t.Helper()
	c := torch.NewCtx(torch.Options{Threads: 1})
	defer c.Close()
	var first *nn.Sequential
	for k := range replicas {
		model := withNorm()
		defer nn.Free(model)
		p, err := pipe.New(model, cfg)
		if err == nil {
			err = run(p, k)
		}
		if err := errors.Join(err, p.Close()); err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = model
			continue
		}
		for i, q := range nn.Params(model) {
			to := nn.Params(first)[i].Tensor()
			to.SetGradOf(c.Add(c.GradOf(to), c.GradOf(q.Tensor())))
		}
	}
	return accumulated(first)
}

// sameAsSum trains with replicas in so many processes each and wants what they then have in want.
func sameAsSum(t *testing.T, replicas, processes int, cfg pipe.Config, want map[string]string, run func(p *pipe.Pipe, model *nn.Sequential) (map[string]string, error)) {
	t.Helper()
	got, errs := each(replicas*processes, func(g *group.Group) (map[string]string, error) {
		cfg := cfg
		cfg.Group, cfg.Replicas = g, replicas
		model := withNorm()
		defer nn.Free(model)
		p, err := pipe.New(model, cfg)
		if err != nil {
			return nil, err
		}
		got, err := run(p, model)
		return got, errors.Join(err, p.Close())
	})
	for rank, err := range errs {
		if err != nil {
			t.Errorf("%d replicas of %d processes, process %d: %v", replicas, processes, rank, err)
		}
		for name, value := range got[rank] {
			if value != want[name] {
				t.Errorf("%d replicas of %d processes, process %d: %s is not the sum of the replicas", replicas, processes, rank, name)
			}
		}
	}
}

// Each replica adds the gradients of steps to its own, and the last step sums them over the
// replicas: the bits are those of a loop over all micro-batches of a replica, and then the replicas.
func TestReplicasAccumulate(t *testing.T) {
	torchtest.Check(t)
	const rows, steps = 4, 3 // of a replica
	for replicas := 2; replicas <= 3; replicas++ {
		step := func(p *pipe.Pipe, i int, accumulate bool, from, n int) error {
			c := torch.NewCtx(torch.Options{Threads: 1})
			defer c.Close()
			x, y := normal(int64(replicas*rows), 4)(c, i), classes(int64(replicas*rows), 3)(c, i)
			_, err := p.Step(context.Background(), pipe.Batch{Input: pipe.Rows(c.Narrow(x, 0, int64(from), int64(n))),
				Target: pipe.Rows(c.Narrow(y, 0, int64(from), int64(n))), Step: int64(i), Accumulate: accumulate}, nn.CrossEntropy().Sum())
			return err
		}
		for _, checkpoint := range []pipe.Checkpoint{pipe.ExceptLast, pipe.Optimal} {
			cfg := pipe.Config{Balance: []int{2, 2}, Chunks: 2, Seed: 3, Checkpoint: checkpoint}
			want := sumOfReplicas(t, replicas, cfg, func(p *pipe.Pipe, k int) (err error) {
				for i := range steps {
					err = errors.Join(err, step(p, i, i < steps-1, k*rows, rows))
				}
				return err
			})
			for _, processes := range []int{1, 2} {
				sameAsSum(t, replicas, processes, cfg, want, func(p *pipe.Pipe, model *nn.Sequential) (map[string]string, error) {
					o, err := optim.SGD(optim.Config{LR: 1})
					if err != nil {
						return nil, err
					}
					defer o.Close()
					for i := range steps - 1 {
						if err := step(p, i, true, 0, replicas*rows); err != nil {
							return nil, fmt.Errorf("step %d: %w", i, err)
						}
						if err := p.Update(context.Background(), o); !errors.Is(err, pipe.ErrAccumulating) {
							return nil, fmt.Errorf("an update with gradients that are not summed: %v", err)
						}
					}
					if err := step(p, steps-1, false, 0, replicas*rows); err != nil {
						return nil, fmt.Errorf("the last step: %w", err)
					}
					got := accumulated(model)
					if err := p.Update(context.Background(), o); err != nil {
						return nil, err
					}
					if err := step(p, 0, false, 0, replicas*rows); err != nil {
						return nil, fmt.Errorf("a step after the update: %w", err)
					}
					// An error is the end of the group, and of this test.
					if err := step(p, 0, processes == 2, 0, replicas*rows); err == nil || !strings.Contains(err.Error(), "summed over the replicas before") {
						return nil, fmt.Errorf("a step with gradients that were summed: %v", err)
					}
					return got, nil
				})
			}
		}
	}
}

// A batch's place in its update is checked, and its micro-batches are counted as they are split.
func TestPlaceInAnUpdate(t *testing.T) {
	torchtest.Check(t)
	p := started(t, withNorm(), pipe.Config{Chunks: 3})
	c := torch.NewCtx(torch.Options{Threads: 1})
	defer c.Close()
	for want, b := range map[string]pipe.Batch{
		"the batch has 5 rows, and TotalRows is 4; want at least as many, or 0":          {TotalRows: 4},
		"the batch has 5 rows, and TotalRows is -1; want":                                {TotalRows: -1},
		"FirstMicroBatch is -2; want the number of micro-batches before the batch, or 0": {FirstMicroBatch: -2},
	} {
		b.Input, b.Target = pipe.Rows(normal(5, 4)(c, 0)), pipe.Rows(classes(5, 3)(c, 0))
		if _, err := p.Step(context.Background(), b, nn.CrossEntropy()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	for rows, want := range map[int64]int{0: 0, 1: 1, 2: 2, 3: 3, 30: 3} {
		if got := p.MicroBatches(rows); got != want {
			t.Errorf("%d rows are %d micro-batches, want %d", rows, got, want)
		}
	}
	_, errs := each(2, func(g *group.Group) (struct{}, error) {
		model := withNorm()
		defer nn.Free(model)
		p, err := pipe.New(model, pipe.Config{Chunks: 3, Group: g, Replicas: 2})
		if err != nil {
			return struct{}{}, err
		}
		for rows, want := range map[int64]int{0: 0, 1: 0, 2: 2, 5: 5, 30: 6} {
			if got := p.MicroBatches(rows); got != want {
				err = errors.Join(err, fmt.Errorf("%d rows are %d micro-batches of two replicas, want %d", rows, got, want))
			}
		}
		return struct{}{}, errors.Join(err, p.Close())
	})
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
}
