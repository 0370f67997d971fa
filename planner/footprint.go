package planner

import "penstock.example/remat"

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

// deferredBytes returns the most bytes of a micro-batch between the two parts of its backward.
func deferredBytes(f *remat.Footprint) (bytes int64) {
	b := f.ByKind(remat.AddsLater)
	for _, u := range b.Units {
		bytes += u.Left
	}
	count := func(of remat.Blocks, wanted func(u *remat.UnitBackward) []int) {
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
	count(f.Inputs, func(u *remat.UnitBackward) []int { return u.LeftInputs })
	count(b.Gradients, func(u *remat.UnitBackward) []int { return u.LeftGradients })
	return bytes
}

// secondPeak returns the most additional bytes of the second part of a backward.
func secondPeak(f *remat.Footprint) (bytes int64) {
	for _, kind := range []remat.BackwardKind{remat.MakesLater, remat.AddsLater} {
		for _, u := range f.Backward[kind].Units {
			bytes = max(bytes, u.LeftPeak)
		}
	}
	return bytes
}

// secondWeights returns the bytes of parameter gradients that the second part of a first backward
// makes.
func secondWeights(f *remat.Footprint) (bytes int64) {
	for _, u := range f.Backward[remat.MakesLater].Units {
		bytes += u.LeftWeights
	}
	return bytes
}
