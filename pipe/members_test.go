package pipe_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"penstock.example/group"
	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/pipe"
	"penstock.example/torch"
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

// process is one of those of a pipe, with what it trains.
type process struct {
	problem
	*pipe.Pipe
	group *group.Group
	net   *nn.Sequential
	c     *torch.Ctx // of the batches, on a device that no budget is for
}

// on runs f in a process, and ends its pipe.
func (q problem) on(g *group.Group, cfg pipe.Config, f func(m process) error) error {
	cfg.Group = g
	model := q.model()
	defer nn.Free(model)
	p, err := pipe.Open(model, cfg)
	if err != nil {
		return err
	}
	defer p.Close()
	if q.reach != nil {
		q.reach(p, g)
	}
	if err := p.Place(); err != nil {
		return err
	}
	c := torch.NewCtx(torch.Options{Threads: 1, Device: torch.CPU(40 + g.Rank())})
	defer c.Close()
	return f(process{q, p, g, model, c})
}

// batch is that of a step.
func (m process) batch(step int) pipe.Batch {
	return m.problem.batch(m.c, m.Stages(), step)
}

// train makes a step whose gradients nobody wants.
func (m process) train(ctx context.Context, step int) error {
	defer m.c.Close()
	_, err := m.Step(ctx, m.batch(step), m.loss)
	nn.ZeroGrads(m.net)
	return err
}

// apart trains the same with a pipe whose stages are in several processes.
func (q problem) apart(t test, cfg pipe.Config, processes int) record {
	t.Helper()
	records, errs := each(processes, func(g *group.Group) (r record, err error) {
		return q.member(g, cfg, cfg.Budget == nil) // a budget is for steps alone
	})
	for rank, err := range errs {
		if err != nil {
			t.Fatalf("process %d: %v", rank, err)
		}
	}
	merged, err := merge(records)
	if err != nil {
		t.Fatal(err)
	}
	return merged
}

// merge puts together what the processes of a pipe have.
func merge(records []record) (merged record, err error) {
	merged = record{records[0].losses, map[string][]byte{}}
	for rank, r := range records {
		if fmt.Sprint(r.losses) != fmt.Sprint(merged.losses) {
			return merged, fmt.Errorf("process %d has losses %v, process 0 %v", rank, r.losses, merged.losses)
		}
		for name, value := range r.values {
			if len(value) == 0 {
				continue
			}
			if had := merged.values[name]; had != nil && !bytes.Equal(had, value) {
				return merged, fmt.Errorf("process %d has another %s than one before it", rank, name)
			}
			merged.values[name] = value
		}
	}
	return merged, nil
}

// evaluated begins the names of what the model gives in evaluation.
const evaluated = "output "

// member is the part of a training run of one process. It has the values of its own stages. Updates
// are those of an optimizer, of clipped gradients, or else plain gradient descent.
func (q problem) member(g *group.Group, cfg pipe.Config, clipped bool) (r record, err error) {
	err = q.on(g, cfg, func(m process) (err error) { r, err = m.record(clipped, cfg.Budget == nil); return err })
	return r, err
}

// record is the record of a process. infers says whether it has what the model gives in the end.
func (m process) record(clipped, infers bool) (r record, err error) {
	o, err := optim.New("sgd", optim.Config{LR: 0.05, Momentum: 0.9})
	if err != nil {
		return r, err
	}
	r.values = map[string][]byte{}
	for step := range m.steps {
		m.sets(step, m.net)
		result, err := m.Step(context.Background(), m.batch(step), m.loss)
		if err != nil {
			return r, err
		}
		r.losses = append(r.losses, result.Loss)
		m.c.Close()
		if step == m.steps-1 {
			for _, s := range nn.State(m.net) {
				if s.Exists() {
					r.values["gradient of "+s.Name] = gradient(s)
				}
			}
		}
		if !clipped {
			if err := m.OnStages(context.Background(), func(stage int, c *torch.Ctx) error {
				descend(c, m.Stages()[stage].Params())
				return nil
			}); err != nil {
				return r, err
			}
			nn.ZeroGrads(m.net)
			continue
		}
		norm, err := m.UpdateClipped(context.Background(), o, 0.5)
		if err != nil {
			return r, err
		}
		r.losses = append(r.losses, norm)
	}
	if infers {
		result, err := m.Infer(context.Background(), pipe.Batch{Input: m.batch(0).Input})
		if err != nil {
			return r, err
		}
		for i, y := range result.Output {
			r.values[fmt.Sprintf("%s%d", evaluated, i)] = torch.Bytes(y)
		}
		torch.FreeAll(result.Output)
	}
	defer func() {
		for _, s := range o.State() {
			s.Tensor.Free()
		}
	}()
	for _, s := range nn.State(m.net) {
		if s.Exists() {
			r.values[s.Name] = torch.Bytes(s.Tensor())
		}
	}
	return r, nil
}

// What a model gives for a batch is in the process of the last stage, backward begins there, and a
// timeline has what all workers did.
func TestForwardAndBackwardOfProcesses(t *testing.T) {
	torchtest.Check(t)
	kinds := []int{0, 1, 3, 14, 5}
	q := problem{model: func() *nn.Sequential { return randomModel(kinds, unwrapped) }, rows: 5, steps: 2,
		loss: nn.CrossEntropy(), input: normal(5, 2, 6, 6), target: classes(5, 3)}
	cfg := pipe.Config{Balance: []int{2, 2, len(q.model().Layers()) - 4}, Chunks: 3, Seed: 5, Record: true}
	type result struct {
		output, again string
		gradients     map[string]string
		workers       int
		events        int
	}
	text := func(list []*torch.Tensor) (s string) {
		for _, y := range list {
			s += fmt.Sprintf("%v %x", y, torch.Bytes(y))
		}
		return s
	}
	run := func(g *group.Group) (r result, err error) {
		err = q.on(g, cfg, func(m process) error {
			b := pipe.Batch{Input: pipe.Rows(q.input(m.c, 0))}
			inferred, err := m.Infer(context.Background(), b)
			if err != nil {
				return err
			}
			r.output, r.workers, r.events = text(inferred.Output), inferred.Timeline.Workers, len(inferred.Timeline.Events)
			torch.FreeAll(inferred.Output)
			forward, err := m.Forward(context.Background(), b)
			if err != nil {
				return err
			}
			r.again = text(forward.Output())
			var grads []*torch.Tensor
			for _, y := range forward.Output() {
				grads = append(grads, m.c.Keep(m.c.Ones(y.DType(), y.Shape()...)))
			}
			err = forward.BackwardRetained(context.Background(), grads...)
			if err == nil {
				err = forward.Backward(context.Background(), grads...)
			}
			torch.FreeAll(grads)
			r.gradients = map[string]string{}
			for _, s := range nn.State(m.net) {
				if s.Exists() {
					r.gradients[s.Name] = fmt.Sprintf("%x", gradient(s))
				}
			}
			return err
		})
		return r, err
	}
	alone, errs := each(1, run)
	apart, more := each(3, run)
	for _, err := range append(errs, more...) {
		if err != nil {
			t.Fatal(err)
		}
	}
	merged := map[string]string{}
	for rank, r := range apart {
		maps.Copy(merged, r.gradients)
		want := alone[0]
		if rank < 2 {
			want.output, want.again = "", ""
		}
		if r.output != want.output || r.again != want.again {
			t.Errorf("process %d has outputs %q and %q, want %q and %q", rank, r.output, r.again, want.output, want.again)
		}
		if r.workers != 3 || r.events != want.events {
			t.Errorf("process %d has a timeline of %d events by %d workers, want %d by 3", rank, r.events, r.workers, want.events)
		}
	}
	if d := cmp.Diff(alone[0].gradients, merged); d != "" {
		t.Errorf("gradients: %s", d)
	}
}

// When a process fails in the middle of a step, all of them end with an error that says where it
// was, and keep nothing.
func TestFailureInOneOfSeveralProcesses(t *testing.T) {
	torchtest.Check(t)
	for _, direction := range []string{"forward", "backward"} {
		_, errs := each(3, func(g *group.Group) (struct{}, error) {
			it := &saboteur{how: func(*nn.Ctx, *torch.Tensor) *torch.Tensor { panic("boom") }}
			q := problem{model: func() *nn.Sequential { return buried(it) }, loss: nn.CrossEntropy(), input: normal(7, 4), target: classes(7, 3)}
			return struct{}{}, q.on(g, pipe.Config{Balance: []int{1, 2, 1}, Chunks: 3, Checkpoint: pipe.Always}, func(m process) error {
				if err := m.train(context.Background(), 0); err != nil {
					return fmt.Errorf("the first step: %w", err)
				}
				it.when = func(c *nn.Ctx) bool { return c.MicroBatch == 1 && c.Recomputing == (direction == "backward") }
				return m.train(context.Background(), 1)
			})
		})
		for rank, err := range errs {
			var failed *group.FailedError
			switch {
			case err == nil || !strings.Contains(err.Error(), "boom") || !strings.Contains(err.Error(), "stage 1, micro-batch 1"):
				t.Errorf("%s, process %d: %v", direction, rank, err)
			case rank != 1 && (!errors.As(err, &failed) || failed.Rank != 1):
				t.Errorf("%s, process %d: %v does not name process 1", direction, rank, err)
			}
		}
	}
}
