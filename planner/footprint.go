package planner

import "penstock.example/remat"

// Footprint is the memory of a stage for a micro-batch: the bytes of each operation on a unit, and
// which of the tensors that are handed on lie in the same memory. Package profile measures it. Sizes
// are bytes.
//
// Memory comes in blocks. A block exists as long as a tensor in it exists, and counts once.
type Footprint struct {
	// Inputs are the blocks of the inputs of units, by boundary: first the stage's input, last its
	// output.
	Inputs Blocks
	// Arrives is received for a forward, Leaves is sent, as blocks of Inputs.
	Arrives, Leaves Parcel
	Units           []UnitBytes
	// Backward is by BackwardKind.
	Backward [backwardKinds]BackwardBytes
	// Commit is the temporary peak when the statistics of deferred batch norms are applied.
	Commit int64
	// AtOnce says that a loss follows the last stage, and its forward and backward are one
	// operation. Its temporary peak is LossTmp, in addition to the gradient of the output.
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
	Skips [][]int // by place at the boundary: the skip, or the gradients of its pops
	Ties  []int   // gradients of parameters that other stages use, by place
}

// UnitBytes is the bytes of forwards of a unit.
type UnitBytes struct {
	// Keep is the peak of a forward without gradients, Save of one with gradients, by Run.
	Keep, Save [runs]int64
	// Saved is the bytes that a forward with gradients leaves, without its output.
	Saved int64
	// Statistics is the bytes that the first forward of a step gathers for deferred batch norms.
	Statistics int64
}

// Run says which run of a unit a forward is.
type Run int

// Runs of a unit.
const (
	FirstOfStep  Run = iota // on the first micro-batch
	FirstOfBatch            // on a later micro-batch
	Again                   // a repetition
	runs
)

// BackwardKind is how a backward treats the gradients of parameters.
type BackwardKind int

// Kinds of backwards.
const (
	Makes      BackwardKind = iota // makes them
	Adds                           // adds to them
	MakesLater                     // leaves them to a second part, which makes them
	AddsLater                      // leaves them to a second part, which adds to them
	backwardKinds
)

// BackwardBytes is the bytes of backwards of one kind.
type BackwardBytes struct {
	// Gradients are the blocks of the gradients of units' inputs, by boundary.
	Gradients Blocks
	// Arrives are the gradients that the stage receives, Leaves the gradients that it sends, as
	// blocks of Gradients. Gradients of a skip that goes to several stages stand in the order of the
	// stages.
	Arrives, Leaves Parcel
	Units           []UnitBackward
}

// UnitBackward is the bytes of a backward of a unit.
type UnitBackward struct {
	// Peak is the peak. Deferred is the peak while later units still hold tensors for their second
	// parts, and Held the peak while another stage holds all of the unit's output and its gradients.
	// Next is the peak while the next stage holds tensors for its second parts; 0 if it is not known.
	Peak, Deferred, Held, Next int64

	Weights int64 // gradients of parameters that it makes
	// Left is the bytes left to the second part. In addition it holds LeftInputs and LeftGradients,
	// blocks of the unit's input and of gradients, until then.
	Left          int64
	LeftInputs    []int
	LeftGradients []int
	// LeftPeak is the peak of the second part, LeftHeld its peak while another stage holds the
	// memory that it frees, LeftWeights the gradients that it makes.
	LeftPeak, LeftHeld, LeftWeights int64
}

// Skip is a skip that moves between two stages. Places are indices into the stages' parcels.
type Skip struct {
	From, To           int
	FromPlace, ToPlace int
	Pops               int // by stage To: how many gradients it sends back

	first int // index of the first of these gradients among all that From receives
}

// Tie is a parameter that two stages use, none between them. The gradient of the later one's uses goes
// to the earlier.
type Tie struct {
	Earlier, Later           int
	EarlierPlace, LaterPlace int
}

// footprint returns the footprint of a stage; if it has none, one made from its chains.
func (c *Costs) footprint() *Footprint {
	if c.Footprint != nil {
		return c.Footprint
	}
	p, n := c.Prologue, len(c.Later.Layers)
	out := &Footprint{AtOnce: true, LossTmp: c.Later.Loss.Tmp}
	out.Inputs = chainBlocks(p+n, p, c.Later.Carries, false, func(boundary int) int64 {
		switch {
		case boundary > p:
			return c.Later.Layers[boundary-p-1].Output
		case boundary == p && n > 0:
			return c.Later.Input
		case boundary == p && p > 0:
			return c.Gives
		case boundary == 0:
			return c.Given
		}
		return 0
	})
	for i := range p + n {
		u := UnitBytes{}
		if i == 0 && p > 0 {
			u.Keep = [runs]int64{c.ProloguePeak, c.ProloguePeak, c.ProloguePeak}
		}
		if i >= p {
			l := &c.Later.Layers[i-p]
			for r := range runs {
				u.Keep[r], u.Save[r] = l.Output+l.ForwardNoGradTmp, l.Saved+l.ForwardTmp
			}
			u.Saved = l.Saved - l.Output
		}
		out.Units = append(out.Units, u)
	}
	out.Arrives, out.Leaves = Parcel{Tuple: out.Inputs.At[0]}, Parcel{Tuple: out.Inputs.At[p+n]}
	for kind, chain := range []remat.Chain{c.First, c.Later, c.Split, c.SplitLater} {
		if BackwardKind(kind) >= MakesLater && len(chain.Layers) == 0 {
			continue
		}
		b := &out.Backward[kind]
		b.Gradients = chainBlocks(p+n, p, chain.GradientCarries, true, func(boundary int) int64 {
			switch {
			case boundary < p || n == 0:
				return 0
			case boundary == p:
				return chain.InputGradient
			}
			return chain.Layers[boundary-p-1].Gradient
		})
		b.Arrives, b.Leaves = Parcel{Tuple: b.Gradients.At[p+n]}, Parcel{Tuple: b.Gradients.At[0]}
		b.Units = make([]UnitBackward, p+n)
		for i, l := range chain.Layers {
			made := chain.InputGradient
			if i > 0 {
				made = chain.Layers[i-1].Gradient
			}
			u := UnitBackward{Weights: l.WeightGradient,
				Peak: made + l.WeightGradient + l.BackwardTmp - l.BackwardEarly}
			u.Deferred, u.Held = u.Peak, u.Peak
			if BackwardKind(kind) >= MakesLater && c.First.Layers[i].WeightGradient > 0 {
				d := remat.Deferred{Input: true, Gradient: true} // of a linear layer
				if chain.Deferred != nil {
					d = chain.Deferred[i]
				}
				u.Left = d.Bytes
				for _, l := range []struct {
					held bool
					to   *[]int
					at   []int
				}{
					{d.Input, &u.LeftInputs, out.Inputs.At[p+i]},
					{d.Output, &u.LeftInputs, out.Inputs.At[p+i+1]},
					{d.Gradient, &u.LeftGradients, b.Gradients.At[p+i+1]},
					{d.InputGradient, &u.LeftGradients, b.Gradients.At[p+i]},
				} {
					if l.held {
						*l.to = append(*l.to, l.at...)
					}
				}
				u.Weights, u.LeftWeights, u.LeftPeak, u.LeftHeld = 0, u.Weights, u.Weights, u.Weights
				u.Peak -= u.LeftWeights
			}
			b.Units[p+i] = u
		}
	}
	return out
}

// chainBlocks are the blocks of a chain's inputs, or of their gradients, which are made from the
// last down. made is the bytes made at a boundary, and carries are the parts of them at other
// boundaries too. The chain begins at unit first.
func chainBlocks(units, first int, carries []remat.Carry, down bool,
	made func(boundary int) int64) (out Blocks) {
	out.At = make([][]int, units+1)
	rest := make([]int64, units+1)
	for b := range rest {
		rest[b] = made(b)
	}
	add := func(bytes int64, from, to int) {
		for b := from; b <= to; b++ {
			out.At[b] = append(out.At[b], len(out.Bytes))
		}
		out.Bytes = append(out.Bytes, bytes)
	}
	for b := range rest {
		add(0, b, b) // in the place of the rest
	}
	for _, k := range carries {
		from, to := first+k.From+1, first+k.To
		add(k.Bytes, from, to)
		if down {
			rest[to] -= k.Bytes
		} else {
			rest[from] -= k.Bytes
		}
	}
	copy(out.Bytes, rest)
	return out
}

// deferred returns the most bytes of a micro-batch between the two parts of its backward.
func (f *Footprint) deferred() (bytes int64) {
	b := &f.Backward[AddsLater]
	for _, u := range b.Units {
		bytes += u.Left
	}
	count := func(of Blocks, wanted func(u *UnitBackward) []int) {
		seen := make([]bool, len(of.Bytes))
		for i := range b.Units {
			for _, k := range wanted(&b.Units[i]) {
				if !seen[k] {
					seen[k] = true
					bytes += of.Bytes[k]
				}
			}
		}
	}
	count(f.Inputs, func(u *UnitBackward) []int { return u.LeftInputs })
	count(b.Gradients, func(u *UnitBackward) []int { return u.LeftGradients })
	return bytes
}

// second returns the most additional bytes of the second part of a backward.
func (f *Footprint) second() (bytes int64) {
	for _, kind := range []BackwardKind{MakesLater, AddsLater} {
		for _, u := range f.Backward[kind].Units {
			bytes = max(bytes, u.LeftHeld)
		}
	}
	return bytes
}

// laterWeights returns the bytes of parameter gradients that the second part of a first backward
// makes.
func (f *Footprint) laterWeights() (bytes int64) {
	for _, u := range f.Backward[MakesLater].Units {
		bytes += u.LeftWeights
	}
	return bytes
}
