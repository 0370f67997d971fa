package balance

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"penstock.example/internal/arg"
)

// Held is how many micro-batches a stage holds when it holds most.
type Held struct {
	// Graphs is the number of micro-batches of which the stage holds all that backward needs: all
	// of a batch if none is recomputed, one if all are, or all but the one whose backward comes
	// first. 0 stands for 1.
	Graphs int
	// Inputs is the number of further micro-batches of which it holds only the input. In GPipe
	// these are all others.
	Inputs int
}

// SizeConfig says what a stage's bytes are made of. The zero value is one micro-batch, and an
// optimizer without state.
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
	Skips []Skip
	Ties  []Tie
}

// StageSize is what a stage holds when it holds most, in bytes. It leaves out what comes and goes:
// workspaces of operators, gradients of activations during a backward, and activations that wait
// for the next stage. It also leaves out what the loss keeps beyond the model's output.
type StageSize struct {
	Parameters, Gradients, State, Buffers int64
	Saved                                 int64 // activations that backward needs, for all graphs
	Inputs                                int64 // received activations and skips not used yet; the model's input
}

// Total returns the stage's cost, in bytes.
func (s StageSize) Total() int64 {
	return s.Parameters + s.Gradients + s.State + s.Buffers + s.Saved + s.Inputs
}

// BySize returns how many layers each of n stages takes so that the largest stage is smallest, and
// what each stage holds. It is exact, with the order of [Partition] among equals. Errors and effort
// are those of [ByTime]. A stage holds
//
//   - its parameters, their gradients, the optimizer's state for them, and its buffers; also a copy
//     of each parameter that an earlier stage has,
//   - Graphs times what its layers save for backward, and what the graph holds of what enters and
//     leaves: its input, or a copy if its first layer would overwrite that; its output; skips,
//   - Inputs times the activation before it, and the skips from earlier stages that its layers pop.
//     The first stage holds the model's input instead, of all micro-batches.
func BySize(layers []Layer, n int, config SizeConfig) ([]int, []StageSize, error) {
	config = config.resolved()
	if err := config.check(layers, n); err != nil {
		return nil, nil, err
	}
	helds, of := byStage(config.Held)
	p := problem{of: of, skips: config.routes()}
	for _, h := range helds {
		p.terms = append(p.terms, config.terms(layers, h))
	}
	counts, err := p.solve(n)
	if err != nil {
		return nil, nil, err
	}
	sizes, err := Sizes(layers, counts, config)
	return counts, sizes, err
}

// terms returns the terms of a stage that holds h.
func (c SizeConfig) terms(layers []Layer, h Held) terms {
	graphs, inputs := float64(h.Graphs), float64(h.Inputs)
	t := newTerms(len(layers))
	for i, l := range layers {
		t.layer[i] = float64(l.Parameters+l.Trainable+c.state(l)+l.Buffers) + graphs*float64(l.Saved)
		t.enter[i] = (graphs+inputs)*float64(c.Input) + graphs*float64(l.Enter)
		if i > 0 {
			t.enter[i] = inputs*float64(layers[i-1].Output) + graphs*float64(l.Enter)
		}
		t.leave[i] = graphs * float64(l.Leave)
	}
	for _, s := range c.Skips {
		t.skips = append(t.skips, skipTerms{in: inputs*float64(s.Bytes) + graphs*float64(s.Enter), keep: graphs * float64(s.Leave)})
	}
	for _, tie := range c.Ties {
		t.skips = append(t.skips, skipTerms{in: float64(tie.Bytes)})
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

// Sizes returns what each stage of a balance holds; see [BySize]. It returns an error if the counts
// do not add up to the layers, or where BySize would.
func Sizes(layers []Layer, counts []int, config SizeConfig) ([]StageSize, error) {
	config = config.resolved()
	if err := arg.Balance("balance", counts, len(layers)); err != nil {
		return nil, err
	}
	if err := config.check(layers, len(counts)); err != nil {
		return nil, err
	}
	sizes := make([]StageSize, len(counts))
	start := 0
	for stage, count := range counts {
		s, end, h := &sizes[stage], start+count, setting(config.Held, stage)
		graphs, inputs := int64(h.Graphs), int64(h.Inputs)
		for _, l := range layers[start:end] {
			s.Parameters += l.Parameters
			s.Gradients += l.Trainable
			s.State += config.state(l)
			s.Buffers += l.Buffers
			s.Saved += graphs * l.Saved
		}
		s.Saved += graphs * (layers[start].Enter + layers[end-1].Leave)
		s.Inputs = (graphs + inputs) * config.Input
		if start > 0 {
			s.Inputs = inputs * layers[start-1].Output
		}
		for _, skip := range config.Skips {
			enters, leaves := crosses(skip.From, skip.To, counts, start, end)
			if enters {
				s.Inputs += inputs * skip.Bytes
				s.Saved += graphs * skip.Enter
			}
			if leaves > 0 {
				s.Saved += graphs * skip.Leave
			}
		}
		for _, t := range config.Ties {
			if enters, _ := crosses(t.From, t.To, counts, start, end); enters {
				s.Parameters += t.Bytes
			}
		}
		start = end
	}
	return sizes, nil
}

// state returns the bytes of the optimizer's state for a layer.
func (c SizeConfig) state(l Layer) int64 { return int64(math.Round(c.State * float64(l.Trainable))) }

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
	for i, h := range c.Held {
		if h.Graphs < 0 || h.Inputs < 0 {
			return &ConfigError{Of: "balance", Field: "Held", Value: c.Held, Problem: fmt.Sprintf("stage %d has %v", i, h),
				Remedy: "want neither below 0"}
		}
	}
	return cmp.Or(arg.Finite("balance", "State", c.State), arg.AtLeast("balance", "Input", c.Input, 0), check(layers, n),
		checkSettings("Held", c.Held, n), checkSkips(c.Skips, len(layers)), checkTies(c.Ties, len(layers)), c.checkRange(layers))
}

// checkRange refuses sizes whose sum over all stages is more than an int64 holds.
func (c SizeConfig) checkRange(layers []Layer) error {
	graphs, inputs := 0.0, 0.0
	for _, h := range c.Held {
		graphs, inputs = max(graphs, float64(h.Graphs)), max(inputs, float64(h.Inputs))
	}
	all := (graphs + inputs) * float64(c.Input)
	for _, l := range layers {
		all += float64(l.Parameters) + (1+c.State)*float64(l.Trainable) + float64(l.Buffers) +
			graphs*(float64(l.Saved)+float64(l.Enter)+float64(l.Leave)) + inputs*float64(l.Output)
	}
	for _, s := range c.Skips {
		all += graphs*float64(s.Leave) + float64(len(s.To))*(inputs*float64(s.Bytes)+graphs*float64(s.Enter))
	}
	for _, t := range c.Ties {
		all += float64(len(t.To)) * float64(t.Bytes)
	}
	if all >= math.MaxInt64/2 {
		return fmt.Errorf("balance: the stages would hold %.3g bytes: there is no such device", all)
	}
	return nil
}
