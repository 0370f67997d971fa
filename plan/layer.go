package plan

import (
	"cmp"
	"fmt"
	"slices"

	"penstock.example/internal/arg"
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
	// its stage, without its input: the tensors that it saves, and its output if it or the next
	// layer saves that.
	Saved int64
	// Enter is the additional bytes held if the layer begins a stage: its input as far as the graph
	// saves it, or the copy in its place if the layer overwrites it. For the model's first layer
	// only the copy counts, as the input is held anyway.
	Enter int64
	// Leave is the additional bytes held if the layer ends a stage: its output, if nothing in the
	// graph saves that.
	Leave int64

	Parameters int64 // bytes, frozen ones included
	Trainable  int64 // bytes of the parameters that are trained
	Buffers    int64 // bytes
}

// LayerSkip is a tensor that one layer stashes and later layers pop. It is copied once to each later
// stage that pops it.
type LayerSkip struct {
	From int   // the layer that stashes
	To   []int // the layers that pop, in ascending order, all after From

	Bytes    int64 // bytes for a micro-batch
	Gradient int64 // bytes of its gradient from each such stage; 0 if nothing before is trained
	Enter    int64 // bytes of it that the graph of a later stage saves
	Leave    int64 // bytes held for later stages that the graph of From's stage does not save
}

// LayerTie is a parameter that several layers use, such as an embedding that is also the network's head.
// It counts among the parameters of its first layer only.
//
// Every other stage that uses it has a copy of the value. With every micro-batch its gradient is
// summed from stage to stage: each stage that uses the parameter sends the sum to the one before it
// that does.
type LayerTie struct {
	From int   // the first layer that uses it
	To   []int // the others, in ascending order

	Bytes    int64
	Gradient int64 // bytes; 0 if the parameter is frozen
}

// ConfigError is a setting, a cost or a number of stages that is refused.
type ConfigError = arg.ConfigError

// checkLayers refuses costs that no measurement gives.
func checkLayers(layers []Layer, n int) error {
	err := checkStages(n, len(layers))
	for i, l := range layers {
		of := " of " + label(layers, i)
		err = cmp.Or(err, arg.Finite("plan", "Forward"+of, l.Forward),
			arg.Finite("plan", "Backward"+of, l.Backward))
		for _, s := range []struct {
			field string
			bytes int64
		}{{"Output", l.Output}, {"Gradient", l.Gradient},
			{"Saved", l.Saved}, {"Enter", l.Enter}, {"Leave", l.Leave},
			{"Parameters", l.Parameters}, {"Trainable", l.Trainable}, {"Buffers", l.Buffers}} {
			err = cmp.Or(err, arg.AtLeast("plan", s.field+of, s.bytes, 0))
		}
		if err == nil && l.Trainable > l.Parameters {
			err = &ConfigError{Of: "plan", Field: "Trainable" + of, Value: l.Trainable,
				Remedy: fmt.Sprintf("want a part of the %d bytes of Parameters", l.Parameters)}
		}
	}
	return err
}

func checkSkips(skips []LayerSkip, layers int) (err error) {
	for i, s := range skips {
		err = cmp.Or(err, checkRoute("Skips", skips, i, s.From, s.To, layers, s.Bytes, s.Gradient, s.Enter, s.Leave))
	}
	return err
}

func checkTies(ties []LayerTie, layers int) (err error) {
	for i, t := range ties {
		err = cmp.Or(err, checkRoute("Ties", ties, i, t.From, t.To, layers, t.Bytes, t.Gradient))
	}
	return err
}

// checkRoute refuses element i of a field if it does not go forward within the model, or has fewer
// than 0 bytes.
func checkRoute(field string, value any, i, from int, to []int, layers int, bytes ...int64) error {
	refuse := func(remedy, problem string, what ...any) error {
		return &ConfigError{Of: "plan", Field: field, Value: value,
			Problem: fmt.Sprintf("number %d ", i) + fmt.Sprintf(problem, what...), Remedy: remedy}
	}
	if from < 0 || from >= layers {
		return refuse(fmt.Sprintf("want one of 0 to %d", layers-1), "is from layer %d", from)
	}
	last, forward := from, len(to) > 0
	for _, next := range to {
		forward, last = forward && next > last && next < layers, next
	}
	if !forward {
		return refuse(fmt.Sprintf("want at least one layer, ascending, after %d and at most %d",
			from, layers-1),
			"goes from layer %d to %v", from, to)
	}
	if least := slices.Min(bytes); least < 0 {
		return refuse("want none below 0", "has %d bytes", least)
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

// checkStages refuses a number of stages that some stage would have no layer with.
func checkStages(n, layers int) error {
	if n >= 1 && n <= layers {
		return nil
	}
	return &ConfigError{Of: "plan", Field: "the number of stages", Value: n,
		Remedy: fmt.Sprintf("want 1 to the number of layers, %d", layers)}
}
