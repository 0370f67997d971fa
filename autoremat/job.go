package autoremat

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"penstock/nn"
	"penstock/remat"
	"penstock/segment"
	"penstock/torch"
)

// job is one forward of the module and the backwards through it. It runs the execution, and is the node of the graph that stands for the model:
//
//	Forward    prologue, operations before the loss; what is kept waits in the execution
//	           the output, under the node
//	backward   operations behind the loss, from the gradients that arrive, inside of the node
//
// The graph holds it; when the graph goes, so does what is kept.
type job struct {
	m     *Module
	s     *instance
	ops   []remat.Op // on layers of the chain
	chain int        // layers of the chain

	output output // that the last layer's backward uses

	present []presence // of gradients, when forward began
	lacks   []int64
	from    int64 // live then

	terms  remat.Chain // what the operations cost, with the gradients that were there when forward began
	user   *nn.Ctx     // who runs the model, told where it failed
	base   *nn.Ctx     // its state in forward
	lesson *lesson     // nil where there is nothing to learn

	mu        sync.Mutex // guards the execution against Forget, which comes from wherever the graph is dropped
	execution segment.Execution
	over      bool // the execution was freed
	unit      int  // of the chain, that an operation is about
	changes   []int64
	inputs    []*torch.Tensor // distinct, detached; the execution's
	places    []int           // by element of the input: which of those it is
	results   []int           // by element of the output: which of the distinct ones it is
	beyond    []*nn.Param     // parameters that others use as well
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
			j.lesson.drop()
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
	j.lesson.begin()
	out := make([]*torch.Tensor, len(at))
	for i, k := range at {
		out[i] = attached[k]
	}
	return out
}

// send gives the execution the input, and returns what of it is distinct.
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

// atLoss is the number of the loss among the operations.
func (j *job) atLoss() int {
	return slices.IndexFunc(j.ops, func(op remat.Op) bool { return op.Kind == remat.LossStep })
}

func (j *job) perform(c *torch.Ctx, ops []remat.Op) {
	for _, op := range ops {
		j.unit = op.Layer
		op.Layer += j.s.chain.Prologue
		j.lesson.watch(func() { j.execution.Do(c, op) })
		if op.Kind == remat.Backward && op.Layer == j.s.segment.Units()-1 {
			j.lesson.after()
		}
	}
}

// context makes that of a unit's layers.
func (j *job) context(c *torch.Ctx, run segment.Run) *nn.Ctx {
	return j.base.Fork(c, nn.Fork{Checkpointing: run.More, Recomputing: run.Again, Spans: run.Graph, Skips: run.Skips})
}

// Backward performs the operations behind the loss.
func (j *job) Backward(c *torch.Ctx, a *torch.Arrival) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.over {
		panic(&torch.Error{Op: "autoremat", Device: c.Device(), Message: "a backward through the module has failed, and let go of what it had kept; run Forward again"})
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
		j.lesson.drop()
		if p != nil {
			panic(p)
		}
	}()
	if !a.Last {
		j.lesson.drop() // a graph that is kept is let go of otherwise
	}
	j.lesson.arrive(a.Grads)
	j.execution.Retain = !a.Last
	ops := j.ops[j.atLoss()+1:]
	j.unchanged(c, ops)
	defer j.setAside(c)(a)
	grads := make([]*torch.Tensor, len(j.results))
	for i, k := range j.results {
		grads[i], a.Grads[k] = a.Grads[k], nil // of one that stands there twice the first has it
	}
	j.execution.GiveGrads(j.s.segment.Units(), grads, nil)
	j.m.orRestore(j.user, func() { j.perform(c, ops) })
	j.lesson.end(j)
	given, skips := j.execution.TakeGrads(j.s.chain.Prologue)
	for i, g := range given {
		if c.Adopt(g); g == nil || j.s.chain.Prologue > 0 {
			continue
		}
		if k := j.places[i]; a.Wanted[k] {
			a.InputGrads[k] = g // of one that comes twice only the first has it
		}
	}
	for _, list := range skips { // of what the prologue has stashed
		torch.FreeAll(list)
	}
	j.m.stepped()
	done = true
}

// unchanged panics if the caller has overwritten an input that is to be used again.
func (j *job) unchanged(c *torch.Ctx, ops []remat.Op) {
	if j.s.chain.Prologue > 0 || !slices.ContainsFunc(ops, func(op remat.Op) bool {
		return op.Layer == 0 && (op.Kind == remat.ForwardKeep || op.Kind == remat.ForwardSave)
	}) {
		return
	}
	for i, x := range j.inputs {
		if !x.Freed() && x.Changes() != j.changes[i] {
			panic(&torch.Error{Op: "autoremat", Args: []string{x.String()}, Device: c.Device(),
				Message: fmt.Sprintf("input %d was overwritten between forward and backward, which computes from it again; let it be until then, or give the module a Clone", i)})
		}
	}
}

// setAside takes the gradients of parameters that others use as well away. The function that it returns makes what has come meanwhile the node's, for the graph to sum, and puts them back.
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

// where is the full name of the layer that a backward has failed in, with p; or of the unit, if no more is known.
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

// Forget lets go of what is kept.
func (j *job) Forget() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.execution.Free()
	j.over = true
	j.lesson.drop()
}
