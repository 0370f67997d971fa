package pipe

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"penstock.example/group"
	"penstock.example/internal/segment"
	"penstock.example/internal/system"
	"penstock.example/nn"
	"penstock.example/plan"
	"penstock.example/profile"
	"penstock.example/remat"
	"penstock.example/schedule"
	"penstock.example/torch"
)

// Plan is the plan of the last Step or Forward, with predictions for the memory that was available;
// nil before the first. The caller must not change it.
func (p *Pipe) Plan() *plan.Plan { return p.plans.last.Load() }

// PlanFor returns the plan that Step uses for such a batch and loss, and makes it if there is none.
// A nil loss plans for Forward. Measuring for a new plan blocks other runs. A *plan.MemoryError
// lists all stages with too low limits, and the least sufficient ones. Before Place parameters are
// counted as if they existed. The caller must not change the plan.
func (p *Pipe) PlanFor(ctx context.Context, b Batch, loss nn.Loss) (*plan.Plan, error) {
	leave, err := p.enter("PlanFor")
	if err != nil {
		return nil, err
	}
	defer leave()
	r, err := p.plannedRun(ctx, b, loss)
	if err != nil {
		return nil, err
	}
	defer r.free()
	return p.Plan(), nil
}

func (r *run) findPlan(ctx context.Context) (err error) {
	p := r.p
	if err := p.checkNoSummedGrads(); err != nil {
		return err
	}
	switch {
	case p.cfg.Plan != nil:
		r.plan, err = r.configPlan()
	case p.optimal():
		r.plan, err = r.optimalPlan(ctx)
	default:
		r.plan, err = p.unmeasuredPlan(len(r.parts), r.loss != nil)
	}
	if err != nil {
		return err
	}
	p.plans.last.Store(r.plan.plan)
	r.open(r.plan)
	return nil
}

// configPlan is Config.Plan for the batch's number of micro-batches.
func (r *run) configPlan() (*prepared, error) {
	p, n := r.p, len(r.parts)
	return p.plans.find(fmt.Sprint("given ", n, r.loss == nil),
		func() (*prepared, error) { return p.prepare(p.cfg.Plan.Fewer(n), r.loss != nil, r.inputGrad) })
}

// unmeasuredPlan returns a plan without costs. Stages with the policy Optimal recompute nothing.
// Their senders wait for receivers, as no memory is planned for parcels that wait.
func (p *Pipe) unmeasuredPlan(microBatches int, loss bool) (*prepared, error) {
	return p.plans.find(fmt.Sprint("unmeasured ", microBatches, loss), func() (*prepared, error) {
		problem := p.unmeasuredProblem(microBatches)
		problem.Meet = p.optimal()
		for i := range problem.Stages {
			if s := &problem.Stages[i]; s.Policy == plan.Optimal {
				s.Policy = plan.Never
			}
		}
		found, err := plan.Solve(context.Background(), problem)
		if err != nil {
			return nil, fmt.Errorf("pipe: %w", err)
		}
		return p.prepare(found, loss, false)
	})
}

// optimalPlan returns the plan for this batch and the available memory. Process 0 makes it for all
// processes. If one of them has it already, all have it: they make the same calls, and know the
// memory of all stages.
func (r *run) optimalPlan(ctx context.Context) (*prepared, error) {
	p := r.p
	p.plans.mu.Lock()
	defer p.plans.mu.Unlock()
	if err := r.meetAvailable(ctx); err != nil {
		return nil, err
	}
	key, memory := r.planKey(), fmt.Sprint(r.available)
	old := p.plans.all[key]
	if old != nil && old.memory == memory {
		return old, nil
	}
	var found *prepared
	solve := func() (text string, err error) {
		if found, err = r.solve(ctx, old); err != nil || p.cfg.Group == nil {
			return "", err
		}
		return found.plan.String(), nil
	}
	text, err := group.FromFirst(ctx, p.cfg.Group, "pipe: the plan of a step", solve)
	if err == nil && found == nil {
		var given *plan.Plan
		if given, err = plan.Parse(text); err != nil {
			return nil, fmt.Errorf("pipe: the plan of process 0: %w", err)
		}
		// A replica has fewer micro-batches only if they have one row each, so the plan fits them.
		given = given.Fewer(min(len(r.parts), given.MicroBatches()))
		found, err = p.prepare(given, r.loss != nil, r.inputGrad)
	}
	if err != nil {
		return nil, err
	}
	found.memory = memory
	for worker, d := range found.plan.Devices {
		p.memory.raise(worker, d.Peak)
	}
	p.plans.all[key] = found
	return found, nil
}

// meetAvailable finds the available memory of all stages, while no worker has a job.
func (r *run) meetAvailable(ctx context.Context) error {
	p, mine := r.p, map[int]available{}
	read := func(*torch.Ctx) error {
		for i, s := range p.stages {
			if s.Here {
				mine[i] = r.availableOf(i)
			}
		}
		return nil
	}
	var err error
	if p.jobs.Load() > 0 {
		err = p.exclusively(read)
	} else { // a run that starts meanwhile can only add to the accounts
		err = read(nil)
	}
	all, err := meet(ctx, p, "the memory of a step", mine, err)
	if err != nil {
		return err
	}
	r.available = make([]available, len(p.stages))
	for _, stages := range all {
		for i, a := range stages {
			r.available[i] = a.min(r.available[i])
		}
	}
	return nil
}

// solve makes the plan for this batch within the available memory, or refits the old one.
func (r *run) solve(ctx context.Context, old *prepared) (*prepared, error) {
	p, key := r.p, r.batchKey()
	chains := p.plans.chains[key]
	if chains == nil {
		var err error
		if chains, err = r.measure(ctx); err != nil {
			return nil, fmt.Errorf("pipe: planning what to recompute: %w", err)
		}
		p.plans.chains[key] = chains
	}
	problem := r.problem(chains)
	if old != nil {
		if fits := old.plan.Refit(problem); fits != nil {
			refitted := *old
			refitted.plan = fits
			return &refitted, nil
		}
	}
	solved, err := plan.Solve(ctx, problem)
	system.TrimProcess() // gives back the memory of measuring and solving
	var short *plan.MemoryError
	switch {
	case errors.As(err, &short):
		return nil, memoryError{short}
	case err != nil:
		return nil, fmt.Errorf("pipe: planning what to recompute: %w", err)
	}
	return p.prepare(solved, r.loss != nil, r.inputGrad)
}

// batchKey is all that a measurement depends on: the sizes of the micro-batches, and the loss.
func (r *run) batchKey() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d %T %#v", len(r.parts), r.loss, r.loss)
	for _, list := range [][]Value{r.batch.Input, r.batch.Target} {
		b.WriteByte(';')
		for _, v := range list {
			fmt.Fprintf(&b, " %v %v %v", v.Tensor, v.Whole, v.Tensor.RequiresGrad())
		}
	}
	return b.String()
}

// planKey is batchKey, LossBytes, and which stages have gradients.
func (r *run) planKey() string {
	key := fmt.Sprint(r.batchKey(), r.batch.LossBytes)
	for _, a := range r.available {
		key += fmt.Sprint(" ", a.Gradients, a.InputHasGradient)
	}
	return key
}

type plans struct {
	// mu is held while a plan is made. A measurement runs layers meanwhile, so calls that a layer
	// may make do not take mu.
	mu     sync.Mutex
	chains map[string][]profile.Chain // by batchKey
	all    map[string]*prepared
	last   atomic.Pointer[plan.Plan] // of the last Step or Forward
}

// prepared is a plan that is ready to run.
type prepared struct {
	plan       *plan.Plan
	memory     string                             // available for the plan, with the policy Optimal
	segments   []*segment.Segment                 // by stage
	operations [][]operations                     // by stage, by micro-batch
	programs   map[schedule.Phase]func() *program // made on first use
}

// operations are the operations of a micro-batch on a stage, split by the program's actions.
type operations struct{ forward, recompute, backward []remat.Op }

var forwardOnly = operations{forward: []remat.Op{{Kind: remat.Forward}}}

// program is a part of a plan's program that is ready to run.
type program struct {
	*schedule.Graph
	latest  []int               // by id: schedule.Graph.LatestReceives
	settled [][]schedule.Action // by id: sends that must have been received when the action begins
}

func (c *plans) find(key string, make func() (*prepared, error)) (found *prepared, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if found = c.all[key]; found == nil {
		if found, err = make(); err == nil {
			c.all[key] = found
		}
	}
	return found, err
}

// prepare makes a plan ready to run, with a loss or without.
func (p *Pipe) prepare(given *plan.Plan, loss, inputGrad bool) (*prepared, error) {
	out := &prepared{plan: given, segments: make([]*segment.Segment, len(given.Stages)),
		programs: map[schedule.Phase]func() *program{}}
	trains := inputGrad // whether backwards compute any gradient
	for i, s := range given.Stages {
		var list []operations
		for _, m := range s.MicroBatches {
			var w operations
			w.forward, w.recompute, w.backward = plan.Split(m.Ops)
			list = append(list, w)
		}
		out.operations = append(out.operations, list)
		stage, measured := p.stages[i], s.Units != nil
		cfg := segment.Config{Layers: p.layers, Routes: p.routes, First: stage.first,
			Last: stage.first + len(stage.Layers), Units: s.Units, Hold: !measured,
			InputGrad: inputGrad && measured}
		if loss && i == len(p.stages)-1 { // the loss is the last layer
			cfg.Layers, cfg.Last = append(slices.Clone(p.layers), nn.LossLayer()), cfg.Last+1
		}
		var err error
		if out.segments[i], err = segment.New(cfg); err != nil {
			return nil, err
		}
		if !measured {
			trains = true
			continue
		}
		rest := stage.Layers // after the prologue
		for _, n := range s.Units[:s.Prologue] {
			rest = rest[min(n, len(rest)):]
		}
		isolated := s.Prologue > 0 && len(p.routes) == 0 // no gradient goes back from here
		trains = trains && !isolated || segment.FirstTrained(rest) < len(rest)
	}
	if !trains {
		return nil, fmt.Errorf("pipe: %w", errNoGradient)
	}
	for _, phase := range []schedule.Phase{schedule.Whole, schedule.ForwardOnly, schedule.BackwardOnly} {
		out.programs[phase] = sync.OnceValue(func() *program { return newProgram(given.Program.Part(phase)) })
	}
	return out, nil
}

func newProgram(p *schedule.Program) *program {
	g := &program{Graph: p.Graph()}
	g.latest, g.settled = g.LatestReceives(), make([][]schedule.Action, len(g.Actions))
	for id, before := range g.latest {
		if before < 0 {
			continue
		}
		send := g.Actions[id].Matching()
		from, _ := g.IndexOf(send)
		if at := max(from+1, before); at < g.First[g.Worker[from]+1] { // else no action waits for it
			g.settled[at] = append(g.settled[at], send)
		}
	}
	return g
}

func (c *plans) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.chains, c.all = map[string][]profile.Chain{}, map[string]*prepared{}
	c.last.Store(nil)
}

// Chains has the costs of each stage's units, measured for the policy Optimal on the batch with the
// most rows, or nil. It waits for a running measurement. The caller must not change it.
func (p *Pipe) Chains() []profile.Chain {
	p.plans.mu.Lock()
	defer p.plans.mu.Unlock()
	var out []profile.Chain
	for _, chains := range p.plans.chains {
		if len(chains) > 0 && (out == nil || chains[0].InputTuple > out[0].InputTuple) {
			out = chains
		}
	}
	return out
}
