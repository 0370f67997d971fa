package segment

import (
	"fmt"

	"penstock/internal/arg"
	"penstock/nn"
	"penstock/remat/plan"
	"penstock/torch"
)

// NewContext makes the context that the layers of a unit run in. It is called on the goroutine that calls Do.
type NewContext func(c *torch.Ctx, run Run) *nn.Ctx

// Run describes one forward of a unit.
type Run struct {
	Graph bool // backward will follow this one
	More  bool // without a graph, and another one will follow
	Again bool // the unit has run before
	Skips *nn.SkipStore
}

// Walk is one micro-batch on its way through a segment: what is held between operations. All tensors are kept (torch.Ctx.Keep). It belongs to whoever calls its methods, one at a time. The zero Walk with Begin
// is ready.
type Walk struct {
	s       *Segment
	context NewContext
	states  []state // by border
	graphs  []graph // by unit
	grads   []grads // by border
	ties    []*torch.Tensor
	ran     []bool // by unit

	// Retain says that the backward that runs is not the last: what the operations before the loss have left stays, and the others can be repeated.
	Retain bool
	// Final says that no backward will follow at all, and what a unit is given goes as soon as its first layer has used it.
	Final bool

	behind  bool    // the loss, or what stands for it
	running *nn.Ctx // the forward that runs, for errors; or that of the graph that backward goes through
}

// state is an input of a unit.
type state struct {
	held       bool
	early      bool // made before the loss
	lent       bool // as Arrival.Lent
	xs         []*torch.Tensor
	skips      []*torch.Tensor // by crossing at the border; nil where one is absent
	wants      []bool          // by element of xs: whether its gradient is wanted; nil where the walk has to find out
	wantsSkips []bool          // by crossing
}

// graph is what a forward with gradients leaves.
type graph struct {
	made, early bool
	mail        []*torch.Tensor   // by element of the input: where backward leaves its gradient; nil where none is wanted
	skipMail    [][]*torch.Tensor // by popped skip, by pop
	out         []*torch.Tensor
	stashed     []*torch.Tensor // by stashed skip
	ran         *nn.Ctx
}

// grads are the gradients of an input of a unit.
type grads struct {
	xs    []*torch.Tensor
	skips [][]*torch.Tensor // by crossing, by pop from here on
}

// Begin makes a walk ready for a segment, whose units run in the contexts that context makes.
func (w *Walk) Begin(s *Segment, context NewContext) {
	arg.Must(s, "segment: Begin: the segment", "one of segment.New")
	arg.Must(context, "segment: Begin: the function that makes contexts", "one that returns an nn.Ctx")
	n := len(s.units)
	*w = Walk{s: s, context: context, states: make([]state, n+1), graphs: make([]graph, n), grads: make([]grads, n+1), ran: make([]bool, n)}
	if len(s.ties) > 0 {
		w.ties = make([]*torch.Tensor, len(s.ties))
	}
}

// Units is the number of units of the segment.
func (w *Walk) Units() int { return len(w.s.units) }

// Do performs an operation; plan.Op numbers units. It panics as operators do; then the walk can only be freed.
func (w *Walk) Do(c *torch.Ctx, op plan.Op) {
	arg.Must(c, "segment: Do: the torch.Ctx", "that of whoever runs the walk")
	if op.Kind != plan.LossStep && (op.Layer < 0 || op.Layer >= len(w.s.units)) {
		panic(&torch.Error{Op: "plan", Device: c.Device(), Message: fmt.Sprintf("operation %v: there are %d units", op, len(w.s.units))})
	}
	switch op.Kind {
	case plan.Forward, plan.ForwardKeep:
		w.forward(c, op.Layer, false)
		if s := &w.states[op.Layer]; op.Kind == plan.Forward && w.alone(op.Layer) && !w.stays(s.early) {
			s.free()
		}
	case plan.ForwardSave:
		w.forward(c, op.Layer, true)
	case plan.LossStep:
		w.behind = true
	case plan.Backward:
		w.backward(c, op.Layer)
	}
}

// alone says whether the input of a unit is by itself, and no part of what a unit with a graph has given.
func (w *Walk) alone(unit int) bool { return unit == 0 || !w.graphs[unit-1].made }

// stays says whether what was made before the loss, or behind it, is for further backwards to use.
func (w *Walk) stays(early bool) bool { return w.Retain && early }

// Arrival is what a unit is given: a tuple, and by skip that crosses the border before it (of the first unit: Segment.Enters) one handle, nil where it is absent. Wants and WantsSkips say whose
// gradients are wanted; of what crosses borders inside of the segment it is assumed wherever something before is trained.
type Arrival struct {
	Tensors, Skips    []*torch.Tensor
	Wants, WantsSkips []bool
	// Lent says that the memory of Tensors is somebody else's, who is to find it as it was: it is not overwritten even where nobody in the walk needs it again.
	Lent bool
}

// Send gives the walk what a unit is given: the first, by whoever sends it to the segment. It owns the tensors from now on.
func (w *Walk) Send(unit int, a Arrival) {
	w.states[unit] = state{held: true, early: true, lent: a.Lent, xs: a.Tensors, skips: a.Skips, wants: a.Wants, wantsSkips: a.WantsSkips}
}

// Output is what the segment gives; the walk's. Where its last unit was run with gradients that is saved: the output with its graph, and the skips that this unit has stashed. Skips are by
// Segment.Leaves.
func (w *Walk) Output() (xs, skips []*torch.Tensor, saved bool) {
	last := len(w.s.units)
	if w.graphs[last-1].made {
		xs, skips := w.Saved(last - 1)
		return xs, skips, true
	}
	return w.states[last].xs, w.states[last].skips, false
}

// Again says that a unit has run before, elsewhere: its layers see a repetition.
func (w *Walk) Again(unit int) { w.ran[unit] = true }

// Saved is the output of a unit that was run with gradients, with its graph; the walk's. Skips are by the skips at the border behind it, where this unit has stashed them.
func (w *Walk) Saved(unit int) (xs, skips []*torch.Tensor) {
	g := &w.graphs[unit]
	skips = make([]*torch.Tensor, len(w.s.borders[unit+1]))
	for i, s := range w.s.units[unit].stashed {
		skips[s.out] = g.stashed[i]
	}
	return g.out, skips
}

// TakeSaved moves what Saved returns out of the walk, which keeps the graph.
func (w *Walk) TakeSaved(unit int) (xs, skips []*torch.Tensor) {
	xs, skips = w.Saved(unit)
	g := &w.graphs[unit]
	g.out, g.stashed = nil, nil
	return xs, skips
}

// Take moves what a unit is given out of the walk; for the number of units what the segment gives without a graph, nil where the graph's Output is all there is.
func (w *Walk) Take(unit int) (xs, skips []*torch.Tensor) {
	s := &w.states[unit]
	xs, skips = s.xs, s.skips
	*s = state{}
	return xs, skips
}

// GiveGrads gives the walk the gradients of what a unit is given, nil where there is none, which it owns from now on, and by skip at the border those of the pops from there on, in their order.
// For the number of units they are those of Output, by Segment.Leaves.
func (w *Walk) GiveGrads(unit int, xs []*torch.Tensor, skips [][]*torch.Tensor) {
	w.grads[unit] = grads{xs, skips}
}

// TakeGrads moves the gradients of what a unit is given out of the walk. For unit 0 they are those of what the segment was sent, by Segment.Enters.
func (w *Walk) TakeGrads(unit int) (xs []*torch.Tensor, skips [][]*torch.Tensor) {
	g := w.grads[unit]
	w.grads[unit] = grads{}
	return g.xs, g.skips
}

// GiveTie gives the walk the gradient of a tie (by Segment.Ties) of the units behind, or of the layers behind the segment. It owns it. TakeTie moves it out again.
func (w *Walk) GiveTie(i int, grad *torch.Tensor) { w.ties[i] = grad }

// TakeTie is the gradient of a tie so far, where earlier units use it too; nil if there is none.
func (w *Walk) TakeTie(i int) *torch.Tensor {
	t := w.ties[i]
	w.ties[i] = nil
	return t
}

// Running is the context of the forward that runs, or has panicked, or of the one whose graph a backward goes through; nil if none.
func (w *Walk) Running() *nn.Ctx { return w.running }

// Free lets go of everything.
func (w *Walk) Free() {
	for i := range w.states {
		w.states[i].free()
		w.grads[i].free()
	}
	for i := range w.graphs {
		w.graphs[i].free()
	}
	torch.FreeAll(w.ties)
	clear(w.ties)
	w.running = nil
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
