package search

import (
	"fmt"
	"slices"

	"penstock.example/internal/arg"
	"penstock.example/remat"
)

// Profile is what the units of a model cost.
type Profile struct {
	Measured []Measured // at least one; all chains have as many layers
}

// Measured is what was measured of a micro-batch of one size.
type Measured struct {
	Rows    int // of the micro-batch; 0 where it does not count, as with [Wishes.Batch] 0
	Threads int // of the device; 0 is 1
	// Chain has a layer for each unit. A layer's time of backward is that of both parts; see
	// remat.Chain.Second. A step is planned with the mean of Backward and BackwardLater over its micro-batches.
	Chain remat.Chain
	// Sent is, by boundary of units, what a cut there sends forward in bytes; nil is the inputs of units. What is
	// sent to a frozen unit is not held until a backward, so that the chain lacks it. Held is, by unit, the bytes
	// that are there without a gradient: of frozen parameters and of buffers; nil is none.
	Sent, Held []int64
}

func (m Measured) threads() int { return max(m.Threads, 1) }

// units is the number of units.
func (p Profile) units() int { return len(p.Measured[0].Chain.Layers) }

// check returns a *arg.ConfigError, or a *remat.ChainError, for what makes no sense.
func (p Profile) check() error {
	refuse := func(value any, problem, remedy string) error {
		return &arg.ConfigError{Of: "search", Field: "Measured", Value: value, Problem: problem, Remedy: remedy}
	}
	if len(p.Measured) == 0 {
		return refuse(0, "the profile is empty", "want at least one chain")
	}
	for i, m := range p.Measured {
		switch {
		case m.Rows < 0:
			return refuse(m.Rows, "rows", "want 1 or more, or 0 where they do not count")
		case m.Threads < 0:
			return refuse(m.Threads, "threads", "want 1 or more, or 0 for 1")
		}
		if err := m.Chain.Check(); err != nil {
			return err
		}
		if n := len(m.Chain.Layers); n != p.units() {
			return refuse(n, fmt.Sprintf("the layers of chain %d, where the first has %d", i, p.units()), "want chains of one model")
		}
		for name, list := range map[string][]int64{"Sent": m.Sent, "Held": m.Held} {
			want := p.units()
			if name == "Sent" {
				want++
			}
			if list != nil && (len(list) != want || slices.Min(list) < 0) {
				return refuse(list, fmt.Sprintf("%s of chain %d", name, i), fmt.Sprintf("want %d numbers of 0 or more", want))
			}
		}
		for _, o := range p.Measured[:i] {
			if o.Rows == m.Rows && o.threads() == m.threads() {
				return refuse(m.Rows, fmt.Sprintf("two chains of so many rows and %d threads", m.threads()), "want one")
			}
		}
	}
	return nil
}

// meanOf is a chain of which each of a step's micro-batches takes the mean of all their times: the first
// makes gradients of parameters, the others add to them. So the work of a step is what it is, and all
// micro-batches are alike.
func meanOf(c remat.Chain, microBatches int) remat.Chain {
	c.Layers = slices.Clone(c.Layers)
	for i := range c.Layers {
		l := &c.Layers[i]
		l.Backward, l.BackwardLater = (l.Backward+float64(microBatches-1)*l.Later())/float64(microBatches), 0
	}
	return c
}

// Scaled is the chain of a micro-batch of fewer or more rows than were measured, where times and
// activations grow with the rows, and weights and what it takes to add to their gradients do not. Small micro-batches take longer than that.
func Scaled(c remat.Chain, from, to int) remat.Chain {
	x := float64(to) / float64(from)
	size := func(n int64) int64 { return (n*int64(to) + int64(from) - 1) / int64(from) }
	out := c
	if c.Rows > 0 {
		out.Rows = to
	}
	out.Input, out.InputGradient = size(c.Input), size(c.InputGradient)
	out.Loss = remat.Loss{Backward: c.Loss.Backward * x, Tmp: size(c.Loss.Tmp)}
	out.Layers = make([]remat.Layer, len(c.Layers))
	for i, l := range c.Layers {
		if l.BackwardLater > 0 {
			l.BackwardLater = max(l.BackwardLater+(x-1)*l.Backward, 0)
		}
		l.Forward, l.ForwardNoGrad, l.Backward = l.Forward*x, l.ForwardNoGrad*x, l.Backward*x
		l.Output, l.Saved, l.Gradient = size(l.Output), size(l.Saved), size(l.Gradient)
		l.ForwardTmp, l.ForwardNoGradTmp, l.BackwardTmp = size(l.ForwardTmp), size(l.ForwardNoGradTmp), size(l.BackwardTmp)
		l.BackwardEarly = l.BackwardEarly * int64(to) / int64(from)
		out.Layers[i] = l
	}
	carried := func(list []remat.Carry) (out []remat.Carry) {
		for _, k := range list {
			k.Bytes = k.Bytes * int64(to) / int64(from)
			out = append(out, k)
		}
		return out
	}
	out.Deferred = slices.Clone(c.Deferred)
	for i := range out.Deferred {
		out.Deferred[i].Bytes = size(out.Deferred[i].Bytes)
		out.Deferred[i].Longer *= x
	}
	out.Carries, out.GradientCarries = carried(c.Carries), carried(c.GradientCarries)
	return out
}
