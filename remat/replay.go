package remat

import "fmt"

// Replay carries out operations one at a time, by the model in the package's doc. It may not be
// used concurrently.
//
// Memory is a set of blocks. x(i), X(i), y(i) and the gradients of a layer's parameters are lists
// of blocks. A block on several lists is shared memory: it counts once, and stays as long as one of
// its holders.
type Replay struct {
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
	next     int // the layer whose backward comes next; below 0: complete
}

// inputState says how x(i) is held.
type inputState int

const (
	absent inputState = iota
	alone             // by itself
	within            // as a part of X(i)
)

// NewReplay begins with x(0) alone. The chain must have passed [Chain.Check].
func NewReplay(c Chain) *Replay {
	n := len(c.Layers)
	r := &Replay{chain: c, x: make([][]int, n+1), full: make([][]int, n+1), y: make([][]int, n+1), state: make([]inputState, n+1), gradient: make([]bool, n+1), next: n - 1}
	// What layers make, less what carries take of it for blocks of their own.
	makes, gradients := make([]int64, n+1), make([]int64, n+1) // for x(i) and y(i)
	for i := range n + 1 {
		makes[i], gradients[i] = c.made(i-1), c.madeGradient(i)
	}
	for _, k := range c.Carries {
		makes[k.From+1] -= k.Bytes
		block := r.block(k.Bytes)
		for i := k.From + 1; i <= k.To; i++ {
			r.x[i] = append(r.x[i], block)
		}
	}
	for _, k := range c.GradientCarries {
		gradients[k.To] -= k.Bytes
		block := r.block(k.Bytes)
		for i := k.From + 1; i <= k.To; i++ {
			r.y[i] = append(r.y[i], block)
		}
	}
	for i := range n + 1 {
		r.x[i] = append(r.x[i], r.block(makes[i]))
		r.y[i] = append(r.y[i], r.block(gradients[i]))
		if i > 0 {
			l := c.Layers[i-1]
			r.full[i] = append(append(r.full[i], r.x[i]...), r.block(l.Saved-l.Output))
			r.weights = append(r.weights, r.block(l.WeightGradient))
		}
	}
	r.hold(r.x[0])
	r.state[0] = alone
	return r
}

func (r *Replay) block(bytes int64) int {
	r.size = append(r.size, bytes)
	r.holders = append(r.holders, 0)
	return len(r.size) - 1
}

func (r *Replay) hold(blocks []int) {
	for _, b := range blocks {
		if r.holders[b] == 0 {
			r.live += r.size[b]
		}
		r.holders[b]++
	}
}

func (r *Replay) drop(blocks []int) {
	for _, b := range blocks {
		r.holders[b]--
		if r.holders[b] == 0 {
			r.live -= r.size[b]
		}
	}
}

// dropInput drops x(i) unless it is a part of X(i).
func (r *Replay) dropInput(i int) {
	if r.state[i] == alone {
		r.drop(r.x[i])
		r.state[i] = absent
	}
}

// Cost is the bytes and the time of an operation.
type Cost struct {
	Before, Made, Tmp int64 // bytes; their sum is held while it runs
	Time              float64
}

// Peak is the bytes held while it runs.
func (c Cost) Peak() int64 { return c.Before + c.Made + c.Tmp }

// Do carries out an operation. If that is not allowed, reason says why and nothing has happened.
func (r *Replay) Do(o Op) (took Cost, reason string) {
	if reason := r.refuse(o); reason != "" {
		return Cost{}, reason
	}
	took.Before = r.live
	n, i := len(r.chain.Layers), o.Layer
	switch o.Kind {
	case Forward, ForwardKeep:
		r.hold(r.x[i+1])
		r.state[i+1] = alone
		took.Tmp, took.Time = r.chain.Layers[i].ForwardNoGradTmp, r.chain.Layers[i].ForwardNoGrad
	case ForwardSave:
		r.hold(r.full[i+1])
		r.state[i+1] = within
		took.Tmp, took.Time = r.chain.Layers[i].ForwardTmp, r.chain.Layers[i].Forward
	case LossStep:
		r.hold(r.y[n])
		r.gradient[n] = true
		took.Tmp, took.Time = r.chain.Loss.Tmp, r.chain.Loss.Backward
	case Backward:
		r.hold(r.y[i])
		r.hold(r.weights[i : i+1])
		r.gradient[i] = true
		took.Tmp, took.Time = r.chain.Layers[i].BackwardTmp-r.chain.Layers[i].BackwardEarly, r.chain.Layers[i].Backward
	}
	took.Made = r.live - took.Before
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
func (r *Replay) refuse(o Op) string {
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
	case o.Kind != Backward && r.state[i+1] == alone:
		return fmt.Sprintf("it makes x(%d), which is there", i+1)
	case o.Kind != Backward && r.state[i+1] == within:
		return fmt.Sprintf("it makes x(%d), which is there as a part of X(%d)", i+1, i+1)
	case o.Kind == Backward && !r.gradient[i+1]:
		return fmt.Sprintf("it needs y(%d), which is not there", i+1)
	case o.Kind == Backward && r.state[i+1] != within:
		return fmt.Sprintf("it needs X(%d), which is not there", i+1)
	}
	return ""
}

// Keeping is the part of a layer that is kept.
type Keeping int

// The parts that can be kept.
const (
	KeepsNothing    Keeping = iota
	KeepsInput              // x(i) by itself
	KeepsEverything         // X(i+1)
)

// String is "nothing", "input" or "everything".
func (k Keeping) String() string { return [...]string{"nothing", "input", "everything"}[k] }

// MarshalText writes what String returns.
func (k Keeping) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// Keeps is the part of layer i that is held now.
func (r *Replay) Keeps(i int) Keeping {
	switch {
	case r.state[i+1] == within:
		return KeepsEverything
	case r.state[i] == alone:
		return KeepsInput
	}
	return KeepsNothing
}

// KeptBytes is the bytes held now, by layer. Memory that layers share counts for the first of them.
func (r *Replay) KeptBytes() []int64 {
	bytes := make([]int64, len(r.chain.Layers))
	counted := make([]bool, len(r.size))
	for i := range bytes {
		hold := func(blocks []int) {
			for _, b := range blocks {
				if !counted[b] {
					bytes[i] += r.size[b]
				}
				counted[b] = true
			}
		}
		if r.state[i] == alone {
			hold(r.x[i])
		}
		if r.state[i+1] == within {
			hold(r.full[i+1])
		}
	}
	return bytes
}
