package profile

import (
	"context"
	"slices"
	"time"

	"penstock/nn"
	"penstock/remat"
	"penstock/segment"
	"penstock/torch"
)

// prober runs units by single operations, as whoever interprets a plan will, and reads the account.
type prober struct {
	Config
	ctx    context.Context
	layers []nn.NamedLayer // the model's, and the loss if there is one
	model  int             // number of the model's
	routes []nn.SkipRoute
	c      *torch.Ctx // nothing stays in it between operations
	peer   *torch.Ctx // to which transfers are timed
	now    func() time.Duration

	// Of what is measured: layers one by one, or a stage.
	s         *segment.Segment
	overwrite bool // layers may overwrite what they are given, as they may within a unit
	inputGrad bool // what it is sent wants a gradient

	xs     []*torch.Tensor // what the next unit is given; kept
	skips  []*torch.Tensor // by the skips at the border before it; kept
	before input           // what the one before was given
	left   [2]gradients    // the gradients of its input that the last unit has left, in two runs: each can be given on once
	sent   map[nn.SkipKey]*torch.Tensor

	ended      []int64              // bytes of the gradients that were given last
	drops      []func()             // of identities that are held, and of tensors
	executions []*segment.Execution // that the unit has begun: an operation that fails leaves things in them
	deferred   nn.Deferred          // statistics that first forwards gather
}

func newProber(ctx context.Context, config Config, layers []nn.NamedLayer, routes []nn.SkipRoute) *prober {
	p := &prober{Config: config, ctx: ctx, layers: layers, model: len(layers), routes: routes, now: config.clock()}
	p.c = torch.NewCtx(torch.Options{Device: config.Device, Threads: config.Threads})
	p.peer = torch.NewCtx(torch.Options{Device: config.Peer, Threads: config.Threads})
	if config.Loss != nil {
		p.layers = append(slices.Clone(layers), nn.LossLayer())
	}
	return p
}

// progress tells how much is done.
func (p *prober) progress(done, of int) {
	if p.Progress != nil {
		p.Progress(p.model*done/of, p.model)
	}
}

// live is the bytes on the device.
func (p *prober) live() int64 { return p.Device.Memory().Live }

// context runs a layer as in training.
func (p *prober) context(c *torch.Ctx, run segment.Run) *nn.Ctx {
	cfg := nn.Config{Training: true, Checkpointing: run.More, Recomputing: run.Again, Seed: p.Seed, Spans: run.Graph, Skips: run.Skips, Extras: p.Extras, Loss: p.Loss, Targets: p.Targets}
	if p.DeferredBatchNorm {
		cfg.Deferred = &p.deferred
	}
	return nn.NewCtx(c, cfg)
}

// reading is what an operation does to the account.
type reading struct {
	peak  int64 // above what was live before
	delta int64
	took  time.Duration
}

// do performs an operation on a walk and reads the account around it.
func (p *prober) do(e *segment.Execution, op remat.Op) (r reading) {
	was := p.c.SetAutocast(p.Autocast)
	before := p.Device.Memory().Live
	p.Device.ResetPeak()
	start := p.now()
	e.Do(p.c, op)
	r.took = p.now() - start
	m := p.Device.Memory()
	p.c.SetAutocast(was)
	r.peak, r.delta = m.Peak-before, m.Live-before
	return r
}

// walk is a new walk that has come to a unit; again says that the unit has run before.
func (p *prober) execute(unit int, again bool) *segment.Execution {
	e := p.executeFrom(input{p.xs, p.skips}, unit)
	if again {
		e.Again(unit)
	}
	return e
}

// executeFrom is a new walk that has come to a unit, which is given in. It is freed by dropHeld, if not before.
func (p *prober) executeFrom(in input, unit int) *segment.Execution {
	a := segment.Arrival{Tensors: p.shared(in.xs), Skips: p.shared(in.skips)}
	if unit == 0 {
		a.Wants, a.WantsSkips = p.wants(in.xs), p.wants(in.skips)
	}
	return p.executeWith(unit, a)
}

// executeWith is a new walk that has come to a unit, which has arrived at it.
func (p *prober) executeWith(unit int, a segment.Arrival) *segment.Execution {
	e := &segment.Execution{}
	e.Begin(p.s, p.context)
	p.executions = append(p.executions, e)
	e.Send(unit, a)
	return e
}

// shared are further handles on tensors, kept. What stands there twice is one.
func (p *prober) shared(list []*torch.Tensor) []*torch.Tensor {
	out := make([]*torch.Tensor, len(list))
	for i, x := range list {
		if k := slices.Index(list[:i], x); k >= 0 {
			out[i] = out[k]
		} else if x != nil {
			out[i] = p.c.Keep(p.c.Share(x))
		}
	}
	return out
}

// wants says which of what a stage is sent is to bring a gradient back.
func (p *prober) wants(xs []*torch.Tensor) []bool {
	out := make([]bool, len(xs))
	for i, x := range xs {
		out[i] = p.inputGrad && x != nil && x.DType().IsFloat()
	}
	return out
}

func (p *prober) close() {
	torch.FreeAll(p.xs)
	torch.FreeAll(p.skips)
	for _, t := range p.sent {
		t.Free()
	}
	p.deferred.Free()
	p.c.Close()
	p.peer.Close()
}
