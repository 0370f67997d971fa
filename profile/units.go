package profile

import (
	"slices"

	"penstock.example/nn"
)

// Why a layer is joined with the one before.
const (
	inPlace   = "works in place on its input"
	aView     = "returns a view of its input"
	viewFirst = "follows a view of the model's input"
	nobodys   = "what lies between is more than the one before keeps, and nobody saves it for backward"
	skipped   = "lies under a skip connection, and there would be too many units"
	tooMany   = "there would be too many units"
)

// joined is, by layer, why the layer is in one unit with the one before it; "" if it begins a unit.
func (f *found) joined(layers []nn.NamedLayer) []string {
	out := make([]string, len(layers))
	for i := 1; i < len(out); i++ {
		before := f.out[i-1]
		switch {
		case f.overwrote[i] || overwrites(layers[i]):
			out[i] = inPlace
		case !slices.ContainsFunc(f.out[i], func(o flow) bool { return o.block.creator == i }):
			out[i] = aView
		case i == 1 && !slices.ContainsFunc(before, func(o flow) bool { return o.block.creator == 0 }):
			out[i] = viewFirst
		case f.wasted(i-1) > f.kept(i-1):
			out[i] = nobodys
		}
	}
	return out
}

// wasted is the bytes that a boundary after a layer would hold although no layer saves them for
// backward.
func (f *found) wasted(layer int) (bytes int64) {
	var counted []*block
	for _, o := range f.out[layer] {
		if b := o.block; b.creator != nobody && b.saver == nobody && !slices.Contains(counted, b) {
			counted, bytes = append(counted, b), bytes+b.bytes
		}
	}
	return bytes
}

// kept is the bytes that a layer allocates and that are saved for backward in any case.
func (f *found) kept(layer int) int64 {
	bytes := f.saved[layer]
	for _, b := range f.blocks {
		if b.creator == layer && b.saver != nobody {
			bytes += b.bytes
		}
	}
	return bytes
}

// coarsen joins layers until at most most units are left: first those inside of skip connections,
// shortest skips first, then neighbours, evenly.
func coarsen(joined []string, routes []nn.SkipRoute, most int) {
	units := func() (n int) {
		for _, reason := range joined {
			if reason == "" {
				n++
			}
		}
		return n
	}
	routes = slices.Clone(routes)
	slices.SortStableFunc(routes, func(a, b nn.SkipRoute) int {
		return (lastPop(a) - a.Stash) - (lastPop(b) - b.Stash)
	})
	for _, r := range routes {
		if units() <= most {
			return
		}
		for i := r.Stash + 1; i <= lastPop(r); i++ {
			if joined[i] == "" {
				joined[i] = skipped
			}
		}
	}
	for n := units(); n > most; n = units() {
		every, k := n/most+1, 0
		for i := range joined {
			if joined[i] != "" {
				continue
			}
			if k%every != 0 {
				joined[i] = tooMany
			}
			k++
		}
	}
}
