package remat

// Footprint is the memory of a stage for one micro-batch: the bytes of each operation on a unit, and
// the memory shared by tensors between units. Package profile measures it. Sizes are bytes.
//
// Memory comes in blocks. A block exists as long as a tensor in it exists, and counts once.
type Footprint struct {
	// Inputs are the blocks of the inputs of units, by boundary: first the stage's input, last its
	// output.
	Inputs          Blocks
	Arrives, Leaves Parcel // received and sent by a forward, as blocks of Inputs
	// Released says which tensors of the stage's output are free once they are sent, as the graph
	// does not need them. Nil is none.
	Released []bool
	Units    []UnitBytes
	// Backward is by BackwardKind. A kind that was not measured has no units.
	Backward [backwardKinds]BackwardBytes
	Commit   int64 // the temporary peak when the statistics of deferred batch norms are applied
	// AtOnce says that a loss follows the last stage, with forward and backward in one operation. Its
	// temporary peak is LossTmp, beyond the gradient of the output.
	AtOnce  bool
	LossTmp int64
}

// Blocks are blocks of memory.
type Blocks struct {
	Bytes []int64 // of each block
	At    [][]int // by boundary: the block of each tensor there; -1 for an absent one
}

// Parcel is the tensors that move between two stages, as blocks; -1 for absent ones.
type Parcel struct {
	Tuple []int   // between neighbours
	Skips [][]int // by place at the boundary: the skip, or its pops' gradients
	Ties  []int   // gradients of parameters that other stages use, by place
}

// UnitBytes is the bytes of forwards of a unit.
type UnitBytes struct {
	Keep       [ForwardRuns]int64 // the peak without gradients, by Run
	Save       [ForwardRuns]int64 // the peak with gradients, by Run
	Saved      int64              // left by a forward with gradients, without its output
	Statistics int64              // gathered by a step's first forward for deferred batch norms
}

// Run says which run of a unit a forward is.
type Run int

// Runs of a unit.
const (
	FirstOfStep  Run = iota // on the first micro-batch
	FirstOfBatch            // the first on a later micro-batch
	Again                   // a repetition
	ForwardRuns
)

// BackwardKind is how a backward treats the gradients of parameters.
type BackwardKind int

// Kinds of backwards.
const (
	Makes      BackwardKind = iota // makes them
	Adds                           // adds to them
	MakesLater                     // the first part, whose second part makes them
	AddsLater                      // the first part, whose second part adds to them
	backwardKinds
)

// BackwardBytes is the bytes of backwards of one kind.
type BackwardBytes struct {
	// Gradients are the blocks of the gradients of units' inputs, by boundary.
	Gradients Blocks
	// Arrives and Leaves are the gradients that the stage receives and sends, as blocks of Gradients.
	// Gradients of a skip to several stages stand in the order of the stages.
	Arrives, Leaves Parcel
	Units           []UnitBackward
}

// UnitBackward is the bytes of a backward of a unit.
type UnitBackward struct {
	Peak        int64 // if nothing else holds the memory that it frees
	Weights     int64 // gradients of parameters that it makes
	Left        int64 // memory left to the second part
	LeftPeak    int64 // the peak of the second part
	LeftWeights int64 // gradients of parameters that the second part makes
}

// UnitTimes is the microseconds of a unit's operations: a forward with and one without gradients,
// and a backward, both parts together, that makes the gradients of parameters or adds to them.
type UnitTimes struct {
	Name                                    string
	Forward, ForwardNoGrad, Backward, Later float64
}

// Times returns the times of the chain's layers.
func (c Chain) Times() (list []UnitTimes) {
	for _, l := range c.Layers {
		list = append(list, UnitTimes{l.Name, l.Forward, l.ForwardNoGrad, l.Backward, l.Later()})
	}
	return list
}

// ByKind returns the bytes of backwards of a kind. Backwards in two parts that were not measured have
// the bytes of whole ones.
func (f *Footprint) ByKind(kind BackwardKind) *BackwardBytes {
	if kind >= MakesLater && len(f.Backward[kind].Units) == 0 {
		kind -= MakesLater
	}
	return &f.Backward[kind]
}

// Chain returns the stage as a chain of the units from prologue on, with backwards of a kind or
// their first parts. times is by unit, loss is microseconds. The highest peak of a unit's runs counts.
func (f *Footprint) Chain(times []UnitTimes, loss float64, prologue int, kind BackwardKind) Chain {
	c := Chain{Loss: Loss{Backward: loss, Tmp: f.LossTmp}}
	backward := f.ByKind(kind)
	inputs, carries := f.Inputs.made(len(f.Units), prologue, false)
	c.Input, c.Carries = inputs[prologue], carries
	gradients, carries := backward.Gradients.made(len(f.Units), prologue, true)
	c.InputGradient, c.GradientCarries = gradients[prologue], carries
	for i := prologue; i < len(f.Units); i++ {
		u, b, t := &f.Units[i], &backward.Units[i], &times[i]
		l := Layer{Name: t.Name, Forward: t.Forward, ForwardNoGrad: t.ForwardNoGrad, Backward: t.Backward,
			Output: inputs[i+1], Saved: u.Saved + inputs[i+1], Gradient: gradients[i+1]}
		l.ForwardTmp = max(u.Save[0], u.Save[1], u.Save[2]) - l.Saved
		l.ForwardNoGradTmp = max(u.Keep[0], u.Keep[1], u.Keep[2]) - l.Output
		switch kind {
		case Makes:
			l.WeightGradient, l.BackwardLater = b.Weights, t.Later
		case MakesLater:
			l.WeightGradient = b.Weights
		default:
			l.Backward = t.Later
		}
		rest := b.Peak - gradients[i] - l.WeightGradient
		l.BackwardTmp, l.BackwardEarly = max(rest, 0), max(-rest, 0)
		c.Layers = append(c.Layers, l)
	}
	return c
}

// made returns the bytes that are made at each boundary, and the carries, of a chain that begins at
// boundary first. A block is made at its first boundary, but not before boundary first. With down it is
// made at its last boundary, as gradients are.
func (b Blocks) made(units, first int, down bool) (made []int64, carries []Carry) {
	made = make([]int64, units+1)
	low, high := make([]int, len(b.Bytes)), make([]int, len(b.Bytes))
	for k := range low {
		low[k] = len(b.At)
	}
	for boundary, list := range b.At {
		for _, k := range list {
			if k >= 0 {
				low[k], high[k] = min(low[k], boundary), boundary
			}
		}
	}
	for k, bytes := range b.Bytes {
		from, to := max(low[k], first), high[k]
		switch {
		case from > to: // only in the prologue
			continue
		case down:
			made[to] += bytes
		default:
			made[from] += bytes
		}
		if from < to && bytes > 0 {
			carries = append(carries, Carry{From: from - first - 1, To: to - first, Bytes: bytes})
		}
	}
	return made, carries
}

// FootprintOf returns the footprint of a stage that has a chain's layers as units after a prologue
// that takes no memory.
//
// Later micro-batches need the first one's bytes without the gradients of weights. The first part of a
// backward in two leaves c.Deferred to the second. If that is nil it leaves the inputs of layers with
// weights, and the gradients of their outputs, as linear layers do. The second part makes the gradients
// of weights.
func FootprintOf(c Chain, prologue int) *Footprint {
	n := len(c.Layers)
	out := &Footprint{AtOnce: true, LossTmp: c.Loss.Tmp, Units: make([]UnitBytes, prologue+n)}
	out.Inputs = chainBlocks(prologue, n, c.Carries, false, func(i int) int64 { return c.made(i - 1) })
	for i := range c.Layers {
		l, u := &c.Layers[i], &out.Units[prologue+i]
		for r := range ForwardRuns {
			u.Keep[r], u.Save[r] = l.Output+l.ForwardNoGradTmp, l.Saved+l.ForwardTmp
		}
		u.Saved = l.Saved - l.Output
	}
	out.Arrives, out.Leaves = Parcel{Tuple: out.Inputs.At[0]}, Parcel{Tuple: out.Inputs.At[prologue+n]}
	for kind := range out.Backward {
		b := &out.Backward[kind]
		b.Gradients = chainBlocks(prologue, n, c.GradientCarries, true, c.madeGradient)
		b.Arrives, b.Leaves = Parcel{Tuple: b.Gradients.At[prologue+n]}, Parcel{Tuple: b.Gradients.At[0]}
		b.Units = make([]UnitBackward, prologue+n)
		for i, l := range c.Layers {
			u := &b.Units[prologue+i]
			u.Peak = c.madeGradient(i) + l.BackwardTmp - l.BackwardEarly
			weights := int64(0)
			if kind := BackwardKind(kind); kind == Makes || kind == MakesLater {
				weights = l.WeightGradient
			}
			if BackwardKind(kind) < MakesLater {
				u.Weights = weights
				u.Peak += weights
			} else if l.WeightGradient > 0 {
				u.LeftWeights, u.LeftPeak = weights, weights
				if u.Left = c.made(i-1) + c.madeGradient(i+1); c.Deferred != nil {
					u.Left = c.Deferred[i].Bytes
				}
			}
		}
	}
	return out
}

// chainBlocks returns the blocks of a chain's n+1 inputs. made is the bytes made at an input; carries are
// the parts of these bytes that other inputs share. With down the blocks are gradients of the inputs, and
// the last one is made first. The chain begins at boundary first.
func chainBlocks(first, n int, carries []Carry, down bool, made func(i int) int64) (out Blocks) {
	out.At = make([][]int, first+n+1)
	add := func(bytes int64, from, to int) {
		for b := from; b <= to; b++ {
			out.At[b] = append(out.At[b], len(out.Bytes))
		}
		out.Bytes = append(out.Bytes, bytes)
	}
	for i := range n + 1 { // carries are taken from these
		add(made(i), first+i, first+i)
	}
	for _, k := range carries {
		add(k.Bytes, first+k.From+1, first+k.To)
		if down {
			out.Bytes[k.To] -= k.Bytes
		} else {
			out.Bytes[k.From+1] -= k.Bytes
		}
	}
	return out
}
