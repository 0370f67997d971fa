package segment

import (
	"fmt"
	"slices"

	"penstock.example/internal/engine"
	"penstock.example/nn"
	"penstock.example/remat"
	"penstock.example/torch"
)

// NewContext makes the context that the layers of a unit run in. It is called on the goroutine that
// calls Do.
type NewContext func(c *torch.Ctx, run Run) *nn.Ctx

// Run describes one forward of a unit.
type Run struct {
	Graph bool // backward will follow this forward
	More  bool // this forward has no graph, and another one will follow
	Again bool // the unit has run before
	Skips *nn.SkipStore
}

// Execution is the state of a micro-batch in a segment between operations. It owns its tensors, which
// are kept (torch.Ctx.Keep). One goroutine uses it. The zero Execution is ready after Begin.
type Execution struct {
	s       *Segment
	context NewContext
	at      []step // by boundary
	ties    []*torch.Tensor
	store   nn.SkipStore // of the unit that runs
	before  []int64      // memory for watch

	// Retain keeps tensors that were made before the loss step, for another backward. The operations after
	// the loss step can be repeated.
	Retain bool
	// Defer has backwards leave gradients of weights to Weights, where that saves work
	// (engine.Prepared.Split), but for ties, as the unit before needs those. With Retain nothing is deferred.
	Defer bool
	// Final says that no backward follows. The input of a unit is freed after its first layer.
	Final bool

	later   []later // deferred parts of backwards, in their order
	after   bool    // the loss step is over
	running *nn.Ctx // for errors: see Running
}

// step is the state of a boundary, and of the unit after it.
type step struct {
	state state
	graph graph
	grads grads
	ran   bool // the unit, once or more
}

// state is the input of a unit.
type state struct {
	held       bool
	early      bool // made before the loss step
	lent       bool // as Arrival.Lent
	xs         []*torch.Tensor
	skips      []*torch.Tensor // by place at the boundary; nil where one is absent
	wants      []bool          // by element of xs: its gradient is wanted; nil if the execution decides
	wantsSkips []bool          // by place
}

// graph is the result of a forward with gradients.
type graph struct {
	made, early bool
	mail        []*torch.Tensor   // by element of the input: the mailbox of its gradient; nil if not wanted
	skipMail    [][]*torch.Tensor // by popped skip, by pop
	out         []*torch.Tensor
	stashed     []*torch.Tensor // by stashed skip
	ran         *nn.Ctx
}

// later is the part of a unit's backward that adds to the gradients of weights.
type later struct {
	backward *engine.Prepared
	ran      *nn.Ctx // the forward, for errors
}

// grads are the gradients of the input of a unit.
type grads struct {
	xs    []*torch.Tensor
	skips [][]*torch.Tensor // by place at the boundary, by pop from there on
}

// Begin makes an execution that holds nothing ready for a segment. context makes the contexts of units.
func (e *Execution) Begin(s *Segment, context NewContext) {
	*e = Execution{s: s, context: context, at: emptied(e.at, len(s.units)+1), store: e.store,
		before: e.before}
	if len(s.ties) > 0 {
		e.ties = make([]*torch.Tensor, len(s.ties))
	}
}

// emptied is a list of n zeros, in the memory of another list if it has room.
func emptied[T any](list []T, n int) []T {
	if cap(list) < n {
		return make([]T, n)
	}
	list = list[:n]
	clear(list)
	return list
}

// Units is the number of units of the segment.
func (e *Execution) Units() int { return len(e.s.units) }

// Do performs an operation; remat.Op numbers units. It panics as operators do; after that the
// execution can only be freed. The loss step computes nothing: it comes when the gradient of the output is
// known. The loss itself is a layer of the last unit (nn.LossLayer), or the caller's.
func (e *Execution) Do(c *torch.Ctx, op remat.Op) {
	if op.Kind != remat.LossStep && (op.Layer < 0 || op.Layer >= len(e.s.units)) {
		e.refuse(c, "operation %v: there are %d units", op, len(e.s.units))
	}
	switch op.Kind {
	case remat.Forward, remat.ForwardKeep:
		e.forward(c, op.Layer, false)
		if s := &e.at[op.Layer].state; op.Kind == remat.Forward && e.alone(op.Layer) && !e.stays(s.early) {
			s.free()
		}
	case remat.ForwardSave:
		e.forward(c, op.Layer, true)
	case remat.LossStep:
		e.after = true
	case remat.Backward:
		e.backward(c, op.Layer)
	}
}

// refuse panics because the operations of a plan do not fit together.
func (e *Execution) refuse(c *torch.Ctx, format string, args ...any) {
	panic(&torch.Error{Op: "plan", Device: c.Device(), Message: fmt.Sprintf(format, args...)})
}

// alone reports whether the input of a unit shares nothing with the graph of the unit before.
func (e *Execution) alone(unit int) bool { return unit == 0 || !e.at[unit-1].graph.made }

// stays reports whether something is kept for further backwards; early says that it was made before
// the loss step.
func (e *Execution) stays(early bool) bool { return e.Retain && early }

// Arrival is the input of a unit: a tuple, and the skips by place at the boundary before the unit, nil
// where one is absent. Wants and WantsSkips say which gradients are wanted.
type Arrival struct {
	Tensors, Skips    []*torch.Tensor
	Wants, WantsSkips []bool
	Lent              bool // somebody else uses the memory of Tensors, which must not be overwritten
}

// Send gives the execution the input of a unit, usually of the first. The execution owns the
// tensors from now on.
func (e *Execution) Send(unit int, a Arrival) {
	e.at[unit].state = state{held: true, early: true, lent: a.Lent, xs: a.Tensors, skips: a.Skips,
		wants: a.Wants, wantsSkips: a.WantsSkips}
}

// Output is the output of the segment, and by place at its last boundary the skips that it stashes for
// later layers. The execution owns them. saved says that the last unit was run with gradients: the
// tensors then have their graph, and other skips than this unit's are nil.
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

// Saved is the output of a unit that was run with gradients, with its graph, and the skips that the
// unit has stashed, by place at the boundary after it. The execution owns them.
func (e *Execution) Saved(unit int) (xs, skips []*torch.Tensor) {
	g := &e.at[unit].graph
	skips = make([]*torch.Tensor, len(e.s.boundaries[unit+1]))
	for i, s := range e.s.units[unit].stashed {
		skips[s.out] = g.stashed[i]
	}
	return g.out, skips
}

// TakeSaved moves what Saved returns out of the execution, which keeps the rest of the graph. The
// unit cannot go backward any more.
func (e *Execution) TakeSaved(unit int) (xs, skips []*torch.Tensor) {
	xs, skips = e.Saved(unit)
	g := &e.at[unit].graph
	g.out, g.stashed = nil, nil
	return xs, skips
}

// Take moves the input of a unit out of the execution. For the number of units it is the output of
// the segment without its graph, nil where Output has it with its graph only.
func (e *Execution) Take(unit int) (xs, skips []*torch.Tensor) {
	s := &e.at[unit].state
	xs, skips = s.xs, s.skips
	*s = state{}
	return xs, skips
}

// GiveGrads gives the execution the gradients of the input of a unit. xs are by element, nil where absent.
// skips are by place at the boundary, and then by later pop. For the number of units they are the
// gradients of Output. The execution owns them from now on.
func (e *Execution) GiveGrads(unit int, xs []*torch.Tensor, skips [][]*torch.Tensor) {
	e.at[unit].grads = grads{xs, skips}
}

// TakeGrads moves the gradients of the input of a unit out of the execution.
func (e *Execution) TakeGrads(unit int) (xs []*torch.Tensor, skips [][]*torch.Tensor) {
	g := e.at[unit].grads
	e.at[unit].grads = grads{}
	return g.xs, g.skips
}

// GiveTie gives the execution the gradient of a tie (by Segment.Ties) from later units or from layers after
// the segment. The execution owns it.
func (e *Execution) GiveTie(i int, grad *torch.Tensor) { e.ties[i] = grad }

// TakeTie moves the gradient of a tie so far, where earlier units use the parameter too, out of the
// execution; nil without one.
func (e *Execution) TakeTie(i int) *torch.Tensor {
	t := e.ties[i]
	e.ties[i] = nil
	return t
}

// Weights computes the gradients that backwards have deferred, in order, and frees their graphs. It panics
// as operators do; after that the execution can only be freed.
func (e *Execution) Weights(c *torch.Ctx) {
	for len(e.later) > 0 {
		e.Weight(c)
	}
}

// Deferred is the number of backwards that Weights has work of.
func (e *Execution) Deferred() int { return len(e.later) }

// Weight does what Weights does for the first of the backwards alone.
func (e *Execution) Weight(c *torch.Ctx) {
	c.SetGrad(false)
	if len(e.later) > 0 {
		e.running = e.later[0].ran
		e.later[0].backward.Run()
		e.later, e.running = slices.Delete(e.later, 0, 1), nil
	}
}

// Running is the context of the forward that runs or has panicked; in a backward, of the forward that made
// the graph; nil if nothing runs.
func (e *Execution) Running() *nn.Ctx { return e.running }

// Free frees everything that the execution holds.
func (e *Execution) Free() {
	for i := range e.at {
		e.at[i].state.free()
		e.at[i].grads.free()
	}
	for i := range e.at {
		e.at[i].graph.free()
	}
	torch.FreeAll(e.ties)
	clear(e.ties)
	for _, l := range e.later {
		l.backward.Free()
	}
	e.later, e.running = nil, nil
}

func (s *state) free() {
	torch.FreeAll(s.xs)
	torch.FreeAll(s.skips)
	*s = state{}
}

func (g *graph) free() {
	torch.FreeAll(g.mail)
	for _, list := range g.skipMail {
		torch.FreeAll(list)
	}
	torch.FreeAll(g.out)
	torch.FreeAll(g.stashed)
	*g = graph{}
}

func (g *grads) free() {
	torch.FreeAll(g.xs)
	for _, list := range g.skips {
		torch.FreeAll(list)
	}
	*g = grads{}
}
