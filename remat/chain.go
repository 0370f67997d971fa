package remat

import (
	"cmp"
	"slices"
)

// Chain is the costs of a model's layers, for one batch. Package profile measures one. Times are in
// microseconds, sizes in bytes.
type Chain struct {
	// Input is the bytes of x(0), InputGradient the bytes of y(0), 0 if it is not wanted.
	Input, InputGradient int64
	Layers               []Layer
	Loss                 Loss
	// Carries are inputs that share memory, GradientCarries gradients that do; see the package's
	// doc.
	Carries, GradientCarries []Carry
	// Deferred is by layer; nil if unknown. No plan of a chain depends on this or on the rest.
	Deferred []Deferred
	// The measured model, the rows of the batch, the threads within an operator, and the number of
	// devices, each with as many threads, that worked meanwhile; zero if unknown.
	Model                  string
	Rows, Threads, Devices int
	// Spread is how much longer the median of timed runs took than the runs that count, as a part; 0
	// if unknown.
	Spread float64
}

// WithoutInput is the chain without the bytes of x(0), for callers that count x(0) elsewhere.
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
	// X(i+1), without parts of x(i): all that a forward with gradients keeps, the output included
	Saved int64

	ForwardTmp       int64 // most bytes beside those before and Saved, during a forward with gradients
	ForwardNoGradTmp int64 // most bytes beside those before and Output, during one without
	// most bytes beside those before, the new gradients and WeightGradient, during backward
	BackwardTmp int64

	Gradient       int64 // y(i+1), as far as its maker makes it anew
	WeightGradient int64 // of parameters, made by this layer's backward; 0 where they are there before

	// BackwardEarly is the bytes of X(i+1) and y(i+1) that the backward has freed at its peak. They
	// are subtracted from the sum of earlier blocks, new gradients, WeightGradient and BackwardTmp.
	BackwardEarly int64

	// BackwardLater is the time of the backward of later micro-batches of a step, which add to the
	// gradients of parameters; 0 is Backward. No plan of a single batch depends on it.
	BackwardLater float64
}

// Later is how long the backward of a micro-batch after a step's first takes.
func (l Layer) Later() float64 { return cmp.Or(l.BackwardLater, l.Backward) }

// Loss is the costs of the loss, forward and backward.
type Loss struct {
	Backward float64 `json:"backward_us"`
	Tmp      int64   `json:"tmp_bytes"` // most bytes beside those before and y(L)
}

// Deferred describes a backward in two parts: the first makes the gradients that others wait for,
// the second the gradients of parameters.
type Deferred struct {
	Bytes  int64   `json:"bytes,omitzero"`     // of memory that the first leaves to the second
	Share  float64 `json:"share,omitzero"`     // of the time of both parts that the second takes, from 0 to 1
	Longer float64 `json:"longer_us,omitzero"` // microseconds that both take more than a whole backward
}

// Second is how long the second part of the backward of layer i takes, where backwards are in two
// parts and the chain is one of [Chain.InParts]: half of the time where nothing is known of it.
func (c Chain) Second(i int) float64 {
	if c.Deferred == nil {
		return c.Layers[i].Backward / 2
	}
	return c.Layers[i].Backward * c.Deferred[i].Share
}

// InParts is the chain with backwards as long as both of their parts, where they are in two.
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
