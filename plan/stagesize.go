package plan

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"penstock.example/internal/arg"
)

// Held is how many micro-batches a stage holds at its fullest.
type Held struct {
	// Graphs is the number of micro-batches with all tensors that their backward needs: the whole
	// batch if none is recomputed, one if all are. 0 stands for 1.
	Graphs int
	// Inputs is the number of further micro-batches, with their input alone. In GPipe these are all
	// others.
	Inputs int
}

// SizeConfig says how a stage's bytes add up. The zero value is one micro-batch, and an optimizer
// without state.
type SizeConfig struct {
	// Held is how many micro-batches a stage holds: by stage, or one for all. None is a single
	// graph.
	Held []Held
	// State is the bytes of the optimizer's state, in multiples of the trainable parameters: 0 for
	// plain SGD, 1 with momentum, 2 for Adam.
	State float64
	// Input is the bytes of the model's input for one micro-batch. The first stage holds the input
	// of every micro-batch in Held.
	Input int64
	// Skips are the model's skip connections, Ties its shared parameters.
	Skips []LayerSkip
	Ties  []LayerTie
}

// StageSize is the bytes of a stage at its fullest. It leaves out temporary memory: workspaces of
// operators, gradients of activations during a backward, and activations on their way to the next
// stage. It also leaves out the tensors that the loss keeps beyond the model's output.
type StageSize struct {
	Parameters, Gradients, State, Buffers int64

	Saved  int64 // activations that backward needs, for all graphs
	Inputs int64 // received activations and skips not used yet; the model's input
}

// Total returns the stage's cost, in bytes.
func (s StageSize) Total() int64 {
	return s.Parameters + s.Gradients + s.State + s.Buffers + s.Saved + s.Inputs
}

// BySize returns how many layers each of n stages takes so that the largest stage is smallest, and
// the size of each stage. It is exact, with the order of [Partition] among equals. Its errors and
// effort are the same as in [ByTime]. A stage holds
//
//   - its parameters, their gradients, the optimizer's state for them, and its buffers; also a copy
//     of each parameter that an earlier stage has,
//   - for each graph the activations that its layers save for backward, its input, or a copy if its
//     first layer overwrites it, its output, and skips that enter or leave it,
//   - for each further input the activation before it, and the skips from earlier stages that its
//     layers pop. The first stage holds the model's input instead, of all micro-batches.
func BySize(layers []Layer, n int, config SizeConfig) ([]int, []StageSize, error) {
	p, err := config.problem(layers, n)
	if err != nil {
		return nil, nil, err
	}
	counts, costs, err := p.solve(n)
	if err != nil {
		return nil, nil, err
	}
	sizes, err := sizesOf(costs)
	if err != nil {
		return nil, nil, err
	}
	return counts, sizes, nil
}

// Sizes returns the size of each stage of a balance; see [BySize]. It returns an error if the counts
// do not add up to the layers, or where BySize would.
func Sizes(layers []Layer, counts []int, config SizeConfig) ([]StageSize, error) {
	if err := arg.Balance("plan", counts, len(layers)); err != nil {
		return nil, err
	}
	p, err := config.problem(layers, len(counts))
	if err != nil {
		return nil, err
	}
	return sizesOf(p.costs(counts))
}

// problem is the problem of cutting layers into n stages.
func (c SizeConfig) problem(layers []Layer, n int) (p cutProblem, err error) {
	c = c.resolved()
	if err := c.check(layers, n); err != nil {
		return p, err
	}
	helds, of := distinctSettings(c.Held)
	p.of, p.skips = of, c.routes()
	for _, h := range helds {
		p.terms = append(p.terms, c.terms(layers, h))
	}
	return p, nil
}

func sizesOf(costs []amounts) ([]StageSize, error) {
	sizes := make([]StageSize, len(costs))
	for s, c := range costs {
		if c.total() >= math.MaxInt64/2 {
			return nil, fmt.Errorf("plan: a stage would hold %.3g bytes: no device does", c.total())
		}
		sizes[s] = StageSize{Parameters: int64(c[0]), Gradients: int64(c[1]), State: int64(c[2]),
			Buffers: int64(c[3]), Saved: int64(c[4]), Inputs: int64(c[5])}
	}
	return sizes, nil
}

// terms returns the terms of a stage that holds h.
func (c SizeConfig) terms(layers []Layer, h Held) stageTerms {
	graphs, inputs := float64(h.Graphs), float64(h.Inputs)
	t := newTerms(len(layers))
	for i, l := range layers {
		t.layer[i] = amounts{float64(l.Parameters), float64(l.Trainable),
			math.Round(c.State * float64(l.Trainable)), float64(l.Buffers), graphs * float64(l.Saved)}
		t.enter[i] = amounts{4: graphs * float64(l.Enter), 5: (graphs + inputs) * float64(c.Input)}
		if i > 0 {
			t.enter[i][5] = inputs * float64(layers[i-1].Output)
		}
		t.leave[i] = amounts{4: graphs * float64(l.Leave)}
	}
	for _, s := range c.Skips {
		t.skips = append(t.skips, skipTerms{
			in:  amounts{4: graphs * float64(s.Enter), 5: inputs * float64(s.Bytes)},
			out: amounts{4: graphs * float64(s.Leave)}})
	}
	for _, tie := range c.Ties {
		t.skips = append(t.skips, skipTerms{in: amounts{float64(tie.Bytes)}})
	}
	return t
}

// routes returns the routes in the order of the terms.
func (c SizeConfig) routes() []route {
	var all []route
	for _, s := range c.Skips {
		all = append(all, route{s.From, s.To})
	}
	for _, t := range c.Ties {
		all = append(all, route{t.From, t.To})
	}
	return all
}

func (c SizeConfig) resolved() SizeConfig {
	if len(c.Held) == 0 {
		c.Held = make([]Held, 1)
	}
	c.Held = slices.Clone(c.Held)
	for i := range c.Held {
		if c.Held[i].Graphs == 0 {
			c.Held[i].Graphs = 1
		}
	}
	return c
}

func (c SizeConfig) check(layers []Layer, n int) error {
	return cmp.Or(checkStages(n, len(layers)), checkSettings("Held", c.Held, n))
}
