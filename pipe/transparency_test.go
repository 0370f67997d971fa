package pipe_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"penstock.example/internal/draws"
	"penstock.example/internal/must"
	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/plan"
	"penstock.example/schedule"
	"penstock.example/torch"
)

var policies = []pipe.Checkpoint{pipe.Never, pipe.Always, pipe.ExceptLast}

func balances(layers int) [][]int {
	return [][]int{{layers}, {layers / 2, layers - layers/2}, {1, layers - 2, 1}, {1, 1, layers - 3, 1}}
}

// A pipelined model is the plain model, bit for bit: losses, gradients, parameters and running
// statistics, for every stage count and policy.
func TestTransparency(t *testing.T) {
	torchtest.Check(t)
	for name, q := range map[string]problem{
		"mlp with dropout": {
			model: func() *nn.Sequential {
				return nn.NewSequential(nn.NewFlatten(1, -1), nn.NewLinear(12, 32), nn.NewReLUInPlace(),
					nn.NewDropout(0.3),
					nn.NewSequential(nn.NewLinear(32, 32), nn.NewTanh(),
						nn.NewDropout(0.5)), nn.NewLinear(32, 4))
			},
			loss: nn.CrossEntropy(), input: normal(10, 3, 4), target: classes(10, 4), rows: 10, steps: 3,
		},
		"products that oneDNN computes, with a last micro-batch of other kernels": {
			model: func() *nn.Sequential {
				return nn.NewSequential(nn.NewLinear(72, 96),
					torchtest.TransformerBlock(96, 4, 0), nn.NewFlatten(1, -1), nn.NewLinear(40*96, 4))
			},
			loss: nn.CrossEntropy(), input: normal(10, 40, 72), target: classes(10, 4), rows: 10, steps: 2,
		},
		"convolutions of few positions, with a last micro-batch of other kernels": {
			model: fewPositions, loss: nn.CrossEntropy(), input: normal(11, 3, 16, 16), target: classes(11,
				10), rows: 11, steps: 3,
		},
		"convolutions with batch norm": {
			model: func() *nn.Sequential {
				return nn.NewSequential(nn.NewConv2d(3, 8, nn.Pair{3, 3},
					nn.ConvConfig{Padding: nn.Pair{1, 1}}),
					nn.NewBatchNorm2d(8, nn.BatchNormConfig{}), nn.NewReLUInPlace(),
					nn.NewBasicBlock(8, 16, 2), nn.NewBasicBlock(16, 16,
						1), nn.NewAdaptiveAvgPool2d(nn.Pair{1, 1}), nn.NewFlatten(1, -1), nn.NewLinear(16, 5))
			},
			loss: nn.CrossEntropy(), input: normal(11, 3, 9, 9), target: classes(11, 5), rows: 11, steps: 3,
		},
		"micro-batches that begin between two multiples of 16 bytes": {
			model: func() *nn.Sequential {
				return nn.NewSequential(nn.NewLinear(3, 32), nn.NewGELU(), nn.NewLinear(32, 32),
					nn.NewTanh(), nn.NewLinear(32, 4))
			},
			loss: nn.CrossEntropy(), input: normal(20, 3), target: classes(20, 4), rows: 20, steps: 3,
		},
	} {
		t.Run(name, func(t *testing.T) {
			torchtest.Check(t)
			want := q.plain(4, 5)
			layers := q.model().Layers()
			for _, balance := range balances(len(layers)) {
				for _, policy := range policies {
					got := q.piped(t, pipe.Config{Balance: balance, Chunks: 4, Checkpoint: policy, Seed: 5})
					if d := want.differs(got); d != "" {
						t.Errorf("balance %v, %v: %s differs from the plain loop", balance, policy, d)
					}
				}
			}
		})
	}
}

// The same for random models, batches, chunks, balances, policies, devices, programs and links,
// where stages may share a device, and where layers of the pipelined model recompute by themselves.
func TestTransparencyOfRandomModels(t *testing.T) {
	torchtest.Check(t)
	draws.Checks(t, 25, 400)
	rapid.Check(t, func(t *rapid.T) {
		live := torch.LiveTensors()
		rows := rapid.Int64Range(1, 9).Draw(t, "rows")
		kinds := rapid.SliceOfN(anyKind, 1, 10).Draw(t, "layers")
		chunks := rapid.IntRange(1, 6).Draw(t, "chunks")
		seed := rapid.Uint64().Draw(t, "seed")
		q := problem{
			model: func() *nn.Sequential { return randomModel(kinds, nn.Checkpointed) }, rows: rows, steps: 2,
			loss: nn.CrossEntropy(), input: normal(rows, 2, 6, 6), target: classes(rows, 3),
			deferred: rapid.Bool().Draw(t, "deferred"), autocast: randomAutocast(t),
			threads: rapid.IntRange(1, 2).Draw(t, "threads"),
		}
		if rapid.Bool().Draw(t, "sum") {
			q.loss = nn.CrossEntropy(nn.LossConfig{Sum: true})
		}
		cfg := pipe.Config{Chunks: chunks, DeferredBatchNorm: q.deferred, Autocast: q.autocast,
			Threads: q.threads, Seed: seed}
		meets := randomSchedule(t, &cfg, len(q.model().Layers()))
		var mixed []pipe.Checkpoint
		for range cfg.Balance {
			mixed = append(mixed, rapid.SampledFrom(policies).Draw(t, "policy"))
		}
		cfg.Checkpoint = pipe.PerStage(mixed...)
		cfg = onDevices(cfg)
		if rapid.IntRange(0, 4).Draw(t, "optimal") == 0 {
			q.randomBudgets(t, &cfg)
		}
		if q.link = randomLink(t, meets); cfg.Budget != nil {
			q.link = nil // bytes on a link take memory twice
		}
		got := q.pipedAs(t, cfg)
		q.model = func() *nn.Sequential { return randomModel(kinds, unwrapped) }
		want := q.plain(int64(chunks), seed)
		if d := want.differs(got); d != "" {
			t.Fatalf("%s differs from the plain loop", d)
		}
		if n := torch.LiveTensors() - live; n != 0 {
			t.Fatalf("%d tensors were not freed:\n%s", n, strings.Join(torch.Leaks(), "\n"))
		}
	})
}

// randomBudgets lets the policy of all stages of some devices be optimal, within budgets from the least
// that will do to what the devices take without it.
func (q problem) randomBudgets(t *rapid.T, cfg *pipe.Config) {
	var mixed []pipe.Checkpoint
	optimal, budgets := map[torch.Device]bool{}, map[torch.Device]int64{}
	for i, d := range cfg.Devices {
		if _, drawn := optimal[d]; !drawn {
			optimal[d] = rapid.IntRange(0, 3).Draw(t, "optimal on a device") > 0
		}
		policy := pipe.Optimal
		if !optimal[d] {
			policy = rapid.SampledFrom(policies).Draw(t, "policy beside optimal")
		}
		cfg.Devices[i].ResetPeak()
		mixed = append(mixed, policy)
	}
	if !slices.Contains(mixed, pipe.Optimal) {
		return
	}
	planned := cfg.Apart() // by device
	planned.Checkpoint = pipe.PerStage(mixed...)
	var refused *pipe.ConfigError
	if errors.As(planned.Check(q.model()), &refused) && refused.Field == "Schedule" {
		return // it needs more devices
	}
	q.pipedAs(t, *cfg)
	*cfg = planned
	cfg.Budget = make([]int64, len(mixed))
	for i, d := range cfg.Devices {
		if _, drawn := budgets[d]; optimal[d] && !drawn {
			budgets[d] = d.Memory().Peak * rapid.Int64Range(50, 110).Draw(t, "percent") / 100
		}
		cfg.Budget[i] = budgets[d]
	}
	q.raise(t, cfg)
}

// raise makes budgets that are too low the least that will do.
func (q problem) raise(t test, cfg *pipe.Config) {
	short := q.shortages(t, *cfg)
	if short == nil {
		return
	}
	for _, s := range short.Stages {
		for _, stage := range append(s.Others, s.Stage) {
			cfg.Budget[stage] = s.Least
		}
	}
	if short := q.shortages(t, *cfg); short != nil {
		t.Fatalf("a second time: %v", short)
	}
}

// shortages lists the stages whose budgets are too low.
func (q problem) shortages(t test, cfg pipe.Config) (short *plan.MemoryError) {
	model := q.model()
	defer nn.Free(model)
	p := must.Get(pipe.Open(model, cfg))(t)
	defer p.Close()
	c := torch.NewCtx(torch.Options{Device: aside})
	defer c.Close()
	_, err := p.PlanFor(context.Background(), q.batch(c, p.Stages(), 0), q.loss)
	if err != nil && !errors.As(err, &short) {
		t.Fatal(err)
	}
	return short
}

// order is how stages are placed and what their workers do, drawn at random, as data.
type order struct {
	Name     string // of the schedule; "" is any order
	Capacity int
	Seed     uint64 // of any order
	Parts    bool   // any order has backwards in two parts
	Balance  []int
	Devices  []int // by stage
}

// drawOrder draws the order of so many layers on at least so many devices, and at most so many.
func drawOrder(t *rapid.T, layers, least, most int) (o order) {
	o.Capacity = rapid.IntRange(schedule.Meet, 2).Draw(t, "capacity")
	named := rapid.SampledFrom(schedule.Schedules()).Draw(t, "schedule")
	virtual := named.Virtual
	if virtual == 0 {
		virtual = rapid.IntRange(1, min(3, layers)).Draw(t, "virtual")
	}
	if virtual*least > layers {
		named, virtual = schedule.Schedules()[0], 1
	}
	workers := must.Get(named.Workers(rapid.IntRange(least, min(most, layers/virtual)).Draw(t, "devices"),
		virtual))(t)
	o.Name = named.Name
	place := func(count int) { // the stages on so many devices, of which each of the least has one
		for i := range workers {
			if workers[i] = i; i >= least {
				workers[i] = rapid.IntRange(0, count-1).Draw(t, "worker")
			}
		}
		workers = rapid.Permutation(workers).Draw(t, "placement")
	}
	switch rapid.IntRange(0, 2).Draw(t, "order") {
	case 0: // any order on any placement
		place(rapid.IntRange(least, len(workers)).Draw(t, "count"))
		o.Name, o.Capacity = "", 0
		o.Seed, o.Parts = rapid.Uint64().Draw(t, "seed of the order"),
			rapid.Bool().Draw(t, "backwards in two parts")
	case 1: // GPipe too has programs for any placement
		place(len(workers))
		o.Name = "gpipe"
	}
	o.Devices = workers
	for i := range workers {
		n := layers - (len(workers) - 1 - i)
		if i < len(workers)-1 {
			n = rapid.IntRange(1, n).Draw(t, "stage")
		}
		o.Balance, layers = append(o.Balance, n), layers-n
	}
	return o
}

// meets says whether the programs run on links that meet.
func (o order) meets() bool { return o.Name != "" }

// generate is the generator of the programs.
func (o order) generate() schedule.Generator {
	generate := anyOrder(o.Seed, o.Parts)
	if named, err := schedule.Named(o.Name); err == nil {
		generate = named.Generate
	}
	return func(c schedule.Config) (*schedule.Program, error) {
		if c.Capacity == 0 { // no memory is planned
			c.Capacity = o.Capacity
		}
		return generate(c)
	}
}

// set makes it that of a configuration for CPUs.
func (o order) set(cfg *pipe.Config) {
	cfg.Balance, cfg.Schedule, cfg.Devices = o.Balance, o.generate(), nil
	for _, d := range o.Devices {
		cfg.Devices = append(cfg.Devices, torch.CPU(d))
	}
}

// randomSchedule draws a schedule, with a cut of so many layers and a placement that it has programs
// for. It says whether the programs run on links that meet.
func randomSchedule(t *rapid.T, cfg *pipe.Config, layers int) (meets bool) {
	o := drawOrder(t, layers, 1, 4)
	o.set(cfg)
	return o.meets()
}

// anyOrder makes programs with any of the orders that the dependencies of their actions allow. With
// parts, some backwards are in two.
func anyOrder(seed uint64, parts bool) schedule.Generator {
	return func(c schedule.Config) (*schedule.Program, error) {
		capacity := c.Capacity
		c.Capacity = 0
		p, err := schedule.GPipe(c)
		if err != nil {
			return nil, err
		}
		random := rand.New(rand.NewPCG(seed, 0))
		for w, actions := range p.Workers {
			for i, a := range actions {
				if parts && a.Kind == schedule.Backward && random.IntN(4) > 0 {
					p.Workers[w][i].Kind, a.Kind = schedule.BackwardInput, schedule.BackwardWeight
					p.Workers[w] = append(p.Workers[w], a)
				}
			}
		}
		g := p.Graph()
		workers := make([][]schedule.Action, len(p.Workers))
		done := make([]bool, len(g.Actions))
		for range g.Actions {
			var ready []int
			for id := range g.Actions {
				if !done[id] && !slices.ContainsFunc(g.Deps[id], func(dep int) bool { return !done[dep] }) {
					ready = append(ready, id)
				}
			}
			id := ready[random.IntN(len(ready))]
			done[id] = true
			workers[g.Worker[id]] = append(workers[g.Worker[id]], g.Actions[id])
		}
		p.Workers, p.Capacity = workers, capacity // with which it may be stuck
		return p, nil
	}
}

// randomLink draws links between stages; nil is the memory of the process.
func randomLink(t *rapid.T, mayMeet bool) linkMaker {
	if !rapid.Bool().Draw(t, "bytes on links") {
		return nil
	}
	meets, delays := rapid.Bool().Draw(t, "links meet") && mayMeet, rapid.Bool().Draw(t, "links delay")
	return wires(meets, delays)
}

// kindCount is how many numbers randomModel knows. From gapped on they are tensors with gaps, between layers.
const (
	gapped    = 34
	kindCount = gapped + gapCount*sensitiveCount
)

// anyKind draws one of them.
var anyKind = rapid.OneOf(rapid.IntRange(0, gapped-1), rapid.IntRange(0, gapped-1),
	rapid.IntRange(gapped, kindCount-1))

// randomModel makes a network of [rows, 2, 6, 6] to 3 classes out of numbers. Some of its layers
// are wrapped by wrap.
func randomModel(kinds []int, wrap func(nn.Layer) nn.Layer) *nn.Sequential {
	m := &randomNet{Sequential: nn.NewSequential(), wrap: wrap}
	for i, k := range kinds {
		m.grow(i, k)
	}
	for len(m.unpopped) > 0 {
		m.pop(0)
	}
	m.add(nn.NewFlatten(1, -1))
	m.add(nn.NewLinear(72, 3))
	return m.Sequential
}

type randomNet struct {
	*nn.Sequential
	skips    []string
	unpopped []string
	weight   *nn.Param // to share
	wrap     func(nn.Layer) nn.Layer
	wrapNext bool
	last     nn.Layer // without its wrap
}

func (m *randomNet) add(l nn.Layer) {
	m.last = l
	if m.wrapNext {
		l, m.wrapNext = m.wrap(l), false
	}
	m.Add(fmt.Sprintf("l%d", m.Len()), l)
}

func unwrapped(l nn.Layer) nn.Layer { return l }

func (m *randomNet) grow(i, k int) {
	image := layer(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.Reshape(x, -1, 2, 6, 6) })
	switch k {
	case 0:
		m.add(nn.NewConv2d(2, 2, nn.Pair{3, 3}, nn.ConvConfig{Padding: nn.Pair{1, 1}, Groups: 2}))
	case 1:
		m.add(nn.NewBatchNorm2d(2, nn.BatchNormConfig{}))
	case 2:
		m.add(nn.NewReLU())
	case 3:
		m.add(nn.NewSequential(nn.NewConv2d(2, 2, nn.Pair{1, 1}, nn.ConvConfig{}), nn.NewReLUInPlace()))
	case 4:
		m.add(nn.NewDropout(0.4))
	case 5:
		m.add(nn.NewTanh())
	case 6:
		m.add(nn.NewSequential(nn.NewGELU(), nn.NewSequential(nn.NewDropout(0.2), nn.NewIdentity())))
	case 7:
		m.add(nn.NewBasicBlock(2, 2, 1))
	case 8:
		m.add(nn.NewLayerNorm([]int64{2, 6, 6}, nn.NormConfig{}))
	case 9:
		m.add(nn.NewConv2d(2, 2, nn.Pair{1, 1}, nn.ConvConfig{}))
	case 10:
		m.add(nn.NewSigmoid())
	case 11:
		m.add(nn.NewLinear(6, 6))
	case 12:
		m.add(layer(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.Transpose(x, 2, 3) }))
	case 13:
		m.add(layer(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
			return c.Add(x, c.Op("aten::sum.dim_IntList", x, []int64{1, 3}, true))
		}))
	case 14:
		m.add(nn.NewSequential(nn.NewUpsample(nn.UpsampleConfig{Scale: [2]float64{2, 2}}),
			nn.NewMaxPool2d(nn.Square(2), nn.PoolConfig{})))
	case 15:
		m.add(nn.NewAvgPool2d(nn.Square(3), nn.PoolConfig{Stride: nn.Square(1), Padding: nn.Square(1)}))
	case 16:
		m.add(nn.NewSoftmax(1))
	case 17:
		m.add(nn.NewSequential(nn.NewFlatten(2, -1), torchtest.TransformerBlock(36, 4, 0.1), image))
	case 18, 19:
		m.stash(k == 19)
	case 20:
		if len(m.skips) > 0 {
			m.pop(i % len(m.skips))
		}
	case 21:
		m.tie()
	case 22:
		m.tuples()
	case 23:
		m.wrapNext = true
	case 24:
		m.freeze()
	case 25:
		m.add(nn.NewSequential(nn.NewConvTranspose2d(2, 2, nn.Square(2), nn.ConvConfig{Stride: nn.Square(2)}),
			nn.NewAvgPool2d(nn.Square(2), nn.PoolConfig{})))
	case 26:
		m.add(nn.NewGroupNorm(2, 2, nn.NormConfig{NoAffine: true}))
	case 27:
		m.add(nn.NewGroupNorm(1, 2, nn.NormConfig{}))
	case 28:
		m.add(nn.NewRMSNorm([]int64{6, 6}, nn.NormConfig{Eps: 1e-3}))
	case 29:
		m.add(nn.NewSiLU())
	case 30:
		m.add(nn.NewSequential(nn.NewFlatten(2, -1), torchtest.SelfAttention(36, 3, false), image))
	case 31:
		m.add(nn.NewSequential().Add("", nn.NewLinearTransposed(6, 6)).Add("two",
			nn.NewLinearTransposed(6, 6)))
	case 32:
		m.add(nn.NewFlatten(2, -1))
		m.add(torchtest.SelfAttention(36, 4, true))
		m.add(tuples(func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
			return []*torch.Tensor{c.Reshape(xs[0], -1, 2, 6, 6)}
		}))
	case 33: // rotations, queries in groups, heads whose norms are their own, and a gate
		block := nn.NewSequential(nn.NewFlatten(2, -1))
		for _, l := range nn.NewGroupedAttention(nn.AttentionConfig{Dim: 36, Heads: 6, KVHeads: 2, HeadDim: 4,
			NormHeads: true, Causal: true, Frequencies: []float64{1, 0.1}}) {
			block.Add(cmp.Or(l.Name, "heads"), l.Layer)
		}
		m.add(block.Add("mlp", nn.NewSwiGLU(36, 10)).Add("image", image))
	default:
		k -= gapped
		m.add(sensitive((k + i) % sensitiveCount))
		m.gap(k / sensitiveCount)
		m.add(sensitive(k % sensitiveCount))
	}
}

// stash adds a layer that stashes its input, or something that it has made from it.
func (m *randomNet) stash(made bool) {
	name := fmt.Sprintf("skip%d", len(m.skips))
	m.skips, m.unpopped = append(m.skips, name), append(m.unpopped, name)
	l := layer(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
		if made {
			y := c.Op("aten::tanh", x)
			c.Stash(name, y)
			return c.Mul(y, x)
		}
		c.Stash(name, x)
		return x
	})
	l.Stashes(name)
	m.wrapNext = false // a wrapper has both ends of its skips
	m.add(l)
}

// pop adds a layer that pops a skip, which others may pop too, and uses it more than once.
func (m *randomNet) pop(i int) {
	name := m.skips[i]
	if i == 0 && len(m.unpopped) > 0 {
		name = m.unpopped[0]
	}
	m.unpopped = slices.DeleteFunc(m.unpopped, func(s string) bool { return s == name })
	l := layer(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
		skip := c.Pop(name)
		return c.Op("aten::tanh", c.Add(c.Mul(x, skip), c.Add(x, skip)))
	})
	l.Pops(name)
	m.wrapNext = false
	m.add(l)
}

// tie adds a layer whose weight is that of others. It is not wrapped: the sum of the weight's
// gradients would be grouped otherwise.
func (m *randomNet) tie() {
	m.wrapNext = false
	l := &call{}
	if m.weight == nil {
		l.p = l.Param("weight", nn.FanIn(6), 6, 6)
		m.weight = l.p
	} else {
		l.p = l.Share("weight", m.weight)
	}
	twice := m.Len()%2 == 1
	l.f = func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
		y := c.PlainLinear(x, l.p.Tensor(), nil)
		if twice {
			y = c.PlainLinear(c.Op("aten::tanh", y), l.p.Tensor(), nil)
		}
		return y
	}
	m.add(l)
}

// freeze makes the parameters of what was added last constants, whether it is wrapped or not.
func (m *randomNet) freeze() {
	if m.last == nil {
		return
	}
	for _, p := range nn.Params(m.last) {
		p.SetTrainable(false)
	}
}

// tuples adds layers between which a tuple goes: one without a gradient before those with one,
// integers, and one tensor twice.
func (m *randomNet) tuples() {
	m.add(tuples(func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
		return []*torch.Tensor{c.Detach(xs[0]), xs[0], c.Argmax(xs[0], 1), xs[0], c.Op("aten::tanh", xs[0])}
	}))
	m.add(tuples(func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
		return []*torch.Tensor{c.Mul(xs[0], xs[1]), xs[2], c.Add(c.Mul(xs[3], xs[4]), xs[3]), xs[4]}
	}))
	m.add(tuples(func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
		wide := c.Reshape(c.To(xs[1], torch.Float32), -1, 1, 6, 6)
		return []*torch.Tensor{c.Op("aten::tanh", c.Add(c.Add(c.Mul(xs[0], wide), xs[2]), xs[3]))}
	}))
}

// tupled makes a layer of tuples of a function.
type tupled struct {
	nn.Base
	f func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor
}

func (l *tupled) ForwardTuple(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor { return l.f(c, xs) }

// TestShapesMayChange: the rows of each step have another length, in one process and in three.
func TestShapesMayChange(t *testing.T) {
	torchtest.Check(t)
	random := func(c *torch.Ctx, step int) *torch.Tensor {
		return normal(4, []int64{5, 3, 7}[step], 8)(c, step)
	}
	q := problem{
		model: func() *nn.Sequential {
			return nn.NewSequential(nn.NewLinear(8, 16), nn.NewGELU(), nn.NewLinear(16, 8))
		},
		loss: nn.MSE(), input: random, target: random, rows: 4, steps: 3,
	}
	cfg := pipe.Config{Balance: []int{1, 1, 1}, Chunks: 2, Seed: 1}
	if d := q.plain(2, 1).differs(q.piped(t, cfg)); d != "" {
		t.Errorf("%s differs from the plain loop", d)
	}
	if d := q.apart(t, cfg, 1).differs(q.apart(t, cfg, 3)); d != "" {
		t.Errorf("%s differs in three processes", d)
	}
}
