package pipe

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"penstock.example/group"
	"penstock.example/nn"
	"penstock.example/planner"
	"penstock.example/profile"
	"penstock.example/schedule"
	"penstock.example/segment"
	"penstock.example/torch"
)

// Plan is the plan of the last Step or Forward, with predictions for the memory that was available;
// nil before the first. The caller must not change it.
func (p *Pipe) Plan() *planner.Plan {
	p.plans.known.Lock()
	defer p.plans.known.Unlock()
	if p.plans.last == nil {
		return nil
	}
	return p.plans.last.plan
}

// PlanFor returns the plan for a Step with such a batch and loss. A plan that is not known is
// measured and made, which blocks other runs. Step plans by itself; PlanFor does so before anything
// is trained. A nil loss plans for Forward. A *planner.MemoryError lists all stages whose limits
// are too low, with the least that would do. Parameters of a pipe that is not placed (see Open) are
// counted as if they existed. The caller must not change the plan.
func (p *Pipe) PlanFor(ctx context.Context, b Batch, loss nn.Loss) (*planner.Plan, error) {
	leave, err := p.enter("PlanFor")
	if err != nil {
		return nil, err
	}
	defer leave()
	r, err := p.minibatch(ctx, b, true, true)
	if err != nil {
		return nil, err
	}
	defer r.free()
	if loss != nil {
		if err := r.setLoss(loss); err != nil {
			return nil, err
		}
	}
	if err := r.prepare(ctx); err != nil {
		return nil, err
	}
	return p.Plan(), nil
}

// Program is the program of a Step with so many micro-batches, which schedule.Simulate predicts and
// a recorded timeline shows. Its workers are in the order of Devices. The caller must not change
// it. It fails if there is no such program, as for 0 micro-batches. With the policy Optimal it is
// the program of the last batch, if that had so many micro-batches; otherwise a stage with this
// policy recomputes nothing in it.
func (p *Pipe) Program(microBatches int) (*schedule.Program, error) {
	if last := p.Plan(); last != nil && last.Program.MicroBatches == microBatches {
		return last.Program, nil
	}
	found, err := p.unmeasured(microBatches)
	if err != nil {
		return nil, err
	}
	return found.plan.Program, nil
}

// prepare finds or makes the plan of a mini-batch with a backward. While layers are measured for
// it, other batches wait.
func (r *minibatch) prepare(ctx context.Context) (err error) {
	p := r.p
	if err := p.addable(); err != nil {
		return err
	}
	if p.cfg.Plan != nil {
		r.prepared, err = r.given()
	} else if p.optimal() {
		r.prepared, err = r.agreedPlan(ctx)
	} else {
		r.prepared, err = p.unmeasured(len(r.parts))
	}
	if err != nil {
		return err
	}
	p.plans.known.Lock()
	p.plans.last = r.prepared
	p.plans.known.Unlock()
	r.open(r.prepared)
	for i, s := range r.prepared.segments {
		if s != nil {
			r.begins(i, s)
		}
	}
	return nil
}

// given is Config.Plan for the number of micro-batches of the batch.
func (r *minibatch) given() (*prepared, error) {
	p, n := r.p, len(r.parts)
	if n > p.cfg.Plan.Program.MicroBatches {
		return nil, fmt.Errorf("pipe: the batch has %d micro-batches, and Config.Plan is for %d; set Chunks to "+
			"%[2]d", n, p.cfg.Plan.MicroBatches())
	}
	return p.plans.find(fmt.Sprint("given ", n, r.loss == nil), func() (*prepared, error) { return r.ready(p.cfg.Plan.Fewer(n)) })
}

// unmeasured is a plan that is made without measuring. Stages with the policy Optimal recompute
// nothing in it. If there are such stages, nothing waits on links, as its memory was not planned.
func (p *Pipe) unmeasured(microBatches int) (*prepared, error) {
	return p.plans.find(fmt.Sprint("unmeasured ", microBatches), func() (*prepared, error) {
		problem := p.problem(microBatches)
		problem.Meet = p.optimal()
		for i := range problem.Stages {
			if s := &problem.Stages[i]; s.Policy == planner.Optimal {
				s.Policy = planner.Never
			}
		}
		found, err := planner.Solve(context.Background(), problem)
		if err != nil {
			return nil, fmt.Errorf("pipe: %w", err)
		}
		return withoutSegments(found), nil
	})
}

// agreedPlan is the plan for this batch that the first process of the group makes for all. It knows
// its own stages and what the others say of theirs.
func (r *minibatch) agreedPlan(ctx context.Context) (*prepared, error) {
	p := r.p
	if p.cfg.Group == nil {
		return r.measuredPlan(ctx)
	}
	mine := map[int]room{}
	for i, s := range p.stages {
		if !s.Here {
			continue
		}
		own := room{}
		if p.cfg.policies[i] == Optimal {
			own = r.room(i)
		}
		own.Hardware = p.hardware(s.Device)
		mine[i] = own
	}
	all, err := meet(ctx, p, "the memory of a step", mine, nil)
	if err != nil {
		return nil, err
	}
	r.rooms = map[int]room{}
	for _, rooms := range all {
		for i, room := range rooms {
			r.rooms[i] = room.tightest(r.rooms[i])
		}
	}
	var found *prepared
	first, err := group.FromFirst(ctx, p.cfg.Group, "pipe: the plan of a step", func() (told toldPlan, err error) {
		if found, err = r.measuredPlan(ctx); err != nil {
			return told, err
		}
		return p.plans.tell(found), nil
	})
	if err != nil || found != nil {
		return found, err
	}
	return r.hear(first)
}

// toldPlan is a plan as the first process tells the others of it: with its text the first time, and
// later by its number.
type toldPlan struct {
	Number int
	Text   string `json:",omitempty"`
}

// tell numbers a plan.
func (c *plans) tell(found *prepared) toldPlan {
	c.known.Lock()
	defer c.known.Unlock()
	if n := slices.Index(c.told, found); n >= 0 {
		return toldPlan{Number: n}
	}
	c.told = append(c.told, found)
	return toldPlan{Number: len(c.told) - 1, Text: found.plan.String()}
}

// hear is the plan that the first process has told of. A replica with fewer micro-batches runs the
// part of it for them, as none of them has more rows.
func (r *minibatch) hear(told toldPlan) (*prepared, error) {
	c, n := &r.p.plans, len(r.parts)
	if told.Text != "" {
		plan, err := planner.Parse(told.Text)
		if err != nil {
			return nil, fmt.Errorf("pipe: the plan of process 0: %w", err)
		}
		c.known.Lock()
		c.heard = append(c.heard, plan)
		c.known.Unlock()
		r.p.predicted(plan)
	}
	if told.Number >= len(c.heard) {
		return nil, fmt.Errorf("pipe: process 0 goes by its plan %d, and has told of %d", told.Number, len(c.heard))
	}
	return c.find(fmt.Sprint("heard ", told.Number, n), func() (*prepared, error) {
		plan := c.heard[told.Number]
		if n < plan.MicroBatches() {
			plan = plan.Fewer(n)
		}
		return r.ready(plan)
	})
}

// measuredPlan is the plan for this batch within the memory that is available.
func (r *minibatch) measuredPlan(ctx context.Context) (*prepared, error) {
	p := r.p
	p.plans.mu.Lock()
	defer p.plans.mu.Unlock()
	key := r.planKey()
	chains := p.plans.chains[key]
	if chains == nil {
		var err error
		if chains, err = r.measure(ctx); err != nil {
			return nil, fmt.Errorf("pipe: planning what to recompute: %w", err)
		}
		if p.plans.chains == nil {
			p.plans.chains = map[string][]profile.Chain{}
		}
		p.plans.chains[key] = chains
	}
	if !p.busy() {
		if found := r.refitted(key, r.problem(chains)); found != nil {
			return found, nil
		}
	}
	var problem planner.Problem
	if err := p.alone(func(*torch.Ctx) error { problem = r.problem(chains); return nil }); err != nil {
		return nil, err
	}
	if found := r.refitted(key, problem); found != nil {
		return found, nil
	}
	solved, err := planner.Solve(ctx, problem)
	torch.TrimProcess() // measuring and solving took memory that training does not need
	if err != nil {
		return nil, notEnough(err)
	}
	found, err := r.ready(solved)
	if err != nil {
		return nil, err
	}
	p.plans.known.Lock()
	defer p.plans.known.Unlock()
	p.plans.keep(key+gradients(problem), found)
	p.predicted(solved)
	return found, nil
}

// refitted is a plan that was made before and still fits the memory that is available, or nil.
func (r *minibatch) refitted(key string, now planner.Problem) *prepared {
	p := r.p
	p.plans.known.Lock()
	defer p.plans.known.Unlock()
	old := p.plans.all[key+gradients(now)]
	if old == nil {
		return nil
	}
	fits := old.plan.Refit(now)
	if fits == nil {
		return nil
	}
	old.plan = fits
	p.predicted(fits)
	return old
}

// predicted notes the predicted peaks as bytes that the devices must be able to hold.
func (p *Pipe) predicted(plan *planner.Plan) {
	for worker, d := range plan.Devices {
		p.safe.raise(worker, d.Peak)
	}
}

// gradients is the part of a key that says which stages have their gradients.
func gradients(problem planner.Problem) string {
	var b strings.Builder
	for _, s := range problem.Stages {
		fmt.Fprint(&b, " ", s.Memory.Gradients, s.Memory.InputHasGradient)
	}
	return b.String()
}

// planKey is the key of what a plan depends on: the sizes of the micro-batches, and the loss.
func (r *minibatch) planKey() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d %T", len(r.parts), r.loss)
	if r.loss != nil {
		fmt.Fprintf(&b, "%#v", r.loss)
	}
	for _, list := range [][]Value{r.inputs, r.targets} {
		b.WriteByte(';')
		for _, v := range list {
			fmt.Fprintf(&b, " %v %v %v", v.Tensor, v.Whole, v.Tensor.RequiresGrad())
		}
	}
	return b.String()
}

// ready is a plan with the segments of its stages, prepared to run.
func (r *minibatch) ready(plan *planner.Plan) (*prepared, error) {
	out := withoutSegments(plan)
	for i, s := range plan.Stages {
		if s.Units == nil {
			continue
		}
		stage := r.p.stages[i]
		var err error
		out.segments[i], err = r.p.segment(stage, r.loss != nil && r.last(i),
			segment.Config{Units: s.Units, InputGrad: stage.inputGrad || r.inputGrad})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}
