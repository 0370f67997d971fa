package planner

import "penstock.example/remat"

// Footprint is the memory that a stage takes for a micro-batch: what each operation on a unit takes,
// to the byte, and which of the things that are handed on lie in the same memory. Package profile
// measures it. Sizes are bytes.
//
// Memory comes in blocks. A block is there as long as one of the things that lie in it is there, and
// counts once.
type Footprint struct {
	// Inputs are the blocks of the inputs of units, by boundary: that of the stage's input first,
	// that of its output last.
	Inputs Blocks
	// Arrives is what the stage receives for a forward, Leaves is what it sends, as blocks of
	// Inputs.
	Arrives, Leaves Parcel
	Units           []UnitBytes
	// Backward is what backwards take, by BackwardKind.
	Backward [backwardKinds]BackwardBytes
	// Commit is the most beside the rest when statistics of deferred batch norms are over.
	Commit int64
	// AtOnce says that a loss follows the last stage, whose forward and backward are one operation. It
	// takes LossTmp beside the rest and the gradient of the output.
	AtOnce  bool
	LossTmp int64
}

// Blocks are blocks of memory.
type Blocks struct {
	Bytes []int64 // of each block
	At    [][]int // by boundary: the block of each thing there; -1 for one that is absent
}

// Parcel is what moves between two stages, as blocks; -1 for what is absent.
type Parcel struct {
	Tuple []int   // between neighbours
	Skips [][]int // by place at the boundary: the skip, or the gradients of its pops
	Ties  []int   // gradients of parameters that other stages use, by place
}

// UnitBytes is what forwards of a unit take.
type UnitBytes struct {
	// Keep is the most that a forward without gradients takes, Save that one with gradients does, by
	// Run.
	Keep, Save [runs]int64
	// Saved is what a forward with gradients leaves, beside its output.
	Saved int64
	// Statistics is what the first forward of a step gathers for deferred batch norms.
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

// BackwardKind says what a backward does with the gradients of parameters.
type BackwardKind int

// Kinds of backwards.
const (
	Makes      BackwardKind = iota // makes them
	Adds                           // adds to them
	MakesLater                     // leaves them to a second part, which makes them
	AddsLater                      // leaves them to a second part, which adds to them
	backwardKinds
)

// BackwardBytes is what the backwards of one kind take.
type BackwardBytes struct {
	// Gradients are the blocks of the gradients of units' inputs, by boundary.
	Gradients Blocks
	// Arrives are the gradients that the stage receives, Leaves are those that it sends, as blocks of
	// Gradients. Gradients of a skip that goes to several stages stand in the order of the stages.
	Arrives, Leaves Parcel
	Units           []UnitBackward
}

// UnitBackward is what a backward of a unit takes.
type UnitBackward struct {
	// Peak is the most. Deferred is what it is where units after it hold what they have left to second
	// parts, and Held where another stage holds all of the unit's output and its gradients. Next is what
	// it is where the next stage holds what it has left to second parts, 0 where that is not known.
	Peak, Deferred, Held, Next int64

	Weights int64 // gradients of parameters that it makes
	// Left is what it leaves to the second part, beside the blocks of the unit's input and of gradients
	// that it holds until then.
	Left          int64
	LeftInputs    []int
	LeftGradients []int
	// LeftPeak is the most that the second part takes, LeftHeld the same where another stage holds what
	// it frees, LeftWeights the gradients that it makes.
	LeftPeak, LeftHeld, LeftWeights int64
}

// Skip is a skip that moves between two stages. Places are those in the stages' parcels.
type Skip struct {
	From, To           int
	FromPlace, ToPlace int
	Pops               int // by stage To: how many gradients it sends back

	first int // of these among those that From receives
}

// Tie is a parameter that two stages use, none between them. The gradient of the later one's uses goes
// to the earlier.
type Tie struct {
	Earlier, Later           int
	EarlierPlace, LaterPlace int
}

// footprint is what a stage takes whose costs have none: that of its chains.
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
			u := UnitBackward{Weights: l.WeightGradient, Peak: made + l.WeightGradient + l.BackwardTmp - l.BackwardEarly}
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
					{d.Input, &u.LeftInputs, out.Inputs.At[p+i]}, {d.Output, &u.LeftInputs, out.Inputs.At[p+i+1]},
					{d.Gradient, &u.LeftGradients, b.Gradients.At[p+i+1]}, {d.InputGradient, &u.LeftGradients, b.Gradients.At[p+i]},
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

// chainBlocks are the blocks of a chain's inputs, or of their gradients, which are made from the last
// down. made is what is made at a boundary, and carries are parts of it that are at others too. The
// chain begins at unit first.
func chainBlocks(units, first int, carries []remat.Carry, down bool, made func(boundary int) int64) (out Blocks) {
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

// deferred is the most that a micro-batch holds between the two parts of its backward.
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

// second is the most that the second part of a backward takes beside what the first has left.
func (f *Footprint) second() (bytes int64) {
	for _, kind := range []BackwardKind{MakesLater, AddsLater} {
		for _, u := range f.Backward[kind].Units {
			bytes = max(bytes, u.LeftHeld)
		}
	}
	return bytes
}

// laterWeights is the bytes of gradients of parameters that the second part of a first backward makes.
func (f *Footprint) laterWeights() (bytes int64) {
	for _, u := range f.Backward[MakesLater].Units {
		bytes += u.LeftWeights
	}
	return bytes
}
