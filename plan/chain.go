package plan

import (
	"fmt"
	"slices"

	"penstock.example/remat"
)

// FromChain is the problem of a step in which stage s has counts[s] layers of a chain and is on
// device workers[s]. The devices are named "device 0" and so on and have no limits. The chain is of
// one micro-batch. Each stage has at least one layer.
//
// Where the chain is silent, weights are as large as their gradients, and a micro-batch after the
// first takes the bytes of the first without the gradients of weights. The first part of a backward
// in two leaves to the second the inputs of layers that have weights, and the gradients of their
// outputs.
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

// ChainStage is the stage of the layers of a chain from first up to but not including last, on
// device 0, with the policy [Optimal]. The first stage reads its input from the batch, which counts
// as live on its device. It panics unless first < last.
func ChainStage(chain remat.Chain, first, last int) Stage {
	c := chain.Part(first, last)
	if last < len(chain.Layers) { // a stage holds its output until its backward ends
		l := &c.Layers[len(c.Layers)-1]
		l.BackwardEarly = max(l.BackwardEarly-l.Output, 0)
	}
	s := Stage{Layers: last - first, Policy: Optimal, Costs: CostsOf(c)}
	for _, l := range c.Layers {
		s.Memory.Unplaced += l.WeightGradient
	}
	s.Memory.BatchInput = first == 0
	return s
}

// CostsOf are the costs of a stage with a chain's layers as units, one layer each.
func CostsOf(c remat.Chain) StageCosts {
	return StageCosts{Footprint: remat.FootprintOf(c, 0), Times: c.Times(), Loss: c.Loss.Backward,
		Units: slices.Repeat([]int{1}, len(c.Layers))}
}
