package pipe

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"penstock/nn"
	"penstock/profile"
	"penstock/remat/plan"
	"penstock/segment"
	"penstock/torch"
)

// StagePlan is what Optimal has planned for a stage.
type StagePlan struct {
	Chain profile.Chain // of the stage, for one micro-batch; on the first stage without the input, which belongs to the batch
	Plans []plan.Plan   // by micro-batch
	// Base is the bytes that the device holds whatever is recomputed: parameters, buffers, the batch, gradients and optimizer state that were there, and what is to stay free (Config.Reserve).
	Base int64
	// Peak is the most bytes that the device will hold in a step, Base counted. On the only stage of a pipe it is exact; where skips go to or come from other stages it is a bound.
	Peak  int64
	Limit int64 // 0 is none
}

// planned is what Optimal does with batches of one size: segments and scripts of those stages that have the policy.
type planned struct {
	stages   []StagePlan        // by stage; zero where another policy holds
	segments []*segment.Segment // by stage; nil where another policy holds
	scripts  [][]script         // by stage, by micro-batch
}

// plans caches what was planned, by what it depends on.
type plans struct {
	mu  sync.Mutex // a plan is made while no other is
	all map[string]*planned
	now *planned // of the last step
}

// Plans is what Optimal has planned for the batch of the last Step, Forward: by stage, with empty entries for stages of other policies. Nil before the first. The caller must not change it.
func (p *Pipe) Plans() []StagePlan {
	p.plans.mu.Lock()
	defer p.plans.mu.Unlock()
	if p.plans.now == nil {
		return nil
	}
	return p.plans.now.stages
}

// Plan measures and plans what a Step with such a batch and loss will do, if that is not known yet and a stage's policy is Optimal. Step does so by itself; Plan does it before anything is trained. A nil loss plans
// for Forward. A *BudgetError says that a budget is too small, and what would do.
func (p *Pipe) Plan(ctx context.Context, b Batch, loss nn.Loss) error {
	r, err := p.minibatch(b, true, true)
	if err != nil {
		return err
	}
	defer r.free()
	if loss != nil {
		if err := r.setTargets(); err != nil {
			return err
		}
		r.loss = loss
	}
	return r.plan(ctx)
}

func (p *Pipe) optimal() bool { return slices.Contains(p.cfg.Checkpoints, Optimal) }

// plan finds or makes the plan for a mini-batch. Another batch has to wait meanwhile.
func (r *minibatch) plan(ctx context.Context) error {
	p := r.p
	if !r.graph || !p.optimal() {
		return nil
	}
	p.plans.mu.Lock()
	defer p.plans.mu.Unlock()
	key := r.planKey()
	found := p.plans.all[key]
	if found == nil {
		var err error
		if found, err = r.makePlan(ctx); err != nil {
			return err
		}
		if p.plans.all == nil {
			p.plans.all = map[string]*planned{}
		}
		p.plans.all[key] = found
	}
	p.plans.now, r.planned = found, found
	r.begin()
	return nil
}

// planKey is what a plan depends on: the sizes of micro-batches, and what is run with them.
func (r *minibatch) planKey() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d %T", len(r.parts), r.loss)
	if r.loss != nil {
		fmt.Fprintf(&b, "%+v", r.loss)
	}
	for _, list := range [][]Value{r.inputs, r.targets} {
		b.WriteByte(';')
		for _, v := range list {
			fmt.Fprintf(&b, " %v %v %v", v.tensor, v.whole, v.tensor.RequiresGrad())
		}
	}
	return b.String()
}

// makePlan measures the model on the first micro-batch, which no other is larger than, and plans the stages.
func (r *minibatch) makePlan(ctx context.Context) (*planned, error) {
	chains, err := r.measure(ctx, false)
	if errors.Is(err, torch.ErrOutOfMemory) { // measuring takes more than some plans do, and what would do can only be said when it is known
		chains, err = r.measure(ctx, true)
	}
	if err != nil {
		return nil, fmt.Errorf("pipe: planning what to recompute: %w", err)
	}
	p := r.p
	out := &planned{stages: make([]StagePlan, len(p.stages)), segments: make([]*segment.Segment, len(p.stages)), scripts: make([][]script, len(p.stages))}
	for i := range p.stages {
		if p.cfg.Checkpoints[i] != Optimal {
			continue
		}
		if err := r.planStage(ctx, out, i, chains[i]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// measure measures all stages while every worker stands still: bytes are read from the device's account. Unless beyond is set it stays within the limit.
func (r *minibatch) measure(ctx context.Context, beyond bool) (chains []profile.Chain, err error) {
	p := r.p
	if err := p.enter(); err != nil {
		return nil, err
	}
	defer p.open.Done()
	var arrived, all sync.WaitGroup
	done := make(chan struct{})
	arrived.Add(len(p.workers))
	all.Add(len(p.workers))
	device, restore := p.bench(beyond)
	defer restore()
	p.start(func(worker int, c *torch.Ctx) {
		defer all.Done()
		arrived.Done()
		if worker != 0 {
			<-done
			return
		}
		defer close(done)
		arrived.Wait()
		err = fmt.Errorf("pipe: measuring: %w", ErrGoexit) // overwritten unless a layer ends the goroutine
		err = onStage(0, c, func(_ int, c *torch.Ctx) error {
			chains, err = profile.MeasureChain(ctx, p.model, profile.ChainConfig{
				Config:  profile.Config{Device: device, Threads: p.cfg.Threads, Seed: p.cfg.Seed, Extras: r.batch.Extras, Autocast: p.cfg.Autocast},
				Balance: p.cfg.Balance, Loss: r.loss, Targets: r.partsOf(c, r.targets), LossUnit: true, InputGrad: r.inputGrad, DeferredBatchNorm: p.cfg.DeferredBatchNorm && r.training,
			}, r.partsOf(c, r.inputs)...)
			return err
		})
	})
	all.Wait()
	return chains, err
}

// bench is the device that layers are measured on: that of the only stage, within its limit, or one that no stage is on, with the highest limit of any.
func (p *Pipe) bench(beyond bool) (d torch.Device, restore func()) {
	if len(p.stages) == 1 {
		d = p.stages[0].Device
		was := d.Memory().Limit
		if beyond {
			d.SetLimit(0)
		}
		return d, func() { d.SetLimit(was) }
	}
	d = torch.CPU(torch.MaxCPU - 1)
	for slices.ContainsFunc(p.stages, func(s *Stage) bool { return s.Device == d }) && d.Index > 0 {
		d.Index--
	}
	highest := int64(0)
	for _, s := range p.stages {
		m := s.Device.Memory()
		if m.Limit == 0 || beyond {
			return d, func() {}
		}
		highest = max(highest, m.Limit)
	}
	was := d.Memory().Limit
	d.SetLimit(highest)
	return d, func() { d.SetLimit(was) }
}

// partsOf are the first micro-batch's parts of values.
func (r *minibatch) partsOf(c *torch.Ctx, values []Value) (out []*torch.Tensor) {
	for _, v := range values {
		out = append(out, c.Detach(r.parts[0].part(c, v)))
	}
	return out
}

// planStage plans a stage.
func (r *minibatch) planStage(ctx context.Context, out *planned, at int, chain profile.Chain) error {
	p, k := r.p, len(r.parts)
	stage := p.stages[at]
	first, later := chain.Chain, chain.Later
	if at == 0 && !r.inputGrad && chain.Prologue == 0 { // views of the batch
		first, later = withoutInput(first), withoutInput(later)
	}
	if stage.hasGrads() {
		first = later
	}
	m := stage.Device.Memory()
	sp := StagePlan{Chain: chain, Limit: p.cfg.Budget[at], Base: m.Live + p.cfg.Reserve(at) + chain.Statistics + r.waiting(chain) + stage.tied()}
	if m.Limit > 0 && (sp.Limit == 0 || m.Limit < sp.Limit) {
		sp.Limit = m.Limit
	}
	room := int64(0)
	if sp.Limit > 0 {
		if room = sp.Limit - sp.Base; room <= 0 {
			room = 1
		}
	}
	solved, err := solve(ctx, plan.Stage{First: first, Later: later, MicroBatches: k, Limit: room}, chain.ProloguePeak)
	if err != nil {
		return fmt.Errorf("pipe: planning stage %d: %w", at, err)
	}
	if !solved.Feasible {
		e := &BudgetError{Stage: at, Device: stage.Device, Limit: sp.Limit, Base: sp.Base, Least: sp.Base + solved.Peak}
		if least, peak, err := plan.Least(first); err == nil {
			e.Layer = first.Layers[least.Ops[peak].Layer].Name
		}
		return e
	}
	sp.Plans, sp.Peak = solved.MicroBatches, sp.Base+solved.Peak
	out.stages[at] = sp
	for _, one := range solved.MicroBatches {
		out.scripts[at] = append(out.scripts[at], scriptOf(one.Ops, chain.Prologue))
	}
	out.segments[at], err = segment.New(segment.Config{Layers: p.layers, Routes: p.routes, First: stage.first, Last: stage.first + len(stage.Layers), Units: chain.Units, Tail: chain.Tail,
		InputGrad: stage.inputGrad || r.inputGrad})
	return err
}

// withoutInput is a chain whose input belongs to somebody else.
func withoutInput(c plan.Chain) plan.Chain {
	c.Carries = slices.Clone(c.Carries)
	c.Carries = slices.DeleteFunc(c.Carries, func(k plan.Carry) bool { return k.From < 0 })
	c.Input = 0
	return c
}

// waiting is a bound on what skips leave waiting on the stage's device beside what it works on: of what it stashes for other stages, and of the gradients of what it pops, as much as there are micro-batches
// by which another stage can be behind.
func (r *minibatch) waiting(c profile.Chain) int64 {
	return int64(min(len(r.parts), len(r.p.stages))) * (c.SkipsOut + c.SkipsIn)
}

// tied is what gradients of parameters that other stages use too take beside the stage's own: one that has come from a later stage, and one that waits for an earlier.
func (s *Stage) tied() (bytes int64) {
	for _, t := range s.ties {
		for _, other := range []target{t.from, t.to} {
			if other.stage >= 0 {
				bytes += t.tensor().Numel() * t.tensor().DType().Size()
			}
		}
	}
	return bytes
}

// hasGrads says whether all parameters of the stage have gradients already. Where only some have, theirs are counted twice.
func (s *Stage) hasGrads() bool {
	for _, p := range s.Params() {
		if !p.Tensor().HasGrad() {
			return false
		}
	}
	return true
}

// BudgetError says that no plan keeps a stage within its budget.
type BudgetError struct {
	Stage  int
	Device torch.Device
	Limit  int64  // bytes
	Base   int64  // of them are taken whatever is recomputed
	Least  int64  // that would do
	Layer  string // that sets Least
}

func (e *BudgetError) Error() string {
	return fmt.Sprintf("pipe: stage %d on %v cannot be run within %d bytes: %d of them are taken by parameters, their gradients to be kept, the batch and what is held anyway, and the least that will do is %d bytes, "+
		"which layer %q sets; use a higher budget, more chunks, or more stages", e.Stage, e.Device, e.Limit, e.Base, e.Least, e.Layer)
}

// has says whether the plan is for so many micro-batches.
func (p *planned) has(microBatches int) bool {
	for _, list := range p.scripts {
		if list != nil && len(list) != microBatches {
			return false
		}
	}
	return true
}

// begin gives the cells of planned stages their segments.
func (r *minibatch) begin() {
	for at, s := range r.planned.segments {
		if s == nil {
			continue
		}
		for i := range r.cells[at] {
			r.cells[at][i].walk.Begin(s)
		}
	}
}

// solve plans a stage whose prologue, which runs before a micro-batch's plan begins and while the others hold what they hold, takes so many bytes.
func solve(ctx context.Context, s plan.Stage, prologue int64) (plan.StagePlan, error) {
	room := s.Limit
	for {
		solved, err := plan.SolveStage(ctx, s, plan.Options{})
		if err != nil || !solved.Feasible {
			return solved, err
		}
		peak := prologue
		for _, one := range solved.MicroBatches[:s.MicroBatches-1] {
			report, err := plan.Check(s.Later, one.Ops)
			if err != nil {
				return solved, err
			}
			peak += report.Held
		}
		if room == 0 || peak <= room {
			solved.Peak = max(solved.Peak, peak)
			return solved, nil
		}
		if s.Limit -= peak - room; s.Limit < 1 { // not even the prologue fits
			return plan.StagePlan{Limit: room, Peak: peak}, nil
		}
	}
}
