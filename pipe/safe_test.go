package pipe_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/schedule"
	"penstock.example/torch"
)

// pace delays workers: to each it gives the actions that others must have begun, or be through,
// before it begins one of its own.
type pace struct {
	mu    sync.Mutex
	moved *sync.Cond
	at    []int // by worker: the action that it has come to
}

// paced lets wait decide, for a worker that has come to an action, whether it is too early.
func paced(g *schedule.Graph, wait func(at []int, worker, action int) bool) func(worker, action int) {
	p := &pace{at: slices.Clone(g.First[:len(g.First)-1])}
	p.moved = sync.NewCond(&p.mu)
	return func(worker, action int) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.at[worker] = action
		p.moved.Broadcast()
		for action < g.First[worker+1] && wait(p.at, worker, action) {
			p.moved.Wait()
		}
	}
}

// stuck is where each worker comes to if one of them stays before an action.
func stuck(g *schedule.Graph, worker, before int) []int {
	next := slices.Clone(g.First[:len(g.First)-1])
	done := make([]bool, len(g.Actions))
	for moved := true; moved; {
		moved = false
		for w := range next {
			for next[w] < g.First[w+1] && !(w == worker && next[w] >= before) && !slices.ContainsFunc(g.Cross[next[w]], func(dep int) bool { return !done[dep] }) {
				done[next[w]] = true
				next[w]++
				moved = true
			}
		}
	}
	return next
}

// prompt makes one worker wait until the others have received all that was sent.
func prompt(g *schedule.Graph, one int) func(worker, action int) {
	return paced(g, func(at []int, worker, action int) bool {
		if worker != one {
			return false
		}
		for w, until := range stuck(g, one, action) {
			if w != one && at[w] < until {
				return true
			}
		}
		return false
	})
}

// late makes all others wait for as long as one worker can go on without them.
func late(g *schedule.Graph, one int) func(worker, action int) {
	needs := make([][]bool, len(g.Actions)) // by action of the one: what must be done before it
	for id := g.First[one]; id < g.First[one+1]; id++ {
		needs[id] = make([]bool, len(g.Actions))
		var mark func(id int)
		mark = func(at int) {
			for _, dep := range g.Deps[at] {
				if !needs[id][dep] {
					needs[id][dep] = true
					mark(dep)
				}
			}
			if w := g.Worker[at]; at > g.First[w] && !needs[id][at-1] {
				needs[id][at-1] = true
				mark(at - 1)
			}
		}
		mark(id)
		if next := id + 1; g.Actions[id].Kind.Send() { // it may wait for the receive itself
			receive, _ := g.IndexOf(g.Actions[id].Matching())
			if next == g.First[one+1] || slices.Contains(g.Deps[next], receive) {
				needs[id][receive] = true
				mark(receive)
			}
		}
	}
	return paced(g, func(at []int, worker, action int) bool {
		return worker != one && at[one] < g.First[one+1] && !needs[at[one]][action]
	})
}

// passes are steps of a problem, with updates, and one inference. It returns what the pipe says of
// its limits, and the most bytes of each device.
func (q problem) passes(cfg pipe.Config, limits []int64, hold func(g *schedule.Graph) func(worker, action int)) (safe, peaks []int64, err error) {
	model := q.model()
	defer nn.Free(model)
	c := torch.NewCtx(torch.Options{Threads: 1})
	defer c.Close()
	x, y := q.input(c, 0), q.target(c, 0)
	devices := devicesOf(cfg)
	for i := range devices {
		devices[i].ResetPeak()
		if limits != nil {
			devices[i].SetLimit(limits[i])
			defer devices[i].SetLimit(0)
		}
	}
	p, err := pipe.New(model, cfg)
	if err != nil {
		return nil, nil, err
	}
	defer p.Close()
	delay := func() {
		if hold == nil {
			return
		}
		program, err := p.Program(min(cfg.Chunks, int(q.rows)))
		if err != nil {
			panic(err)
		}
		p.Hold(hold(program.Graph()))
	}
	for step := range 2 {
		delay()
		if _, err := p.Step(context.Background(),
			pipe.Batch{Input: pipe.Rows(x), Target: pipe.Rows(y), Step: int64(step)}, q.loss); err != nil {
			return nil, nil, err
		}
		err := p.OnStages(context.Background(),
			func(stage int, c *torch.Ctx) error { descend(c, p.Stages()[stage].Params()); return nil })
		if err != nil {
			return nil, nil, err
		}
		nn.ZeroGrads(model)
	}
	for _, d := range devices {
		peaks = append(peaks, d.Memory().Peak)
	}
	return p.SafeLimit(), peaks, nil
}

// devicesOf lists the devices of the stages, each once.
func devicesOf(cfg pipe.Config) (out []torch.Device) {
	for i := range cfg.Balance {
		d := torch.CPU(i)
		if cfg.Devices != nil {
			d = cfg.Devices[i]
		}
		if !slices.Contains(out, d) {
			out = append(out, d)
		}
	}
	return out
}

// randomCut draws how so many layers are cut and run.
func randomCut(t *rapid.T, layers int) pipe.Config {
	cfg := pipe.Config{Chunks: rapid.IntRange(1, 5).Draw(t, "chunks"), Seed: 1}
	randomSchedule(t, &cfg, layers)
	var mixed []pipe.Checkpoint
	for range cfg.Balance {
		mixed = append(mixed, rapid.SampledFrom(policies).Draw(t, "policy"))
	}
	cfg.Checkpoint = pipe.PerStage(mixed...)
	return cfg
}

// TestSafeLimitHolds: under the safe limit of a run, here one in which neighbours receive at
// once, the same passes when they are as late as they can be. Networks are of all kinds: with
// skips, tied parameters, tuples, views and layers that pass on what they are given.
func TestSafeLimitHolds(t *testing.T) {
	torchtest.Check(t)
	rapid.Check(t, func(t *rapid.T) {
		kinds := rapid.SliceOfN(anyKind, 1, 8).Draw(t, "kinds")
		q := problem{model: func() *nn.Sequential { return randomModel(kinds, unwrapped) }, rows: 5,
			loss: nn.CrossEntropy(), input: normal(5, 2, 6, 6), target: classes(5, 3)}
		cfg := randomCut(t, len(q.model().Layers()))
		for one, device := range devicesOf(cfg) {
			safe, peaks, err := q.passes(cfg, nil, func(g *schedule.Graph) func(int, int) { return prompt(g, one) })
			if err != nil {
				t.Fatal(err)
			}
			if peaks[one] > safe[one] {
				t.Errorf("%v takes %d bytes, and %d were to be safe", device, peaks[one], safe[one])
			}
			if _, _, err := q.passes(cfg, safe, func(g *schedule.Graph) func(int, int) { return late(g, one) }); err != nil {
				t.Errorf("with late neighbours of %v, %v bytes are not safe: %v", device, safe, err)
			}
		}
	})
}

// TestSafeLimitIsExact: where stages do not pass on the memory that they were given, the safe limit
// is the same whatever run it is taken from, one in which neighbours receive at once, one in
// which they are late, or any, and it is to the byte what a device holds when they are late.
func TestSafeLimitIsExact(t *testing.T) {
	torchtest.Check(t)
	rapid.Check(t, func(t *rapid.T) {
		widths := rapid.SliceOfN(rapid.Int64Range(1, 60), 2, 8).Draw(t, "widths")
		kinds := rapid.SliceOfN(rapid.IntRange(0, 2), len(widths), -1).Draw(t, "kinds")
		far := rapid.Bool().Draw(t, "far")
		q := problem{rows: 7, loss: nn.MSE(), input: normal(7, 8), target: normal(7, 8)}
		q.model = func() *nn.Sequential {
			model := nn.NewSequential()
			add := func(l nn.Layer) { model.Add(fmt.Sprint(model.Len()), l) }
			at := int64(8)
			for i, w := range widths {
				add(nn.NewSequential(nn.NewLinear(at, w), []nn.Layer{nn.NewTanh(), nn.NewSigmoid(), nn.NewReLUInPlace()}[kinds[i]]))
				at = w
			}
			add(nn.NewLinear(at, 8))
			if !far {
				return model
			}
			stash := layer(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { y := c.Tanh(x); c.Stash("far", y); return c.Tanh(y) })
			stash.Stashes("far")
			pop := layer(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.Mul(x, c.Pop("far")) })
			pop.Pops("far")
			return nn.NewSequential(stash).Add("middle", model).Add("pop", pop)
		}
		cfg := randomCut(t, len(q.model().Layers()))
		safe, _, err := q.passes(cfg, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		for one, device := range devicesOf(cfg) {
			for name, hold := range map[string]func(*schedule.Graph, int) func(int, int){"at once": prompt, "late": late} {
				again, peaks, err := q.passes(cfg, nil, func(g *schedule.Graph) func(int, int) { return hold(g, one) })
				if err != nil || !slices.Equal(again, safe) {
					t.Errorf("with neighbours of %v that receive %s, %v are safe, and %v before: %v",
						device, name, again, safe, err)
				}
				if peaks[one] > safe[one] || name == "late" && peaks[one] != safe[one] {
					t.Errorf("with neighbours of %v that receive %s it takes %d bytes, and %d are safe",
						device, name, peaks[one], safe[one])
				}
			}
		}
	})
}

// wide is a problem of few parameters and many rows, whose first stage of two layers gives more
// than it is given.
func wide() problem {
	const rows = 600
	return problem{rows: rows, loss: nn.MSE(), input: normal(rows, 4), target: normal(rows, 4), steps: 1,
		model: func() *nn.Sequential { return nn.NewSequential(nn.NewLinear(4, 32), nn.NewTanh(), nn.NewLinear(32, 4)) }}
}

// TestInferStaysWithinABudget: with the policy optimal, a first stage that is ahead of the next
// does not fill its device with outputs, in an inference as little as in a step: under the least
// budgets that train, both pass when neighbours are late. What an inference takes is part of the
// safe limit.
func TestInferStaysWithinABudget(t *testing.T) {
	torchtest.Check(t)
	q := wide()
	c := torch.NewCtx(torch.Options{Threads: 1, Device: torch.CPU(7)})
	defer c.Close()
	x, y := q.input(c, 0), q.target(c, 0)
	for _, policy := range []pipe.Checkpoint{pipe.Optimal, pipe.Always} {
		for one := range 2 {
			model := q.model()
			cfg := pipe.Config{Balance: []int{2, 1}, Chunks: 6, Checkpoint: policy, Seed: 1}
			if policy == pipe.Optimal {
				cfg.Budget = []int64{1, 1}
				p, err := pipe.Open(model, cfg)
				if err != nil {
					t.Fatal(err)
				}
				_, err = p.PlanFor(context.Background(), pipe.Batch{Input: pipe.Rows(x), Target: pipe.Rows(y)}, q.loss)
				for _, s := range shortages(t, err).Stages {
					cfg.Budget[s.Stage] = s.Least
				}
				p.Close()
			}
			for i := range 2 {
				torch.CPU(i).ResetPeak()
			}
			p, err := pipe.New(model, cfg)
			if err != nil {
				t.Fatal(err)
			}
			g, err := p.InferGraph(cfg.Chunks)
			if err != nil {
				t.Fatal(err)
			}
			p.Hold(late(g, one))
			out, err := p.Infer(context.Background(), pipe.Batch{Input: pipe.Rows(x)})
			if err != nil {
				t.Errorf("%v, late neighbours of %v, with %v bytes: %v", policy, torch.CPU(one), cfg.Budget, err)
			}
			torch.FreeAll(out.Output)
			if safe, peak := p.SafeLimit()[one], torch.CPU(one).Memory().Peak; peak != safe {
				t.Errorf("%v, late neighbours of %v: it takes %d bytes, and %d are safe", policy, torch.CPU(one), peak, safe)
			}
			b := pipe.Batch{Input: pipe.Rows(x), Target: pipe.Rows(y)}
			if _, err := p.PlanFor(context.Background(), b, q.loss); err != nil {
				t.Fatal(err)
			}
			program, err := p.Program(cfg.Chunks)
			if err != nil {
				t.Fatal(err)
			}
			p.Hold(late(program.Graph(), one))
			if _, err := p.Step(context.Background(), b, q.loss); err != nil {
				t.Errorf("%v, late neighbours of %v, with %v bytes, a step: %v", policy, torch.CPU(one), cfg.Budget, err)
			}
			p.Close()
			nn.Free(model)
		}
	}
}
