package profile

import (
	"slices"

	"penstock.example/nn"
)

// joined says, by layer, whether the layer is in one unit with the layer before. It is if it works in
// place, returns a view, or follows a view of the model's input. It is also if the layer before saves
// fewer bytes than the boundary between holds for no backward.
func (f *looked) joined(layers []nn.NamedLayer) []bool {
	out := make([]bool, len(layers))
	makes := func(i int) bool {
		return slices.ContainsFunc(f.tuple(i+1), func(o element) bool { return o.block.creator == i })
	}
	for i := 1; i < len(out); i++ {
		out[i] = f.overwrote[i] || overwrites(layers[i]) || !makes(i) || i == 1 && !makes(0) ||
			loose(f.tuple(i), nil) > f.kept(i-1)
	}
	return out
}

func (f *looked) tuple(boundary int) []element { return f.at[boundary][:f.tuples[boundary]] }

// loose returns the bytes at a boundary that no layer saves for backward, without blocks of others.
func loose(flows, others []element) (bytes int64) {
	for i, f := range flows {
		if !slices.ContainsFunc(slices.Concat(flows[:i], others), func(o element) bool {
			return o.block == f.block
		}) {
			bytes += f.block.loose()
		}
	}
	return bytes
}

// kept returns the bytes that a layer allocates and that some layer saves for backward.
func (f *looked) kept(layer int) int64 {
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
	var begins []int // the first layers of units
	for i, is := range joined {
		if !is {
			begins = append(begins, i)
		}
	}
	for k, i := range begins {
		joined[i] = k%((len(begins)+most-1)/most) != 0
	}
}

// mostUnits is the most units that a model is cut into.
const mostUnits = 400

// units returns the numbers of layers in the units of each stage.
func (f *looked) units(layers []nn.NamedLayer, balance []int) (units [][]int) {
	joined := f.joined(layers)
	coarsen(joined, max(mostUnits-len(balance), 1))
	first := 0
	for _, n := range balance {
		var counts []int
		for i := first; i < first+n; i++ {
			if i == first || !joined[i] {
				counts = append(counts, 0)
			}
			counts[len(counts)-1]++
		}
		units, first = append(units, counts), first+n
	}
	return units
}
