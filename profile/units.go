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

// coarsen joins neighbours, evenly, so that at most most units are left.
func coarsen(joined []bool, most int) {
	n, k := 0, 0
	for _, is := range joined {
		if !is {
			n++
		}
	}
	for i, is := range joined {
		if !is {
			joined[i] = k%((n+most-1)/most) != 0
			k++
		}
	}
}
