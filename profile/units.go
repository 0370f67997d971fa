package profile

import (
	"slices"

	"penstock.example/nn"
)

// joined says, by layer, whether the layer is in one unit with the layer before. It is if it works
// in place, returns a view, or follows a view of the model's input. It also is if the bytes between
// them that no backward needs are more than the layer before saves, as only a cut holds them. More
// than maxUnits units are joined in equal groups.
func (f *layerMeasurement) joined(layers []nn.NamedLayer, maxUnits int) []bool {
	out, begins := make([]bool, len(layers)), []int{0} // the first layers of units
	makes := func(i int) bool {
		return slices.ContainsFunc(f.tuple(i+1), func(o element) bool { return o.block.creator == i })
	}
	for i := 1; i < len(out); i++ {
		out[i] = f.overwrote[i] || overwrites(layers[i]) || !makes(i) || i == 1 && !makes(0) ||
			unsavedBytes(f.tuple(i)) > f.savedBytes(i-1)
		if !out[i] {
			begins = append(begins, i)
		}
	}
	for k, i := range begins {
		out[i] = k%((len(begins)+maxUnits-1)/maxUnits) != 0
	}
	return out
}

func (f *layerMeasurement) tuple(boundary int) []element { return f.at[boundary][:f.tuples[boundary]] }

// unsavedBytes returns the bytes at a boundary that no layer saves for backward.
func unsavedBytes(list []element) (bytes int64) {
	for i, e := range list {
		if !slices.ContainsFunc(list[:i], func(o element) bool { return o.block == e.block }) {
			bytes += e.block.unsaved()
		}
	}
	return bytes
}

// savedBytes returns the bytes that a layer allocates and that some layer saves for backward.
func (f *layerMeasurement) savedBytes(layer int) int64 {
	bytes := f.saved[layer]
	for _, b := range f.blocks {
		if b.creator == layer && b.saver != nobody {
			bytes += b.bytes
		}
	}
	return bytes
}

// mostUnits is the most units that a model is cut into.
const mostUnits = 400

// units returns the numbers of layers in the units of each stage.
func (f *layerMeasurement) units(layers []nn.NamedLayer, balance []int) (units [][]int) {
	joined, first := f.joined(layers, max(mostUnits-len(balance), 1)), 0
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
