package pipe

import (
	"sync"

	"penstock.example/plan"
	"penstock.example/profile"
	"penstock.example/remat"
	"penstock.example/schedule"
	"penstock.example/segment"
)

// plans is a cache of measurements and plans.
type plans struct {
	// mu is held while a plan is measured and made, one at a time. Layers run meanwhile, so no call
	// that a layer may make takes mu.
	mu     sync.Mutex
	chains map[string][]profile.Chain

	known sync.Mutex // guards what follows; no layer runs under it
	all   map[string]*prepared
	last  *prepared // of the last Step or Forward
	// beyond is what measuring took where it did not keep a limit.
	beyond struct{ bytes, limit int64 }
}

// prepared is a plan that is ready to run.
type prepared struct {
	plan       *plan.Plan
	memory     string                             // that was available when it was made, of the policy Optimal
	segments   []*segment.Segment                 // by stage; nil where it is one unit
	operations [][]operations                     // by stage, by micro-batch
	programs   map[schedule.Phase]func() *program // each made when it is first run
}

// operations is the operations of a micro-batch on a stage, split by the program's actions.
type operations struct{ forward, recompute, backward []remat.Op }

// forwardOnly is the operations of a forward without a backward.
var forwardOnly = operations{forward: []remat.Op{{Kind: remat.Forward}}}

// program is a part of a plan's program that is ready to run.
type program struct {
	*schedule.Graph
	awaited []bool // by id: another worker waits for the action
	latest  []int  // by id: schedule.Graph.LatestReceives
	// settled has, by the id of an action, the sends that must have been received when it begins.
	settled  [][]schedule.Action
	expected [][]schedule.Action // by worker, in order: the sends that it receives
}

// find returns the plan of a key. A missing plan is made.
func (c *plans) find(key string, make func() (*prepared, error)) (*prepared, error) {
	c.known.Lock()
	defer c.known.Unlock()
	if found := c.all[key]; found != nil {
		return found, nil
	}
	found, err := make()
	if err == nil {
		c.keep(key, found)
	}
	return found, err
}

// keep remembers a plan by its key. known must be held.
func (c *plans) keep(key string, found *prepared) {
	if c.all == nil {
		c.all = map[string]*prepared{}
	}
	c.all[key] = found
}

// withoutSegments is a plan prepared to run on stages of one unit.
func withoutSegments(given *plan.Plan) *prepared {
	out := &prepared{plan: given, segments: make([]*segment.Segment, len(given.Stages)),
		programs: map[schedule.Phase]func() *program{}}
	for _, s := range given.Stages {
		var list []operations
		for _, m := range s.MicroBatches {
			var w operations
			w.forward, w.recompute, w.backward = plan.Split(m.Ops)
			list = append(list, w)
		}
		out.operations = append(out.operations, list)
	}
	for _, phase := range []schedule.Phase{schedule.Whole, schedule.ForwardOnly, schedule.BackwardOnly} {
		out.programs[phase] = sync.OnceValue(func() *program { return newProgram(given.Program.Part(phase)) })
	}
	return out
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
		if at := max(from+1, before); at < g.First[g.Worker[from]+1] { // else nothing waits for it in the run
			g.settled[at] = append(g.settled[at], send)
		}
	}
	for w := range p.Workers {
		var sends []schedule.Action
		for _, a := range g.Actions[g.First[w]:g.First[w+1]] {
			if a.Kind.Receive() {
				sends = append(sends, a.Matching())
			}
		}
		g.expected = append(g.expected, sends)
	}
	g.awaited = make([]bool, len(g.Actions))
	for _, sends := range g.settled {
		for _, send := range sends {
			receive, _ := g.IndexOf(send.Matching())
			g.awaited[receive] = true
		}
	}
	for _, deps := range g.Cross {
		for _, id := range deps {
			g.awaited[id] = true
		}
	}
	return g
}

func (c *plans) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known.Lock()
	defer c.known.Unlock()
	c.chains, c.all, c.last = nil, nil, nil
}

// Chains is what the units of each stage cost, by stage, as they were measured for the policy Optimal:
// on the batch with the most rows if there were several. It is nil if nothing was measured. The caller
// must not change it. It waits for a measurement that goes on.
func (p *Pipe) Chains() []profile.Chain {
	p.plans.mu.Lock()
	defer p.plans.mu.Unlock()
	var out []profile.Chain
	for _, chains := range p.plans.chains {
		if len(chains) > 0 && (out == nil || chains[0].Given > out[0].Given) {
			out = chains
		}
	}
	return out
}
