package plan

import (
	"cmp"
	"fmt"
	"slices"

	"penstock.example/internal/arg"
	"penstock.example/remat"
)

// Profile is the costs of a model.
type Profile struct {
	Measured []Costs // at least one; all chains have as many layers
}

// Costs is the costs for micro-batches of one size.
type Costs struct {
	Rows    int // of the micro-batch; 0 with [Options.Batch] 0
	Threads int // of the device; 0 is 1
	// Chain has a layer for each unit. Its backward is both parts; see remat.Chain.Second. A step is
	// planned with the mean of Backward and BackwardLater over its micro-batches.
	Chain remat.Chain
	// Sent is the bytes that a cut sends forward, by boundary of units. Nil is the chain's inputs,
	// without the inputs of frozen units.
	Sent []int64
	Held []int64 // bytes of frozen parameters and of buffers, by unit; nil is none
}

func (m Costs) threads() int { return max(m.Threads, 1) }

func (p Profile) units() int { return len(p.Measured[0].Chain.Layers) }

// check returns an *arg.ConfigError or a *remat.ChainError for a profile that makes no sense.
func (p Profile) check() error {
	if len(p.Measured) == 0 {
		return refuse("Measured", 0, "the profile is empty", "want at least one chain")
	}
	n := p.units()
	for i, m := range p.Measured {
		if err := cmp.Or(arg.AtLeast("plan", "Measured: rows", m.Rows, 0),
			arg.AtLeast("plan", "Measured: threads", m.Threads, 0), m.Chain.Check()); err != nil {
			return err
		}
		if len(m.Chain.Layers) != n || m.Sent != nil && len(m.Sent) != n+1 || m.Held != nil &&
			len(m.Held) != n || slices.ContainsFunc(p.Measured[:i], func(o Costs) bool {
			return o.Rows == m.Rows && o.threads() == m.threads()
		}) {
			return refuse("Measured", i, "the number of the chain",
				fmt.Sprintf("want chains of one model of %d units, one for each number of rows and threads", n))
		}
	}
	return nil
}

// averaged returns a chain with the mean backward of all micro-batches: the first makes the gradients
// of parameters, and the others add to them.
func averaged(c remat.Chain, microBatches int) remat.Chain {
	c.Layers = slices.Clone(c.Layers)
	for i := range c.Layers {
		l := &c.Layers[i]
		l.Backward, l.BackwardLater = (l.Backward+float64(microBatches-1)*l.Later())/float64(microBatches), 0
	}
	return c
}

// Scaled returns the chain of a micro-batch with fewer or more rows than measured. Times and
// activations grow with the rows, weights and the time to add to their gradients do not. In fact small
// micro-batches take longer.
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
		l.ForwardTmp, l.ForwardNoGradTmp, l.BackwardTmp = size(l.ForwardTmp), size(l.ForwardNoGradTmp),
			size(l.BackwardTmp)
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

// FromChain returns the problem of a step in which stage s has counts[s] layers of a chain and is on
// device workers[s]. The devices are named "device 0" and so on and have no limits. Weights are as
// large as their gradients; for the rest see [remat.FootprintOf].
func FromChain(chain remat.Chain, counts, workers []int, microBatches int) Problem {
	p := Problem{MicroBatches: microBatches}
	for w := range slices.Max(workers) + 1 {
		p.Devices = append(p.Devices, ProblemDevice{Name: fmt.Sprint("device ", w)})
	}
	p.Devices[workers[0]].Live = int64(microBatches) * chain.Input
	first := 0
	for stage, n := range counts {
		s := ChainStage(chain, first, first+n)
		s.Device = workers[stage]
		p.Stages = append(p.Stages, s)
		first += n
	}
	return p
}

// ChainStage returns the stage of a chain's layers from first up to but not including last, on device
// 0, with the policy [Optimal]. The first stage reads its input from the batch, which counts as live on
// its device. It panics unless first < last.
func ChainStage(chain remat.Chain, first, last int) Stage {
	c := chain.Part(first, last)
	if last < len(chain.Layers) { // a stage holds its output until its backward ends
		l := &c.Layers[len(c.Layers)-1]
		l.BackwardEarly = max(l.BackwardEarly-l.Output, 0)
	}
	if first == 0 {
		c = c.WithoutInput()
	}
	s := Stage{Layers: last - first, Policy: Optimal, Costs: CostsOf(c)}
	for _, l := range c.Layers {
		s.Memory.Unplaced += l.WeightGradient
	}
	s.Memory.BatchInput = first == 0
	return s
}

// CostsOf returns the costs of a stage with a chain's layers as units.
func CostsOf(c remat.Chain) StageCosts {
	return StageCosts{Footprint: remat.FootprintOf(c, 0), Times: c.Times(), Loss: c.Loss.Backward,
		Units: slices.Repeat([]int{1}, len(c.Layers))}
}
