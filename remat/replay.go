package remat

import "fmt"

// replay carries out operations one at a time, by the model in the package's doc.
//
// Memory is a set of blocks. x(i), X(i), y(i) and the gradients of a layer's parameters are lists of
// blocks. A block on several lists is shared memory: it counts once, and stays while a list holds it.
type replay struct {
	chain   Chain
	size    []int64 // of each block
	holders []int   // of each block: how many of x, X, y and gradients hold it
	live    int64   // sum of the sizes of blocks that are held

	x, full [][]int // blocks of x(i), and of X(i)
	y       [][]int
	weights []int // block of each layer's gradients of parameters

	state    []inputState // of x(i)
	gradient []bool       // y(i) is there
	lossDone bool
	next     int // the layer with the next backward; below 0 the plan is complete
}

// inputState says how x(i) is held.
type inputState int

const (
	absent inputState = iota
	alone             // by itself
	within            // as a part of X(i)
)

// newReplay begins with x(0) alone. The chain must have passed [Chain.Check].
func newReplay(c Chain) *replay {
	n := len(c.Layers)
	r := &replay{chain: c, x: make([][]int, n+1), full: make([][]int, n+1), y: make([][]int, n+1),
		state: make([]inputState, n+1), gradient: make([]bool, n+1), next: n - 1}
	for i := range n + 1 {
		r.block(&r.x[i], c.made(i-1))
		r.block(&r.y[i], c.madeGradient(i))
	}
	share := func(lists [][]int, k Carry, maker int) { // a carry is a block of its own
		r.size[lists[maker][0]] -= k.Bytes
		r.size = append(r.size, k.Bytes)
		for i := k.From + 1; i <= k.To; i++ {
			lists[i] = append(lists[i], len(r.size)-1)
		}
	}
	for _, k := range c.Carries {
		share(r.x, k, k.From+1)
	}
	for _, k := range c.GradientCarries {
		share(r.y, k, k.To)
	}
	for i, l := range c.Layers {
		r.full[i+1] = append(r.full[i+1], r.x[i+1]...)
		r.block(&r.full[i+1], l.Saved-l.Output)
		r.block(&r.weights, l.WeightGradient)
	}
	r.holders = make([]int, len(r.size))
	r.hold(r.x[0])
	r.state[0] = alone
	return r
}

// block appends a new block to a list.
func (r *replay) block(list *[]int, bytes int64) {
	r.size = append(r.size, bytes)
	*list = append(*list, len(r.size)-1)
}

func (r *replay) hold(blocks []int) {
	for _, b := range blocks {
		if r.holders[b] == 0 {
			r.live += r.size[b]
		}
		r.holders[b]++
	}
}

func (r *replay) drop(blocks []int) {
	for _, b := range blocks {
		if r.holders[b]--; r.holders[b] == 0 {
			r.live -= r.size[b]
		}
	}
}

// dropInput drops x(i) unless it is a part of X(i).
func (r *replay) dropInput(i int) {
	if r.state[i] == alone {
		r.drop(r.x[i])
		r.state[i] = absent
	}
}

// cost is the most bytes held during an operation, and its time.
type cost struct {
	peak int64
	time float64
}

// do carries out an operation. If that is not allowed, reason says why and nothing has happened.
func (r *replay) do(o Op) (took cost, reason string) {
	if reason := r.refuse(o); reason != "" {
		return cost{}, reason
	}
	n, i, l := len(r.chain.Layers), o.Layer, Layer{}
	if o.Kind != LossStep {
		l = r.chain.Layers[i]
	}
	switch o.Kind {
	case Forward, ForwardKeep:
		r.hold(r.x[i+1])
		r.state[i+1] = alone
		took = cost{l.ForwardNoGradTmp, l.ForwardNoGrad}
	case ForwardSave:
		r.hold(r.full[i+1])
		r.state[i+1] = within
		took = cost{l.ForwardTmp, l.Forward}
	case LossStep:
		r.hold(r.y[n])
		r.gradient[n] = true
		took = cost{r.chain.Loss.Tmp, r.chain.Loss.Backward}
	case Backward:
		r.hold(r.y[i])
		r.hold(r.weights[i : i+1])
		r.gradient[i] = true
		took = cost{l.BackwardTmp - l.BackwardEarly, l.Backward}
	}
	took.peak += r.live
	switch o.Kind {
	case Forward:
		r.dropInput(i)
	case LossStep:
		r.lossDone = true
		r.dropInput(n)
	case Backward:
		r.drop(r.full[i+1])
		r.state[i+1] = absent
		r.drop(r.y[i+1])
		r.gradient[i+1] = false
		r.dropInput(i)
		r.next--
	}
	return took, ""
}

// refuse says why an operation is not allowed now, or nothing.
func (r *replay) refuse(o Op) string {
	n, i := len(r.chain.Layers), o.Layer
	switch {
	case o.Kind < Forward || o.Kind > Backward:
		return "there is no such operation"
	case r.next < 0:
		return "the plan was complete before, with B0; want it to end there"
	case o.Kind == LossStep && r.lossDone:
		return "the loss has run before; want it once"
	case o.Kind == LossStep && r.state[n] == absent:
		return fmt.Sprintf("the loss needs x(%d), which is not there", n)
	case o.Kind == LossStep:
		return ""
	case i < 0 || i >= n:
		return fmt.Sprintf("there is no layer %d; want 0 to %d", i, n-1)
	case r.state[i] == absent:
		return fmt.Sprintf("it needs x(%d), which is not there", i)
	case o.Kind != Backward && r.state[i+1] != absent:
		return fmt.Sprintf("it makes x(%d), which is there", i+1)
	case o.Kind == Backward && !r.gradient[i+1]:
		return fmt.Sprintf("it needs y(%d), which is not there", i+1)
	case o.Kind == Backward && r.state[i+1] != within:
		return fmt.Sprintf("it needs X(%d), which is not there", i+1)
	}
	return ""
}
