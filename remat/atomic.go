package remat

import "penstock/nn"

// Atomic is a Sequential, or another layer of tuples, as one layer: it is kept or computed again as a whole. Names and parameters are those of l.
func Atomic(l nn.TupleLayer) nn.Layer { return nn.Tuple(l) }
