package nn

import (
	"slices"

	"penstock.example/internal/engine"
	"penstock.example/torch"
)

// Ctx is the context of a forward: a torch.Ctx for the operators, and the state of the run. It
// belongs to one goroutine.
type Ctx struct {
	*torch.Ctx
	Config

	seed  uint64 // of the micro-batch
	hash  uint64 // FNV-1a of path
	path  []byte // full dotted name of the layer that runs
	spans []span

	running         Module    // whose Forward was called by Run or RunNamed; nil outside of all modules
	model           *Base     // that was run outside of all modules; nil before the first
	stashed, popped []SkipKey // by running
	failed          *string   // path of the layer that panicked in a recomputation; checkpoints share it
}

// Config is the state of the run.
type Config struct {
	Training bool // dropout drops and batch norm uses the batch
	// MicroBatch of MicroBatches is being run; 0 of 1 without a pipe.
	MicroBatch, MicroBatches int
	// Checkpointing says that this forward keeps no graph and that a recomputation will follow.
	Checkpointing bool
	// Recomputing says that this forward repeats an earlier one to rebuild its graph: running
	// statistics must not move again.
	Recomputing bool
	// Seed of the run and step is mixed with the micro-batch and the layer's name. 0 in training is
	// the next seed of the torch.Ctx, so that dropout drops other elements in each forward.
	Seed  uint64
	Spans bool // record which layer recorded which autograd nodes; see LayerOf

	// Skips is for a forward of a part of a model. Nil: the outermost Sequential makes its own.
	Skips *SkipStore
	// Deferred gathers the statistics of a mini-batch's BatchNorms. Nil moves them with each
	// micro-batch.
	Deferred *Deferred
	// Extras are values that are no tensors, by name: a length, a mode, a table. They come with a
	// batch (pipe.Batch.Extras), and every layer and micro-batch gets the same values:
	//
	//	width, ok := c.Extras["width"].(int)
	//
	// They must not change during the run, as layers on several goroutines read them.
	Extras map[string]any
	Cache  *Cache          // of keys and values; nil without
	Loss   Loss            // what LossLayer computes; nil where no loss is run
	Target []*torch.Tensor // of the micro-batch, for Loss
}

// NewCtx wraps a torch.Ctx, which the caller still owns.
func NewCtx(t *torch.Ctx, o Config) *Ctx {
	o.MicroBatches = max(o.MicroBatches, 1)
	if o.Training && o.Seed == 0 {
		o.Seed = t.NextSeed()
	}
	return &Ctx{Ctx: t, Config: o, seed: torch.Mix(o.Seed, uint64(o.MicroBatch)), hash: fnvOffset,
		failed: new(string)}
}

// Path is the full dotted name of the layer that is running, or that panicked in forward or in a
// recomputation (Checkpointed).
func (c *Ctx) Path() string {
	if len(c.path) == 0 {
		return *c.failed
	}
	return string(c.path)
}

type span struct {
	layer    string
	from, to uint64 // sequence numbers of autograd nodes, from <= n < to
}

// LayerOf returns the innermost layer that recorded the autograd node with a sequence number, or
// "". It needs Config.Spans.
func (c *Ctx) LayerOf(sequence uint64) string {
	for _, s := range c.spans { // inner layers first
		if s.from <= sequence && sequence < s.to {
			return s.layer
		}
	}
	return ""
}

// Run feeds x through layers that are children of the running module, one after the other. It frees
// each intermediate as soon as the next one exists. The seed of a layer's random numbers is derived
// from the run's seed, the micro-batch and the layer's full name. A layer that the running module
// has not declared with Child fails as an operator does. Outside of all modules a layer without a
// parent is a model. A Ctx runs one such model; RunNamed runs others under a name, and layers of
// tuples.
func (c *Ctx) Run(x *torch.Tensor, layers ...Layer) *torch.Tensor {
	xs := c.runAll([]*torch.Tensor{x}, layers...)
	if len(layers) == 0 {
		return x
	}
	return onlyTensor(layers[len(layers)-1], xs)
}

func (c *Ctx) runAll(xs []*torch.Tensor, layers ...Layer) []*torch.Tensor {
	mark := c.Mark()
	for _, l := range layers {
		c.mustRun(l, false)
		xs = c.run(NamedLayer{l.node().name, l}, xs)
		c.Release(mark, xs...)
	}
	return xs
}

// RunNamed runs one layer under a name that is appended to Path. The layer is a child or descendant
// of the running module, or any layer outside of all modules. RunNamed frees nothing.
func (c *Ctx) RunNamed(l NamedLayer, xs []*torch.Tensor) []*torch.Tensor {
	c.mustRun(l.Layer, true)
	return c.run(l, xs)
}

func (c *Ctx) run(l NamedLayer, xs []*torch.Tensor) []*torch.Tensor {
	length, hash := len(c.path), c.hash
	seed, draws := c.Draws()
	running, stashed, popped := c.running, c.stashed, c.popped
	c.running, c.stashed, c.popped = l.Layer, nil, nil
	suffix := l.Name
	if length > 0 && suffix != "" {
		suffix = "." + suffix
	}
	c.path, c.hash = append(c.path, suffix...), hashOn(hash, suffix)
	c.SetSeed(torch.Mix(c.seed, c.hash))
	var from uint64
	if c.Spans {
		from = engine.Sequence()
	}
	in := xs
	if c.Skips != nil {
		in = c.Skips.copyIfNeeded(c, l.Layer, xs)
	}
	training := c.Training
	c.Training = training && !l.node().eval
	ys := c.apply(l.Layer, in)
	c.Training = training
	c.checkOutputs(xs, ys)
	given := xs
	if overwrites(l.Layer) {
		given = nil
	}
	ys = c.denseOutputs(given, ys)
	if c.Skips != nil {
		c.Skips.guardOutput(c, l.Layer, ys)
	}
	c.checkSkips()
	if c.Spans {
		name := l.Name
		if length > 0 {
			name = string(c.path)
		}
		c.spans = append(c.spans, span{name, from, engine.Sequence()})
	}
	// Not deferred: when a layer panics, the path stays where it failed, for the error.
	c.path, c.hash = c.path[:length], hash
	c.running, c.stashed, c.popped = running, stashed, popped
	c.ResumeDraws(seed, draws)
	return ys
}

// denseOutputs makes the outputs of a layer dense, as a pipe does where it cuts the model. A
// repeated tensor stays one tensor. given are inputs that the layer may have returned unchanged.
func (c *Ctx) denseOutputs(given, ys []*torch.Tensor) []*torch.Tensor {
	out := ys
	for i, y := range ys {
		if k := slices.Index(ys, y); k < i {
			if out[k] != y {
				out[i] = out[k]
			}
		} else if dense := engine.Boundary(c.Ctx, y, given...); dense != y {
			if &out[0] == &ys[0] {
				out = slices.Clone(ys)
			}
			out[i] = dense
		}
	}
	return out
}

const fnvOffset = 14695981039346656037

// hashOn continues an FNV-1a hash.
func hashOn(h uint64, s string) uint64 {
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return h
}

// Fork returns a context on t that runs layers of the running module, now or inside of Backward, as
// c would: with the same path, seed and Config. Only Spans and Skips are o's, and Checkpointing and
// Recomputing are set where c or o sets them. Later changes of c do not affect the fork. It is for
// wrappers that choose when layers run; see FailedAt.
func (c *Ctx) Fork(t *torch.Ctx, o Config) *Ctx {
	n := *c
	n.Ctx, n.path, n.spans = t, slices.Clone(c.path), nil
	n.Spans, n.Skips = o.Spans, o.Skips
	n.Checkpointing, n.Recomputing = c.Checkpointing || o.Checkpointing, c.Recomputing || o.Recomputing
	return &n
}

// FailedAt makes Path return path, the Path of a fork that has failed.
func (c *Ctx) FailedAt(path string) {
	if len(c.path) > 0 {
		c.path = append(c.path[:0], path...)
	}
	*c.failed = path
}

// SharedBeyond lists the parameters that modules of m share with modules outside of m, each once.
func SharedBeyond(m Module) []*Param {
	uses := map[*Param]int{}
	var order []*Param
	for _, p := range Shared(m) {
		owner := p.Owner()
		if uses[owner]++; uses[owner] == 1 {
			order = append(order, owner)
		}
	}
	return slices.DeleteFunc(order, func(p *Param) bool { return uses[p] > p.ties })
}
