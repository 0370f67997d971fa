package pipe_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"penstock/group"
	"penstock/internal/torchtest"
	"penstock/nn"
	"penstock/optim"
	"penstock/pipe"
	"penstock/torch"
)

// each runs f for every member of a group at once, and returns what it returned, by rank.
func each[T any](processes int, f func(g *group.Group) (T, error)) ([]T, []error) {
	out, errs := make([]T, processes), make([]error, processes)
	var all sync.WaitGroup
	for rank, g := range group.Local(processes) {
		all.Go(func() { out[rank], errs[rank] = f(g) })
	}
	all.Wait()
	return out, errs
}

// apart trains the same with a pipe whose stages are in several processes.
func (q problem) apart(t test, cfg pipe.Config, processes int) record {
	t.Helper()
	records, errs := each(processes, func(g *group.Group) (r record, err error) {
		cfg := cfg
		cfg.Group = g
		return q.member(cfg)
	})
	for rank, err := range errs {
		if err != nil {
			t.Fatalf("process %d: %v", rank, err)
		}
	}
	merged := records[0]
	for rank, r := range records {
		if fmt.Sprint(r.losses) != fmt.Sprint(merged.losses) {
			t.Fatalf("process %d has losses %v, process 0 %v", rank, r.losses, merged.losses)
		}
		for name, value := range r.values {
			if value != nil {
				merged.values[name] = value
			}
		}
	}
	return merged
}

// member is the part of a training run of one process. It has the values of its own stages.
func (q problem) member(cfg pipe.Config) (r record, err error) {
	model := q.model()
	defer nn.Free(model)
	p, err := pipe.New(model, cfg)
	if err != nil {
		return r, err
	}
	defer p.Close()
	c := torch.NewCtx(torch.Options{Threads: 1, Device: torch.CPU(20 + cfg.Group.Rank())}) // which no budget is for
	defer c.Close()
	o, err := optim.New("sgd", optim.Config{LR: 0.05, Momentum: 0.9})
	if err != nil {
		return r, err
	}
	r.values = map[string][]byte{}
	for step := range q.steps {
		result, err := p.Step(context.Background(),
			pipe.Batch{Input: pipe.Rows(q.input(c, step)), Target: pipe.Rows(q.target(c, step)), Step: int64(step)}, q.loss)
		if err != nil {
			return r, err
		}
		r.losses = append(r.losses, result.Loss)
		c.Close()
		if step == q.steps-1 {
			for _, s := range nn.State(model) {
				if s.Exists() {
					r.values["gradient of "+s.Name] = gradient(s)
				}
			}
		}
		norm, err := p.UpdateClipped(context.Background(), o, 0.5)
		if err != nil {
			return r, err
		}
		r.losses = append(r.losses, norm)
	}
	defer func() {
		for _, s := range o.State() {
			s.Tensor.Free()
		}
	}()
	for _, s := range nn.State(model) {
		if s.Exists() {
			r.values[s.Name] = torch.Bytes(s.Tensor())
		}
	}
	return r, nil
}

// Results are the same to the bit in any number of processes.
func TestTransparencyOfProcesses(t *testing.T) {
	torchtest.Check(t)
	rapid.Check(t, func(t *rapid.T) {
		live := torch.LiveTensors()
		rows := rapid.Int64Range(1, 9).Draw(t, "rows")
		kinds := rapid.SliceOfN(rapid.IntRange(0, kindCount-1), 2, 10).Draw(t, "layers")
		q := problem{
			model: func() *nn.Sequential { return randomModel(kinds, nn.Checkpointed) }, rows: rows, steps: 3,
			loss: nn.CrossEntropy(), input: normal(rows, 2, 6, 6), target: classes(rows, 3),
		}
		cfg := pipe.Config{Chunks: rapid.IntRange(1, 6).Draw(t, "chunks"), Seed: rapid.Uint64().Draw(t, "seed"),
			DeferredBatchNorm: rapid.Bool().Draw(t, "deferred"), Autocast: rapid.IntRange(0, 3).Draw(t, "autocast") == 0}
		randomSchedule(t, &cfg, len(q.model().Layers()))
		var mixed []pipe.Checkpoint
		for range cfg.Balance {
			mixed = append(mixed, rapid.SampledFrom(policies).Draw(t, "policy"))
		}
		cfg.Checkpoint = pipe.PerStage(mixed...)
		distinct := slices.Clone(cfg.Devices)
		slices.SortFunc(distinct, func(a, b torch.Device) int { return a.Index - b.Index })
		distinct = slices.Compact(distinct)
		processes := rapid.IntRange(1, len(distinct)).Draw(t, "processes")
		want := q.apart(t, cfg, 1)
		if d := want.differs(q.apart(t, cfg, processes)); d != "" {
			t.Fatalf("%s differs from that of one process", d)
		}
		if n := torch.LiveTensors() - live; n != 0 {
			t.Fatalf("%d tensors were not freed:\n%s", n, strings.Join(torch.Leaks(), "\n"))
		}
	})
}
