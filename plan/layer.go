package plan

import "fmt"

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

// checkStages refuses a number of stages that some stage would have no layer with.
func checkStages(n, layers int) error {
	if n >= 1 && n <= layers {
		return nil
	}
	return refuse("the number of stages", n, "", fmt.Sprintf("want 1 to the number of layers, %d", layers))
}
