package balance

import (
	"fmt"
	"math"
	"slices"
)

// Layer is the measured costs of a layer for one micro-batch. Fields that the caller does not need
// may be zero: cutting by time without transfers needs no bytes.
type Layer struct {
	Name     string  // full dotted name, for messages
	Forward  float64 // seconds
	Backward float64 // seconds

	// Output is the bytes of the activation that crosses a cut after the layer. Gradient is the
	// bytes of its gradient, which comes back; it is 0 where nothing before the cut is trained.
	Output, Gradient int64
	// Saved is the bytes held from forward to backward if the layer is neither first nor last in
	// its stage, without its input: what it saves itself, and its output if it or the next layer
	// saves that.
	Saved int64
	// Enter is the additional bytes held if the layer begins a stage: what the graph saves of its
	// input, or of the copy in its place if the layer overwrites that. For the model's first layer
	// only the copy counts, as the input is held anyway.
	Enter int64
	// Leave is the additional bytes held if the layer ends a stage: its output, if nothing in the
	// graph saves that.
	Leave int64

	Parameters int64 // bytes, frozen ones included
	Trainable  int64 // bytes of the parameters that are trained
	Buffers    int64 // bytes
}

// Skip is a tensor that one layer stashes and later layers pop. It is copied once to each later
// stage that pops it.
type Skip struct {
	From int   // the layer that stashes
	To   []int // the layers that pop, in ascending order, all after From

	Bytes    int64 // bytes for a micro-batch
	Gradient int64 // bytes of its gradient from each such stage; 0 if nothing before is trained
	Enter    int64 // bytes of it that the graph of a later stage saves
	Leave    int64 // bytes held for later stages that the graph of From's stage does not save
}

// Tie is a parameter that several layers use, such as an embedding that is also the network's head.
// It counts among the parameters of its first layer only.
//
// Every other stage that uses it has a copy of the value. With every micro-batch its gradient is
// summed from stage to stage: each stage that uses the parameter sends the sum to the one before it
// that does.
type Tie struct {
	From int   // the first layer that uses it
	To   []int // the others, in ascending order

	Bytes    int64
	Gradient int64 // bytes; 0 if the parameter is frozen
}

// lastsBeyond says whether both the stage [start, end) and a later one use the parameter.
func (t Tie) lastsBeyond(start, end int) bool {
	here := start <= t.From && t.From < end || slices.ContainsFunc(t.To, func(to int) bool { return start <= to && to < end })
	return here && t.To[len(t.To)-1] >= end
}

// check refuses costs that no measurement gives.
func check(layers []Layer, n int) error {
	if err := checkStages(n, len(layers)); err != nil {
		return err
	}
	for i, l := range layers {
		for _, s := range []struct {
			what    string
			seconds float64
		}{{"forward", l.Forward}, {"backward", l.Backward}} {
			if math.IsNaN(s.seconds) || math.IsInf(s.seconds, 0) || s.seconds < 0 {
				return fmt.Errorf("balance: %s takes %v s in %s: it must be finite and not negative", label(layers, i), s.seconds, s.what)
			}
		}
		for _, b := range []struct {
			what  string
			bytes int64
		}{
			{"output", l.Output}, {"gradient", l.Gradient}, {"saved activations", l.Saved},
			{"input held", l.Enter}, {"output held", l.Leave},
			{"parameters", l.Parameters}, {"trainable parameters", l.Trainable}, {"buffers", l.Buffers},
		} {
			if b.bytes < 0 {
				return fmt.Errorf("balance: %s has %d bytes of %s: they must not be negative", label(layers, i), b.bytes, b.what)
			}
		}
		if l.Trainable > l.Parameters {
			return fmt.Errorf("balance: %s has %d bytes of parameters and %d of trainable ones, which are a part of them",
				label(layers, i), l.Parameters, l.Trainable)
		}
	}
	return nil
}

func checkSkips(skips []Skip, layers int) error {
	for i, s := range skips {
		if err := checkRoute("skip", i, s.From, s.To, layers); err != nil {
			return err
		}
		if min(s.Bytes, s.Gradient, s.Enter, s.Leave) < 0 {
			return fmt.Errorf("balance: skip %d, from layer %d, has %d bytes, %d of gradient, "+
				"%d held where it enters and %d where it leaves: they must not be negative",
				i, s.From, s.Bytes, s.Gradient, s.Enter, s.Leave)
		}
	}
	return nil
}

func checkTies(ties []Tie, layers int) error {
	for i, t := range ties {
		if err := checkRoute("tie", i, t.From, t.To, layers); err != nil {
			return err
		}
		if min(t.Bytes, t.Gradient) < 0 {
			return fmt.Errorf("balance: tie %d, from layer %d, has %d bytes and %d of gradient: they must not be negative",
				i, t.From, t.Bytes, t.Gradient)
		}
	}
	return nil
}

func checkRoute(what string, i, from int, to []int, layers int) error {
	if from < 0 || from >= layers {
		return fmt.Errorf("balance: %s %d comes from layer %d: want one of 0 to %d", what, i, from, layers-1)
	}
	if len(to) == 0 {
		return fmt.Errorf("balance: %s %d, from layer %d, goes nowhere: want at least one layer in To", what, i, from)
	}
	last := from
	for _, next := range to {
		if next <= last || next >= layers {
			return fmt.Errorf("balance: %s %d goes from layer %d to layers %v: want them ascending, after %d and at most %d",
				what, i, from, to, from, layers-1)
		}
		last = next
	}
	return nil
}

// label names a layer by its index and, if it has one, its name.
func label(layers []Layer, i int) string {
	if layers[i].Name == "" {
		return fmt.Sprintf("layer %d", i)
	}
	return fmt.Sprintf("layer %d (%s)", i, layers[i].Name)
}

func checkStages(n, layers int) error {
	if n < 1 {
		return fmt.Errorf("balance: %d stages: there must be at least one", n)
	}
	if n > layers {
		return fmt.Errorf("balance: %d stages for %d layers: a stage needs at least one layer, ask for at most %d stages",
			n, layers, layers)
	}
	return nil
}

// checkCounts refuses counts that do not add up to the layers.
func checkCounts(counts []int, layers int) error {
	start := 0
	for stage, count := range counts {
		if count < 1 {
			return fmt.Errorf("balance: stage %d of %v has %d layers: a stage needs at least one", stage, counts, count)
		}
		if count > layers-start {
			return fmt.Errorf("balance: the stages of %v want more than the %d layers there are", counts, layers)
		}
		start += count
	}
	if start != layers {
		return fmt.Errorf("balance: the stages of %v hold %d layers, there are %d", counts, start, layers)
	}
	return nil
}

// crosses says how what layer from gives to layers to crosses the borders of the stage [start,
// end): whether it enters, and to how many later stages it leaves.
func crosses(from int, to []int, counts []int, start, end int) (enters bool, leaves int) {
	within := func(start, end int) bool {
		i, _ := slices.BinarySearch(to, start)
		return i < len(to) && to[i] < end
	}
	if from < start {
		return within(start, end), 0
	}
	if from >= end {
		return false, 0
	}
	first := 0
	for _, count := range counts {
		if first >= end && within(first, first+count) {
			leaves++
		}
		first += count
	}
	return false, leaves
}
