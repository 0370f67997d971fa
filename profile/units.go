package profile

import (
	"slices"

	"penstock.example/nn"
)

// joined says, by layer, whether the layer is in one unit with the one before it. So it is if it
// works in place on its input, returns a view, or follows a view of the model's input. So it is too
// if what lies between is more than the layer before keeps, and nobody saves it for backward.
func (f *found) joined(layers []nn.NamedLayer) []bool {
	out := make([]bool, len(layers))
	makes := func(i int) bool {
		return slices.ContainsFunc(f.tuple(i+1), func(o flow) bool { return o.block.creator == i })
	}
	for i := 1; i < len(out); i++ {
		out[i] = f.overwrote[i] || overwrites(layers[i]) || !makes(i) || i == 1 && !makes(0) ||
			loose(f.tuple(i), nil) > f.kept(i-1)
	}
	return out
}

// tuple is the tuple at a boundary.
func (f *found) tuple(boundary int) []flow { return f.at[boundary][:f.tuples[boundary]] }

// loose is the bytes that a boundary holds although no layer saves them for backward. Blocks of
// others do not count.
func loose(flows, others []flow) (bytes int64) {
	for i, f := range flows {
		if !slices.ContainsFunc(slices.Concat(flows[:i], others), func(o flow) bool {
			return o.block == f.block
		}) {
			bytes += f.block.loose()
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
func coarsen(joined []bool, routes []nn.SkipRoute, most int) {
	units := func() (n int) {
		for _, is := range joined {
			if !is {
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
			joined[i] = true
		}
	}
	for n := units(); n > most; n = units() {
		every, k := n/most+1, 0
		for i, is := range joined {
			if !is {
				joined[i] = k%every != 0
				k++
			}
		}
	}
}
