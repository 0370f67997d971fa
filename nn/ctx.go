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

	running         Module    // the module in Forward, if Run or RunNamed called it; nil without
	model           *Base     // the layer that Run has run as a model; nil before
	stashed, popped []SkipKey // by running
	failed          *string   // path of the layer that panicked in a recomputation; forks share it
}

// Config is the state of the run.
type Config struct {
	Training bool // dropout drops and batch norm uses the batch
	// MicroBatch is the index of the micro-batch, 0 without a pipe. MicroBatches is their number.
	MicroBatch, MicroBatches int
	// Checkpointing says that this forward keeps no graph and that a recomputation will follow.
	Checkpointing bool
	// Recomputing says that this forward repeats an earlier one to rebuild its graph: running
	// statistics must not move again.
	Recomputing bool
	// Seed, of the run and step, is mixed with the micro-batch and the layer's name. If it is 0 in
	// training, NewCtx takes the next seed of the torch.Ctx, so that dropout differs by forward.
	Seed  uint64
	Spans bool // record which autograd nodes each layer makes; see LayerOf

	// Skips holds the skips of a forward of a part of a model. If it is nil, the outermost
	// Sequential makes a store of its own.
	Skips *SkipStore
	// Deferred gathers the statistics of a mini-batch's BatchNorms. If it is nil, running
	// statistics move with each micro-batch.
	Deferred *Deferred
	// Extras are values that are no tensors, by name: a length, a mode, a table. They come with a
	// batch (pipe.Batch.Extras), and every layer and micro-batch gets the same values:
	//
	//	width, ok := c.Extras["width"].(int)
	//
	// They must not change during the run, as layers on several goroutines read them.
	Extras map[string]any
	Cache  *Cache          // of keys and values; nil without
	Loss   Loss            // for LossLayer; nil without a loss
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

// Path is the full dotted name of the running layer. After a panic in forward or in a recomputation
// (Checkpointed) it is the name of the layer that panicked.
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

// LayerOf returns the innermost layer that made the autograd node with a sequence number, or "". It
// needs Config.Spans.
func (c *Ctx) LayerOf(sequence uint64) string {
	for _, s := range c.spans { // inner layers first
		if s.from <= sequence && sequence < s.to {
			return s.layer
		}
	}
	return ""
}

// Run feeds x through children of the running module, one after the other. It frees each
// intermediate tensor as soon as the next one exists. The seed of a layer's random numbers is
// derived from the run's seed, the micro-batch and the layer's full name. Run panics with a
// *torch.Error if the running module has not declared a layer with Child. If no module is running,
// the layer is a model without a parent. A Ctx runs one such model; for others use RunNamed.
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

// RunNamed runs one layer on a tuple, under a name that is appended to Path. The layer is a
// descendant of the running module. If no module is running, it is any layer. RunNamed frees
// nothing.
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
	c.path, c.hash = append(c.path, suffix...), extendHash(hash, suffix)
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
	inputs := xs
	if overwrites(l.Layer) {
		inputs = nil
	}
	ys = c.denseOutputs(inputs, ys)
	if c.Skips != nil {
		c.Skips.guardOutput(c, l.Layer, ys)
	}
	c.checkSkips()
	if c.Spans {
		c.spans = append(c.spans, span{string(c.path), from, engine.Sequence()})
	}
	// Not deferred: when a layer panics, the path stays where it failed, for the error.
	c.path, c.hash = c.path[:length], hash
	c.running, c.stashed, c.popped = running, stashed, popped
	c.ResumeDraws(seed, draws)
	return ys
}

// denseOutputs makes the outputs of a layer dense, as a pipe does where it cuts the model. inputs
// are those that the layer may have returned (engine.Boundary). A repeated tensor stays one tensor.
func (c *Ctx) denseOutputs(inputs, ys []*torch.Tensor) []*torch.Tensor {
	out := slices.Clone(ys)
	for i, y := range ys {
		if k := slices.Index(ys, y); k < i {
			out[i] = out[k]
		} else {
			out[i] = engine.Boundary(c.Ctx, y, inputs...)
		}
	}
	return out
}

const fnvOffset = 14695981039346656037

// extendHash continues an FNV-1a hash.
func extendHash(h uint64, s string) uint64 {
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return h
}

// Fork returns a context on t with the path, the seed and the Config of c, for wrappers that run
// layers of the running module later, such as inside of Backward. Spans and Skips are taken from o.
// Checkpointing and Recomputing are set if c or o has them set. Later changes of c do not affect
// the fork. If a layer on the fork panics, call FailedAt.
func (c *Ctx) Fork(t *torch.Ctx, o Config) *Ctx {
	n := *c
	n.Ctx, n.path, n.spans = t, slices.Clone(c.path), nil
	n.Spans, n.Skips = o.Spans, o.Skips
	n.Checkpointing, n.Recomputing = c.Checkpointing || o.Checkpointing, c.Recomputing || o.Recomputing
	return &n
}

// FailedAt sets Path to the Path of a fork on which a layer panicked.
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
