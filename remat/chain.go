package remat

import (
	"cmp"
	"slices"
)

// Chain is the costs of a model's layers, for one batch. Package profile measures one. Times are in
// microseconds, sizes in bytes.
type Chain struct {
	Input         int64 // bytes of x(0)
	InputGradient int64 // bytes of y(0); 0 if it is not wanted
	Layers        []Layer
	Loss          Loss
	// Carries are memory that inputs share, GradientCarries memory that gradients share; see the
	// package's doc.
	Carries, GradientCarries []Carry
	// No plan of a chain depends on the other fields. They are zero if unknown.
	Deferred []Deferred // by layer
	Model    string     // the measured one
	Rows     int        // of the batch
	Threads  int        // of an operator
	Devices  int        // that worked meanwhile, each with as many threads
	Spread   float64    // median time of a run over the time that counts, minus 1; 0.1 is 10 % longer
}

// WithoutInput returns the chain without the bytes of x(0), for callers that count x(0) elsewhere.
func (c Chain) WithoutInput() Chain {
	c.Carries = slices.DeleteFunc(slices.Clone(c.Carries), func(k Carry) bool { return k.From < 0 })
	c.Input = 0
	return c
}

// Layer is the cost of one layer.
type Layer struct {
	Name string

	Forward       float64 // with gradients
	ForwardNoGrad float64
	Backward      float64

	Output int64 // x(i+1), without parts of x(i)
	// Saved is X(i+1), without parts of x(i): all that a forward with gradients keeps, with the output.
	Saved int64

	// Temporaries are the most bytes beyond earlier blocks and the operation's results.
	ForwardTmp       int64 // of a forward with gradients
	ForwardNoGradTmp int64 // of a forward without gradients
	BackwardTmp      int64 // of the backward

	Gradient       int64 // y(i+1), without parts of y(i+2)
	WeightGradient int64 // of parameters, made by this layer's backward; 0 if they exist before

	// BackwardEarly is the bytes of X(i+1) and y(i+1) that the backward has freed at its peak. They
	// are subtracted from the sum of earlier blocks, new gradients, WeightGradient and BackwardTmp.
	BackwardEarly int64

	// BackwardLater is the time of the backward of later micro-batches of a step, which add to the
	// gradients of parameters; 0 is Backward. No plan of a single batch depends on it.
	BackwardLater float64
}

// Later returns the time of the backward of later micro-batches of a step.
func (l Layer) Later() float64 { return cmp.Or(l.BackwardLater, l.Backward) }

// Loss is the costs of the loss, forward and backward.
type Loss struct {
	Backward float64 `json:"backward_us"`
	Tmp      int64   `json:"tmp_bytes"` // the most bytes beyond earlier blocks and y(L)
}

// Deferred describes a backward in two parts: the first makes the gradients that others wait for,
// the second the gradients of parameters.
type Deferred struct {
	Bytes  int64   `json:"bytes,omitzero"`     // that the first leaves to the second
	Share  float64 `json:"share,omitzero"`     // the second's part of the time of both, from 0 to 1
	Longer float64 `json:"longer_us,omitzero"` // microseconds of both beyond a whole backward
}

// Second returns the time of the second part of the backward of layer i, in a chain of [Chain.InParts].
// It is half of the backward if Deferred is nil.
func (c Chain) Second(i int) float64 {
	if c.Deferred == nil {
		return c.Layers[i].Backward / 2
	}
	return c.Layers[i].Backward * c.Deferred[i].Share
}

// InParts returns the chain for schedules with backwards in two parts. The backward of a layer then has
// the time of both parts together.
func (c Chain) InParts() Chain {
	c.Layers = slices.Clone(c.Layers)
	for i, d := range c.Deferred {
		l := &c.Layers[i]
		if l.BackwardLater > 0 {
			l.BackwardLater += d.Longer
		}
		l.Backward += d.Longer
	}
	return c
}

// Carry is memory that the inputs, or the gradients, of several layers share.
type Carry struct {
	From  int   `json:"from"`
	To    int   `json:"to"`
	Bytes int64 `json:"bytes"`
}
