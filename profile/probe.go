package profile

import (
	"context"
	"slices"
	"time"

	"penstock.example/internal/segment"
	"penstock.example/nn"
	"penstock.example/remat"
	"penstock.example/torch"
)

// prober runs units by single operations, as a pipe does, and reads the device's account.
type prober struct {
	Config
	ctx    context.Context
	layers []nn.NamedLayer // the model's, then the loss
	model  int             // the number of the model's layers
	routes []nn.SkipRoute
	c      *torch.Ctx // nothing stays in it between operations
	peer   *torch.Ctx // to which transfers are timed

	// The segment that is measured: its units are single layers, or those of the chains.
	s         *segment.Segment
	overwrote []bool // by layer: it overwrites its input
	overwrite bool   // see segment.Config

	spent    time.Duration // in timed runs
	queueing bool          // see queues
	queue    []queued      // the runs of the pass so far

	undo     []func()                        // see reset
	deferred *nn.Deferred                    // statistics that first forwards gather
	copies   map[*torch.Tensor]*torch.Tensor // of parameters

	progress
	isLean bool           // it holds as little as possible
	others []torch.Device // that work while layers are timed
	isLane bool           // other lanes work at the same time
}

func newProber(ctx context.Context, config Config, layers []nn.NamedLayer, routes []nn.SkipRoute) *prober {
	p := &prober{Config: config, ctx: ctx, layers: layers, model: len(layers), routes: routes,
		copies: map[*torch.Tensor]*torch.Tensor{}}
	p.progress = progress{report: config.Progress, layers: len(layers)}
	p.c = torch.NewCtx(torch.Options{Device: config.Device, Threads: config.Threads})
	p.peer = torch.NewCtx(torch.Options{Device: config.Peer, Threads: config.Threads})
	if config.Loss != nil {
		p.layers = append(slices.Clone(layers), nn.LossLayer())
	}
	return p
}

func (p *prober) cut(units []int) {
	var err error
	p.s, err = segment.New(segment.Config{Layers: p.layers, Routes: p.routes, Last: sum(units), Units: units,
		InputGrad: p.InputGrad, Overwrite: p.overwrite})
	check(err)
}

func (p *prober) live() int64 { return p.Device.Memory().Live }

// context is a segment.NewContext.
func (p *prober) context(c *torch.Ctx, run segment.Run) *nn.Ctx {
	cfg := nn.Config{Training: true, Checkpointing: run.More, Recomputing: run.Again, Seed: p.Seed,
		Spans: run.Graph, Skips: run.Skips, Extras: p.Extras, Loss: p.Loss, Target: p.Target}
	if p.DeferredBatchNorm {
		cfg.Deferred = p.deferred
	}
	return nn.NewCtx(c, cfg)
}

// reading is the bytes of an operation.
type reading struct {
	peak  int64 // the most live bytes, less those before
	delta int64 // the live bytes afterwards, less those before
}

func (p *prober) do(e *segment.Execution, op remat.Op) reading {
	defer p.c.SetAutocast(p.c.SetAutocast(p.Autocast))
	return p.read(func() { e.Do(p.c, op) })
}

// read reads the account before and after a function.
func (p *prober) read(do func()) reading {
	before := p.live()
	p.Device.ResetPeak()
	do()
	m := p.Device.Memory()
	return reading{m.Peak - before, m.Live - before}
}

// execute begins an execution at a unit. The execution owns the input, and reset frees both. again
// says that the unit has run before.
func (p *prober) execute(unit int, in input, again bool) *segment.Execution {
	e := &segment.Execution{}
	e.Begin(p.s, p.context)
	p.undo = append(p.undo, e.Free)
	e.Send(unit, segment.Arrival{Tensors: in.xs, Skips: in.skips})
	if again {
		e.Again(unit)
	}
	return e
}

// handle returns another handle on a tensor, which the caller owns.
func (p *prober) handle(x *torch.Tensor) *torch.Tensor { return p.c.Keep(p.c.Share(x)) }

func (p *prober) sampleInput(sample []*torch.Tensor) (in input) {
	for _, x := range sample {
		in.xs = append(in.xs, p.c.Keep(p.c.Detach(x)))
	}
	return in
}

func (p *prober) close() {
	p.c.Close()
	p.peer.Close()
}

// progress reports the measured part, in layers of the model. It never goes back.
type progress struct {
	report   func(done, layers int)
	layers   int
	from, to float64 // of the current phase
	told     float64 // the part reported last
}

// begin begins a phase, which takes a part of the time that is left.
func (p *progress) begin(part float64) { p.from, p.to = p.to, p.to+part*(1-p.to) }

// tell reports that a part of the phase is done.
func (p *progress) tell(part float64) {
	if p.report != nil {
		p.told = max(p.told, p.from+(p.to-p.from)*part)
		p.report(min(int(float64(p.layers)*p.told+1e-6), p.layers), p.layers)
	}
}
