package autoremat

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"penstock.example/nn"
	"penstock.example/remat"
	"penstock.example/segment"
	"penstock.example/torch"
)

// job is one forward of the module with the backwards through it. It runs the execution of the
// model's segment, and is the graph's node for the model:
//
//	Forward    runs the prologue and the operations before the loss; the execution keeps what backward needs
//	           returns the output, attached to the node
//	backward   arrives at the node with gradients, and runs the operations after the loss
//
// The graph holds the job. When the graph goes, so does what the execution keeps.
type job struct {
	m     *Module
	s     *instance
	ops   []remat.Op // their layers are those of the chain
	chain int        // number of layers of the chain

	output output // the one that the last layer's backward uses

	present      []presence // gradients when forward began
	missingBytes []int64
	from         int64 // bytes live when forward began

	costs    remat.Chain  // costs with the gradients that were present when forward began
	user     *nn.Ctx      // the caller's context, which gets the path of a failed layer
	base     *nn.Ctx      // state of the caller's context in forward
	observed *observation // nil where there is nothing to measure

	mu        sync.Mutex // guards the execution against Forget, which may come on any thread
	execution segment.Execution
	over      bool // the execution was freed
	unit      int  // index of the chain's layer that runs
	changes   []int64
	inputs    []*torch.Tensor // distinct and detached; the execution owns them
	places    []int           // by element of the input: its index in inputs
	results   []int           // by element of the output: its index among the distinct ones
	beyond    []*nn.Param     // parameters that are used outside of the model as well
	shared    []*torch.Tensor // their values
}

// forward runs the operations before the loss. The result belongs to c.
func (j *job) forward(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
	j.user, j.base = c, c.Fork(c.Ctx, nn.Fork{})
	defer c.SetGrad(c.SetGrad(false))
	done := false
	defer func() {
		if !done {
			if n := j.execution.Running(); n != nil {
				c.FailedAt(n.Path())
			}
			j.execution.Free()
			j.observed.stop()
		}
	}()
	inputs := j.send(c.Ctx, xs)
	j.execution.Final = true // no backward comes to the prologue
	for i := range j.s.chain.Prologue {
		j.execution.Do(c.Ctx, remat.Op{Kind: remat.Forward, Layer: i})
	}
	j.execution.Final = false
	j.perform(c.Ctx, j.ops[:j.atLoss()+1])
	ys, _, saved := j.execution.Output()
	if !saved {
		ys, _ = j.execution.Take(j.s.segment.Units())
	}
	for _, p := range j.beyond {
		j.shared = append(j.shared, p.Tensor())
	}
	list, at := torch.Distinct(ys)
	j.results = at
	attached := c.Attach(slices.Concat(inputs, j.shared), list, j)
	if !saved {
		torch.FreeAll(ys)
	}
	done = true
	j.observed.forwardReturned()
	out := make([]*torch.Tensor, len(at))
	for i, k := range at {
		out[i] = attached[k]
	}
	return out
}

// send gives the input to the execution, and returns its distinct tensors.
func (j *job) send(c *torch.Ctx, xs []*torch.Tensor) []*torch.Tensor {
	list, at := torch.Distinct(xs)
	wants := make([]bool, len(xs))
	for _, x := range list {
		j.inputs = append(j.inputs, c.Keep(c.Detach(x)))
		j.changes = append(j.changes, x.Changes())
	}
	given := make([]*torch.Tensor, len(xs))
	for i, k := range at {
		given[i], wants[i] = j.inputs[k], xs[i].RequiresGrad()
	}
	j.places = at
	j.execution.Begin(j.s.segment, j.context)
	j.execution.Send(0, segment.Arrival{Tensors: given, Wants: wants, Lent: true})
	return list
}

// atLoss returns the index of the loss among the operations.
func (j *job) atLoss() int {
	return slices.IndexFunc(j.ops, func(op remat.Op) bool { return op.Kind == remat.LossStep })
}

// perform runs operations.
func (j *job) perform(c *torch.Ctx, ops []remat.Op) {
	for _, op := range ops {
		j.unit = op.Layer
		op.Layer += j.s.chain.Prologue
		j.observed.operation(func() { j.execution.Do(c, op) })
		if op.Kind == remat.Backward && op.Layer == j.s.segment.Units()-1 {
			j.observed.lastLayerDone()
		}
	}
}

// context makes the context of a unit's layers.
func (j *job) context(c *torch.Ctx, run segment.Run) *nn.Ctx {
	return j.base.Fork(c, nn.Fork{Checkpointing: run.More, Recomputing: run.Again, Spans: run.Graph, Skips: run.Skips})
}

// Backward runs the operations after the loss.
func (j *job) Backward(c *torch.Ctx, a *torch.Arrival) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.over {
		panic(&torch.Error{Op: "autoremat", Device: c.Device(),
			Message: "a backward through the module has failed, and freed what it had kept; run Forward again"})
	}
	done := false
	defer func() {
		if done {
			return
		}
		p := recover() // nil of a Goexit
		if path := j.where(p); path != "" {
			j.user.FailedAt(path)
		}
		j.execution.Free()
		j.over = true
		j.observed.stop()
		if p != nil {
			panic(p)
		}
	}()
	if !a.Last {
		j.observed.stop() // a graph that is kept frees its tensors in another order
	}
	j.observed.gradientsArrived(a.Grads)
	j.execution.Retain = !a.Last
	ops := j.ops[j.atLoss()+1:]
	j.unchanged(c, ops)
	defer j.setAside(c)(a)
	grads := make([]*torch.Tensor, len(j.results))
	for i, k := range j.results {
		grads[i], a.Grads[k] = a.Grads[k], nil // a repeated tensor has it at its first place
	}
	j.execution.GiveGrads(j.s.segment.Units(), grads, nil)
	j.m.orRestore(j.user, func() { j.perform(c, ops) })
	j.observed.backwardReturned(j)
	given, skips := j.execution.TakeGrads(j.s.chain.Prologue)
	for i, g := range given {
		if c.Adopt(g); g == nil || j.s.chain.Prologue > 0 {
			continue
		}
		if k := j.places[i]; a.Wanted[k] {
			a.InputGrads[k] = g // an input that occurs twice has its gradient at its first place
		}
	}
	for _, list := range skips { // gradients of skips that the prologue stashed
		torch.FreeAll(list)
	}
	j.m.stepped()
	done = true
}

// unchanged panics if the caller has overwritten an input that backward uses again.
func (j *job) unchanged(c *torch.Ctx, ops []remat.Op) {
	if j.s.chain.Prologue > 0 || !slices.ContainsFunc(ops, func(op remat.Op) bool {
		return op.Layer == 0 && (op.Kind == remat.ForwardKeep || op.Kind == remat.ForwardSave)
	}) {
		return
	}
	for i, x := range j.inputs {
		if !x.Freed() && x.Changes() != j.changes[i] {
			panic(&torch.Error{Op: "autoremat", Args: []string{x.String()}, Device: c.Device(),
				Message: fmt.Sprintf("input %d was overwritten between forward and backward, "+
					"which computes from it again; let it be until then, or give the module a Clone", i)})
		}
	}
}

// setAside removes the gradients of parameters that are also used outside. The function that it
// returns moves the gradients that came meanwhile to the node's inputs, where the graph sums them,
// and puts the old ones back.
func (j *job) setAside(c *torch.Ctx) func(a *torch.Arrival) {
	before := make([]*torch.Tensor, len(j.shared))
	for i, t := range j.shared {
		before[i] = c.GradOf(t)
		t.SetGradOf(nil)
	}
	return func(a *torch.Arrival) {
		for i, t := range j.shared {
			a.InputGrads[len(a.InputGrads)-len(j.shared)+i] = c.GradOf(t)
			t.SetGradOf(before[i])
		}
	}
}

// where returns the full name of the layer in which a backward failed with panic value p. It
// returns the name of the unit if the layer is not known.
func (j *job) where(p any) string {
	n := j.execution.Running()
	if n == nil {
		return ""
	}
	around := j.base.Path()
	if e, ok := p.(*torch.Error); ok && e.Sequence != 0 {
		if layer := nn.LayerOf(n.Spans(), e.Sequence); layer != "" {
			return layer
		}
	}
	if path := n.Path(); path != around {
		return path
	}
	return strings.TrimPrefix(around+"."+j.s.chain.Layers[j.unit].Name, ".")
}

// Forget frees what the execution keeps.
func (j *job) Forget() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.execution.Free()
	j.over = true
	j.observed.stop()
}
