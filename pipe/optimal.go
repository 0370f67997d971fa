package pipe

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"penstock/nn"
	"penstock/profile"
	"penstock/remat"
	"penstock/segment"
	"penstock/torch"
)

// StagePlan is what Optimal has planned for a stage.
type StagePlan struct {
	Chain profile.Chain // of the stage, for one micro-batch; on the first stage without the input, which belongs to the batch
	Plans []remat.Plan  // by micro-batch
	// Base is the bytes that the device holds whatever is recomputed: parameters, buffers, the batch, gradients and optimizer state that were there, and what is to stay free (Config.Reserve).
	Base int64
	// Peak is the most bytes that the device will hold in a step, Base counted. On the only stage of a pipe it is exact; it is a bound where skips go to or come from other stages, and where micro-batches differ in
	// rows, as all are planned like the first, which is the largest. Where there is room for it, outputs and gradients that neighbours have still to take over come on top, up to the limit.
	Peak  int64
	Limit int64 // 0 is none
}

// planned is what Optimal does with batches of one size: segments and scripts of those stages that have the policy.
type planned struct {
	stages   []StagePlan        // by stage; zero where another policy holds
	segments []*segment.Segment // by stage; nil where another policy holds
	scripts  [][]script         // by stage, by micro-batch
	buffered bool               // there is room for all that may wait for a neighbour
	made     *planned           // that it is a copy of, with other rooms; itself if it is none
}

// plans caches what was measured and planned, by what it depends on.
type plans struct {
	now atomic.Pointer[planned] // of the last step

	mu     sync.Mutex // a plan is made while no other is; layers run meanwhile, so what they may call takes no part in it
	chains map[string][]profile.Chain
	all    map[string]*planned
}

// Plans is what Optimal has planned for the batch of the last Step, Forward: by stage, with empty entries for stages of other policies. Nil before the first. The caller must not change it.
func (p *Pipe) Plans() []StagePlan {
	if now := p.plans.now.Load(); now != nil {
		return now.stages
	}
	return nil
}

// Plan measures and plans what a Step with such a batch and loss will do, if that is not known yet and a stage's policy is Optimal. Step does so by itself; Plan does it before anything is trained. A nil loss plans
// for Forward. A *BudgetError lists all stages whose budgets are too small, and says what would do. Parameters of a pipe that was not placed yet (see Open) are counted as if they were there.
func (p *Pipe) Plan(ctx context.Context, b Batch, loss nn.Loss) error {
	leave, err := p.enter("Plan")
	if err != nil {
		return err
	}
	defer leave()
	r, err := p.minibatch(ctx, b, true, true)
	if err != nil {
		return err
	}
	defer r.free()
	if loss != nil {
		if err := r.setLoss(loss); err != nil {
			return err
		}
	}
	return r.plan(ctx)
}

func (p *Pipe) optimal() bool { return slices.Contains(p.cfg.policies, Optimal) }

// plan finds or makes the plan for a mini-batch. Another batch has to wait meanwhile.
func (r *minibatch) plan(ctx context.Context) error {
	p := r.p
	if !r.graph || !p.optimal() {
		return nil
	}
	p.plans.mu.Lock()
	defer p.plans.mu.Unlock()
	key := r.planKey()
	chains := p.plans.chains[key]
	if chains == nil {
		var err error
		if chains, err = r.measure(ctx); err != nil {
			return fmt.Errorf("pipe: planning what to recompute: %w", err)
		}
		if p.plans.chains == nil {
			p.plans.chains, p.plans.all = map[string][]profile.Chain{}, map[string]*planned{}
		}
		p.plans.chains[key] = chains
	}
	rooms, err := r.rooms(chains)
	if err != nil {
		return err
	}
	for _, room := range rooms {
		key += fmt.Sprint(" ", room.grads)
	}
	old := p.plans.all[key]
	found := old.fitted(rooms)
	if found == nil {
		if found, err = r.makePlan(ctx, chains, rooms); err != nil {
			return err
		}
		p.forgetPrograms(old)
		torch.TrimProcess() // measuring and solving took memory that training does not need
	}
	p.plans.all[key], r.planned = found, found
	p.plans.now.Store(found)
	for i, s := range found.stages {
		p.safe.raise(p.stages[i].worker, s.Peak) // with less there is no plan
	}
	r.divide()
	return nil
}

// planKey is what a plan depends on: the sizes of micro-batches, and what is run with them.
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

// makePlan plans the stages.
func (r *minibatch) makePlan(ctx context.Context, chains []profile.Chain, rooms []room) (*planned, error) {
	p := r.p
	out := &planned{
		stages: make([]StagePlan, len(p.stages)), segments: make([]*segment.Segment, len(p.stages)),
		scripts: make([][]script, len(p.stages)),
	}
	var short []Shortage
	for i := range p.stages {
		if p.cfg.policies[i] != Optimal {
			continue
		}
		s, err := r.planStage(ctx, out, i, chains[i], rooms[i])
		if err != nil {
			return nil, err
		}
		if s != nil {
			short = append(short, *s)
		}
	}
	if short != nil {
		return nil, &BudgetError{short}
	}
	out.made, out.buffered = out, out.roomy(len(r.parts))
	return out, nil
}

// roomy says whether every stage has room for the outputs and the gradients of all micro-batches, waiting for a neighbour to take them over. Then stages may run ahead of each other.
func (p *planned) roomy(microBatches int) bool {
	for _, s := range p.stages {
		if waiting := int64(microBatches) * (s.Chain.Gives + s.Chain.Later.InputGradient); s.Limit > 0 && s.Peak+waiting > s.Limit {
			return false
		}
	}
	return true
}

// spare is the part of a limit that is worth another plan, when so much more has become free.
const spare = 0.01

// fitted is the plan in the rooms that there are now, if it still stays within them and they are not much larger than those that it was made for; or nil.
func (p *planned) fitted(rooms []room) *planned {
	if p == nil {
		return nil
	}
	out := *p
	out.stages = slices.Clone(p.stages)
	for i := range out.stages {
		s, r := &out.stages[i], rooms[i]
		if p.segments[i] == nil {
			continue
		}
		more := r.base - s.Base
		tight := s.Limit > 0 && float64(-more) > spare*float64(s.Limit)
		if r.limit != s.Limit || tight || r.limit > 0 && s.Peak+more > r.limit {
			return nil
		}
		s.Base, s.Peak = r.base, s.Peak+more
	}
	if out.roomy(out.microBatches()) != p.buffered {
		return nil
	}
	return &out
}

// origin is the plan that programs are known by.
func (p *planned) origin() *planned {
	if p == nil {
		return nil
	}
	return p.made
}

// microBatches is how many the plan is for.
func (p *planned) microBatches() int {
	for _, list := range p.scripts {
		if list != nil {
			return len(list)
		}
	}
	return 0
}

// divide gives the cells of planned stages their segments.
func (r *minibatch) divide() {
	for at, s := range r.planned.segments {
		if s == nil {
			continue
		}
		r.begins(at, s)
	}
}
