package plan

import (
	"fmt"
	"math"
	"slices"
)

// Layer is the measured costs of a layer for one micro-batch.
type Layer struct {
	Name     string  // full dotted name, for messages
	Forward  float64 // seconds
	Backward float64 // seconds

	Output   int64 // bytes of the activation
	Gradient int64 // bytes of the activation's gradient; 0 if nothing up to the layer is trained
	// Saved is the bytes held from forward to backward if the layer is inside of a stage: the tensors
	// that no earlier layer saves.
	Saved int64
	// Enter is the additional bytes held if the layer begins a stage: its input, if the layer saves or
	// overwrites it. The model's input does not count.
	Enter int64

	Parameters int64 // bytes, frozen ones included
	Trainable  int64 // bytes of the parameters that are trained
	Buffers    int64 // bytes
}

// LayerSkip is a tensor that one layer stashes and later layers pop. It is copied once to each later
// stage that pops it.
type LayerSkip struct {
	From int   // the layer that stashes
	To   []int // the layers that pop, in ascending order, all after From

	Bytes    int64
	Gradient int64 // bytes of its gradient from each such stage; 0 if nothing before is trained
	Enter    int64 // bytes that the graph of a later stage saves
	Leave    int64 // bytes held until later stages have them, if From's graph does not save the tensor
}

// LayerTie is a parameter that several layers use, such as an embedding that is also the network's head.
// It counts among the parameters of its first layer only. Every other stage that uses it has a copy.
// For each micro-batch its gradient is summed from the last of these stages to the first.
type LayerTie struct {
	From int   // the first layer that uses it
	To   []int // the others, in ascending order

	Bytes    int64
	Gradient int64 // bytes; 0 if the parameter is frozen
}

// TimeConfig says how a stage's time adds up.
type TimeConfig struct {
	// Recomputed is the share of micro-batches, 0 to 1, that are recomputed, and so run forward
	// twice: by stage, or one for all. None is 0.
	Recomputed     []float64
	SecondsPerByte float64 // of a transfer between two stages
	Skips          []LayerSkip
	Ties           []LayerTie
}

// StageTime is how long a stage's worker is busy with one micro-batch, in seconds.
type StageTime struct {
	Forward, Backward float64
	Recomputation     float64 // Forward times the share of micro-batches that are recomputed
	Activations       float64 // to receive the stage's input and the skips that it pops
	Gradients         float64 // to receive its output's gradient and send its popped skips' gradients
}

// Total returns the stage's cost, in seconds.
func (t StageTime) Total() float64 {
	return t.Forward + t.Backward + t.Recomputation + t.Activations + t.Gradients
}

// ByTime returns how many layers each of n stages takes so that the slowest stage is as fast as
// possible, and the time of each stage for a micro-batch. Equal cuts and effort: see [Partition]. A
// stage's time includes receiving activations, skips and gradients, and sending back gradients of
// skips. It returns an error unless n is 1 to the number of layers.
func ByTime(layers []Layer, n int, config TimeConfig) ([]int, []StageTime, error) {
	stages, err := termsOf("Recomputed", n, config.Recomputed, func(share float64) stageTerms {
		return config.terms(layers, share)
	})
	if err != nil {
		return nil, nil, err
	}
	counts, costs, err := cutLayers(len(layers), stages)
	var times []StageTime
	for _, c := range costs {
		times = append(times, StageTime{c[0], c[1], c[2], c[3], c[4]})
	}
	return counts, times, err
}

// termsOf returns the terms of each of n stages, from one setting for each, one for all, or none for
// the zero value.
func termsOf[T any](field string, n int, settings []T, terms func(T) stageTerms) (list []*stageTerms,
	err error) {
	if len(settings) == 0 {
		settings = make([]T, 1)
	}
	if len(settings) > 1 && len(settings) != n {
		return nil, refuse(field, settings, fmt.Sprintf("%d for %d stages", len(settings), n),
			"want one for each stage, one for all, or none")
	}
	for _, setting := range settings {
		t := terms(setting)
		list = append(list, &t)
	}
	if len(list) == 1 {
		list = slices.Repeat(list, n)
	}
	return list, nil
}

// terms returns the terms of a stage that recomputes a share of its micro-batches. A tie's gradient
// goes from each use to the use before, if that is on another stage.
func (c TimeConfig) terms(layers []Layer, share float64) stageTerms {
	t, transfer := newTerms(len(layers)),
		func(bytes int64) float64 { return c.SecondsPerByte * float64(bytes) }
	for i, l := range layers {
		t.layer[i] = amounts{l.Forward, l.Backward, share * l.Forward}
		if i+1 < len(layers) {
			t.enter[i+1], t.leave[i] = amounts{3: transfer(l.Output)}, amounts{4: transfer(l.Gradient)}
		}
	}
	for _, s := range c.Skips {
		t.skips = append(t.skips, skipTerms{from: s.From, to: s.To,
			in: amounts{3: transfer(s.Bytes), 4: transfer(s.Gradient)}})
	}
	for _, tie := range c.Ties {
		from := tie.From
		for _, to := range tie.To {
			t.skips = append(t.skips, skipTerms{from: from, to: []int{to},
				out: amounts{4: transfer(tie.Gradient)}})
			from = to
		}
	}
	return t
}

// Held is how many micro-batches a stage holds at its fullest.
type Held struct {
	Graphs int // with all tensors for their backward; 0 is 1
	Inputs int // further ones, with their input alone
}

// SizeConfig says how a stage's bytes add up.
type SizeConfig struct {
	Held []Held // by stage, or one for all; none is a single graph
	// State is the bytes of the optimizer's state, in multiples of the trainable parameters: 0 for
	// plain SGD, 1 with momentum, 2 for Adam.
	State float64
	Input int64 // bytes of the model's input, which the first stage has for every micro-batch in Held
	Skips []LayerSkip
	Ties  []LayerTie
}

// StageSize is the bytes of a stage at its fullest, without temporary memory, and without the tensors
// that the loss keeps.
type StageSize struct {
	Parameters, Gradients, State, Buffers int64

	Saved  int64 // activations that backward needs, for all graphs
	Inputs int64 // received activations and skips not used yet; the model's input
}

// Total returns the stage's cost, in bytes.
func (s StageSize) Total() int64 {
	return s.Parameters + s.Gradients + s.State + s.Buffers + s.Saved + s.Inputs
}

// BySize returns how many layers each of n stages takes so that the largest stage is as small as
// possible, and the size of each stage. Equal cuts, effort and errors are as in [ByTime].
func BySize(layers []Layer, n int, config SizeConfig) (counts []int, sizes []StageSize, err error) {
	stages, err := termsOf("Held", n, config.Held,
		func(h Held) stageTerms { return config.terms(layers, h) })
	if err != nil {
		return nil, nil, err
	}
	counts, costs, err := cutLayers(len(layers), stages)
	for _, c := range costs {
		sizes = append(sizes, StageSize{int64(c[0]), int64(c[1]), int64(c[2]), int64(c[3]), int64(c[4]),
			int64(c[5])})
	}
	return counts, sizes, err
}

func (c SizeConfig) terms(layers []Layer, h Held) stageTerms {
	graphs, inputs := float64(max(h.Graphs, 1)), float64(h.Inputs)
	t := newTerms(len(layers))
	for i, l := range layers {
		t.layer[i] = amounts{float64(l.Parameters), float64(l.Trainable),
			math.Round(c.State * float64(l.Trainable)), float64(l.Buffers), graphs * float64(l.Saved)}
		t.enter[i] = amounts{4: graphs * float64(l.Enter), 5: (graphs + inputs) * float64(c.Input)}
		if i > 0 {
			t.enter[i][5] = inputs * float64(layers[i-1].Output)
		}
	}
	for _, s := range c.Skips {
		t.skips = append(t.skips, skipTerms{s.From, s.To,
			amounts{4: graphs * float64(s.Enter), 5: inputs * float64(s.Bytes)},
			amounts{4: graphs * float64(s.Leave)}})
	}
	for _, tie := range c.Ties {
		t.skips = append(t.skips, skipTerms{from: tie.From, to: tie.To, in: amounts{float64(tie.Bytes)}})
	}
	return t
}
