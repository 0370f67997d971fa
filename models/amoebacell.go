package models

import (
	"strconv"

	"penstock.example/nn"
	"penstock.example/torch"
)

// genotype is the design of a cell (Real et al. 2018, section "Search space"): a cell starts with
// two states, each node adds one, and some are its output.
type genotype struct {
	reduces bool // operations on the first two states halve their size
	nodes   [5][2]edge
	output  []int // indices of the states to concatenate
}

// edge is an operation on a state. A node is the sum of two edges.
type edge struct {
	state     int
	operation func(channels, stride int64) nn.Layer
}

// The cells of AmoebaNet-D. See amoebaNet for differences from the paper.
var (
	normalCell = genotype{
		nodes: [5][2]edge{
			{{1, conv1x1}, {1, avgPool3x3}},
			{{1, same}, {0, conv1x7x1}},
			{{0, conv1x1}, {0, conv1x7x1}},
			{{2, avgPool3x3}, {2, same}},
			{{1, avgPool3x3}, {5, conv1x1}},
		},
		output: []int{0, 3, 4, 6},
	}
	reductionCell = genotype{
		reduces: true,
		nodes: [5][2]edge{
			{{0, maxPool2x2}, {0, avgPool3x3}},
			{{2, same}, {1, conv3x3}},
			{{2, conv1x7x1}, {2, avgPool3x3}},
			{{3, same}, {1, maxPool2x2}},
			{{2, avgPool3x3}, {3, conv1x1}},
		},
		output: []int{4, 5, 6},
	}
)

// cell turns the last two states into the next one: (last, before) to (next, last). A single tensor
// stands for both.
type cell struct {
	nn.Base
	genotype
	last, before nn.Layer // bring the two states to the cell's channels, and to one size
	operations   []nn.Layer
}

// newCell makes a cell for states with before and last channels. With halved the last state has
// half the height and width of the state before.
func newCell(design genotype, before, last, channels int64, halved bool) *cell {
	l := &cell{genotype: design, last: convChain(last, channels, 1, nn.Square(1)), before: same(0, 1)}
	switch {
	case halved:
		l.before = newFactorizedReduce(before, channels)
	case before != channels:
		l.before = convChain(before, channels, 1, nn.Square(1))
	}
	l.Child("reduce1", l.last)
	l.Child("reduce2", l.before)
	for _, node := range design.nodes {
		for _, e := range node {
			stride := int64(1)
			if design.reduces && e.state < 2 {
				stride = 2
			}
			op := e.operation(channels, stride)
			l.Child("op"+strconv.Itoa(len(l.operations)), op)
			l.operations = append(l.operations, op)
		}
	}
	return l
}

// forward returns the next state and the unchanged last state.
func (l *cell) forward(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
	last, before := xs[0], xs[len(xs)-1]
	mark := c.Mark()
	states := []*torch.Tensor{c.Run(last, l.last), c.Run(before, l.before)}
	for i, node := range l.nodes {
		a := c.Run(states[node[0].state], l.operations[2*i])
		b := c.Run(states[node[1].state], l.operations[2*i+1])
		states = append(states, c.Add(a, b))
		c.Release(mark, states...)
	}
	var output []*torch.Tensor
	for _, i := range l.output {
		output = append(output, states[i])
	}
	next := c.Cat(output, 1)
	c.Release(mark, next)
	return []*torch.Tensor{next, last}
}
