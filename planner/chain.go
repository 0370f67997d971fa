package planner

import (
	"fmt"
	"slices"

	"penstock.example/remat"
)

// FromChain is the problem of a step whose stages are so many layers of a chain each, on these
// devices, which are named "device 0" and so on and have no limits. Chain is of one micro-batch.
// Counts has at least one layer a stage and all layers together; workers has the device of each
// stage.
//
// Of what a chain does not say, weights are as large as their gradients, a micro-batch after the first
// takes the bytes that the first does but for the gradients, and the first part of a backward in two leaves to
// the second the inputs of layers that have weights, and the gradients of their outputs.
func FromChain(chain remat.Chain, counts, workers []int, microBatches int) Problem {
	p := Problem{MicroBatches: microBatches}
	for w := range slices.Max(workers) + 1 {
		p.Devices = append(p.Devices, Device{Name: fmt.Sprint("device ", w)})
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

// ChainStage is the stage of the layers of a chain from first up to but not including last, on device 0,
// with the policy [Optimal]. Where it is the first, its input is a view of the batch, which counts among
// what is live on its device. It panics unless there is such a stage of one layer or more.
func ChainStage(chain remat.Chain, first, last int) Stage {
	s := Stage{Layers: last - first, Policy: Optimal, Costs: chainCosts(chain, first, last)}
	for _, l := range s.Costs.First.Layers {
		s.Memory.Unplaced += l.WeightGradient
	}
	s.Memory.BatchInput = first == 0
	return s
}

// chainCosts are those of a stage of a chain, from layer first up to but not including last.
func chainCosts(chain remat.Chain, first, last int) (out Costs) {
	c := chain.Part(first, last)
	if last < len(chain.Layers) { // a stage holds its output until its backward ends
		l := &c.Layers[len(c.Layers)-1]
		l.BackwardEarly = max(l.BackwardEarly-l.Output, 0)
	}
	out.First, out.Later = c, c
	out.Later.Layers = slices.Clone(c.Layers)
	for i := range out.Later.Layers {
		l := &out.Later.Layers[i]
		l.Backward, l.WeightGradient = l.Later(), 0
	}
	out.Split, out.SplitLater = out.First, out.Later
	for range c.Layers {
		out.Units = append(out.Units, 1)
	}
	return out
}
