package segment

import (
	"fmt"
	"slices"

	"penstock.example/internal/engine"
	"penstock.example/nn"
	"penstock.example/remat"
	"penstock.example/torch"
)

// NewContext makes the context in which the layers of a unit run.
type NewContext func(c *torch.Ctx, run Run) *nn.Ctx

// Run describes one forward of a unit.
type Run struct {
	Graph bool // backward will follow this forward
	More  bool // this forward has no graph, and the unit will run again
	Again bool // the unit has run before
	Skips *nn.SkipStore
}

// Execution is the state of a micro-batch in a segment between operations. It owns its tensors,
// which are kept (torch.Ctx.Keep). One goroutine uses it. The zero Execution is ready after Begin.
type Execution struct {
	s       *Segment
	context NewContext
	at      []boundary      // by unit; the last is the boundary after the segment
	ties    []*torch.Tensor // gradients from later uses
	store   nn.SkipStore    // of the unit that runs

	// Retain keeps tensors from before the loss step, so that later operations can be repeated.
	Retain bool
	// Defer makes backwards leave gradients of weights to Weights, if that saves work
	// (engine.Prepared.Split). The unit before needs gradients of ties, so these are never
	// deferred. With Retain nothing is deferred.
	Defer bool
	// Final says that no backward follows. The input of a unit is freed after its first layer.
	Final bool

	deferred []weightBackward // in order
	lossDone bool             // the loss step is over
	running  *nn.Ctx          // see Running
}

// boundary is the state of a boundary, and of the unit after it.
type boundary struct {
	state state
	graph graph
	grads grads
	ran   bool // the unit has run at least once
}

// state is the input of a unit.
type state struct {
	held       bool
	beforeLoss bool // made before the loss step
	lent       bool // as Arrival.Lent
	xs         []*torch.Tensor
	skips      []*torch.Tensor // by place at the boundary; nil if absent
	wants      []bool          // by element of xs: its gradient is wanted; nil if the execution decides
	wantsSkips []bool          // by place
}

// graph is the result of a forward with gradients.
type graph struct {
	made, beforeLoss bool
	mail             []*torch.Tensor   // by element of the input: the gradient's mailbox; nil if unwanted
	skipMail         [][]*torch.Tensor // by entering skip, by pop
	out              []*torch.Tensor
	stashed          []*torch.Tensor // by stashed skip
	context          *nn.Ctx         // of the forward
}

// weightBackward is the deferred part of a unit's backward, which adds to the gradients of weights.
type weightBackward struct {
	backward *engine.Prepared
	context  *nn.Ctx // of the forward
}

// grads are the gradients of the input of a unit.
type grads struct {
	xs    []*torch.Tensor
	skips [][]*torch.Tensor // by place at the boundary, by later pop
}

// Begin prepares an execution, which must hold nothing, for a segment.
func (e *Execution) Begin(s *Segment, context NewContext) {
	n := len(s.units) + 1
	at := slices.Grow(e.at[:0], n)[:n]
	clear(at)
	*e = Execution{s: s, context: context, at: at, store: e.store}
	if len(s.ties) > 0 {
		e.ties = make([]*torch.Tensor, len(s.ties))
	}
}

func (e *Execution) Units() int { return len(e.s.units) }

// Do performs an operation on a unit (remat.Op.Layer). It panics as operators do. After a panic the
// execution can only be freed. The loss step computes nothing: the loss is a layer of the last unit
// (nn.LossLayer), or the caller's.
func (e *Execution) Do(c *torch.Ctx, op remat.Op) {
	if op.Kind != remat.LossStep && (op.Layer < 0 || op.Layer >= len(e.s.units)) {
		e.refuse(c, "operation %v: there are %d units", op, len(e.s.units))
	}
	switch op.Kind {
	case remat.Forward, remat.ForwardKeep:
		e.forward(c, op.Layer, false)
		if op.Kind == remat.Forward && e.ownsInput(op.Layer) {
			e.freeInput(op.Layer)
		}
	case remat.ForwardSave:
		e.forward(c, op.Layer, true)
	case remat.LossStep:
		e.lossDone = true
	case remat.Backward:
		e.backward(c, op.Layer)
	}
}

// refuse panics because the operations of a plan do not fit together.
func (e *Execution) refuse(c *torch.Ctx, format string, args ...any) {
	panic(&torch.Error{Op: "plan", Device: c.Device(), Message: fmt.Sprintf(format, args...)})
}

// ownsInput reports whether the input of a unit shares nothing with the graph of the unit before.
func (e *Execution) ownsInput(unit int) bool { return unit == 0 || !e.at[unit-1].graph.made }

// keeps reports whether a tensor is kept for further backwards.
func (e *Execution) keeps(beforeLoss bool) bool { return e.Retain && beforeLoss }

// Arrival is the input of a unit: a tuple, and the skips by place at the boundary before the unit,
// nil if absent. Wants and WantsSkips say which gradients are wanted.
type Arrival struct {
	Tensors, Skips    []*torch.Tensor
	Wants, WantsSkips []bool
	Lent              bool // Tensors must not be overwritten: others use their memory
}

// Send gives the execution the input of a unit, usually of the first. It then owns the tensors.
func (e *Execution) Send(unit int, a Arrival) {
	e.at[unit].state = state{held: true, beforeLoss: true, lent: a.Lent, xs: a.Tensors, skips: a.Skips,
		wants: a.Wants, wantsSkips: a.WantsSkips}
}

// Output is the output of the segment, and the skips for later layers by place at the last
// boundary. The execution owns them. saved says that they belong to the graph of the last unit.
// Skips of earlier units are then nil.
func (e *Execution) Output() (xs, skips []*torch.Tensor, saved bool) {
	last := len(e.s.units)
	if e.at[last-1].graph.made {
		xs, skips := e.Saved(last - 1)
		return xs, skips, true
	}
	return e.at[last].state.xs, e.at[last].state.skips, false
}

// Again tells a unit's layers that they have run before, in another execution.
func (e *Execution) Again(unit int) { e.at[unit].ran = true }

// Saved is the output of a unit with its graph, and the skips that the unit has stashed, by place
// at the boundary after the unit. The execution owns them.
func (e *Execution) Saved(unit int) (xs, skips []*torch.Tensor) {
	g := &e.at[unit].graph
	skips = make([]*torch.Tensor, len(e.s.boundaries[unit+1]))
	for i, s := range e.s.units[unit].stashed {
		skips[s.out] = g.stashed[i]
	}
	return g.out, skips
}

// TakeSaved moves the tensors of Saved out of the execution. The unit cannot go backward any more.
func (e *Execution) TakeSaved(unit int) (xs, skips []*torch.Tensor) {
	xs, skips = e.Saved(unit)
	g := &e.at[unit].graph
	g.out, g.stashed = nil, nil
	return xs, skips
}

// Release drops element k of the output of a unit with a graph, which nothing needs any more. Its
// memory stays as far as the graph or others need it.
func (e *Execution) Release(c *torch.Ctx, unit, k int) {
	out := e.at[unit].graph.out
	t, root := out[k], (*torch.Tensor)(nil)
	if t == nil || t.IsLeaf() && t.RequiresGrad() || t.Numel() == 0 { // a released one has no elements
		return
	}
	if t.RequiresGrad() {
		root = c.Keep(engine.Root(c, t))
	}
	for i := range out {
		if out[i] == t {
			out[i] = root
		}
	}
	t.Free()
	torch.FreeAll(e.at[unit+1].state.xs)
	e.at[unit+1].state.xs = nil
}

// Take moves the input of a unit out of the execution. For unit Units it is the segment's output
// without a graph, or nil if that exists only with a graph (Output).
func (e *Execution) Take(unit int) (xs, skips []*torch.Tensor) {
	s := &e.at[unit].state
	xs, skips = s.xs, s.skips
	*s = state{}
	return xs, skips
}

// GiveGrads gives the execution the gradients of a unit's input: xs by element, nil if absent, and
// skips by place at the boundary and by later pop. For unit Units they are the gradients of Output.
func (e *Execution) GiveGrads(unit int, xs []*torch.Tensor, skips [][]*torch.Tensor) {
	e.at[unit].grads = grads{xs, skips}
}

// TakeGrads moves the gradients of the input of a unit out of the execution.
func (e *Execution) TakeGrads(unit int) (xs []*torch.Tensor, skips [][]*torch.Tensor) {
	g := e.at[unit].grads
	e.at[unit].grads = grads{}
	return g.xs, g.skips
}

// GiveTie gives the execution the gradient of a tie (by Segment.Ties) from all later uses.
func (e *Execution) GiveTie(i int, grad *torch.Tensor) { e.ties[i] = grad }

// TakeTie moves the gradient of a tie, summed so far, out of the execution. It may be nil.
func (e *Execution) TakeTie(i int) *torch.Tensor {
	t := e.ties[i]
	e.ties[i] = nil
	return t
}

// Weights computes the deferred gradients of all backwards, in order, and frees their graphs. It
// panics as Do does.
func (e *Execution) Weights(c *torch.Ctx) {
	for len(e.deferred) > 0 {
		e.Weight(c)
	}
}

// Deferred is the number of backwards with deferred gradients.
func (e *Execution) Deferred() int { return len(e.deferred) }

// Weight computes the deferred gradients of the first backward.
func (e *Execution) Weight(c *torch.Ctx) {
	c.SetGrad(false)
	if len(e.deferred) > 0 {
		e.running = e.deferred[0].context
		e.deferred[0].backward.Run()
		e.deferred, e.running = slices.Delete(e.deferred, 0, 1), nil
	}
}

// Running is the context of the forward that runs or has panicked. During a backward it is the
// forward that made the graph. It is nil if nothing runs.
func (e *Execution) Running() *nn.Ctx { return e.running }

// Free frees everything that the execution holds.
func (e *Execution) Free() {
	for i := range e.at {
		e.at[i].state.free()
		e.at[i].grads.free()
		e.at[i].graph.free()
	}
	torch.FreeAll(e.ties)
	clear(e.ties)
	for _, d := range e.deferred {
		d.backward.Free()
	}
	e.deferred, e.running = nil, nil
}

func (s *state) free() {
	torch.FreeAll(s.xs)
	torch.FreeAll(s.skips)
	*s = state{}
}

func (g *graph) free() {
	torch.FreeAll(slices.Concat(g.skipMail...))
	torch.FreeAll(slices.Concat(g.mail, g.out, g.stashed))
	*g = graph{}
}

func (g *grads) free() {
	torch.FreeAll(slices.Concat(g.skips...))
	torch.FreeAll(g.xs)
	*g = grads{}
}
