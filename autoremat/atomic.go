package autoremat

import "penstock/nn"

// Atomic is a Sequential as one layer: it is kept or computed again as a whole. Names and parameters are those of s.
func Atomic(s *nn.Sequential) nn.Layer { return nn.Tuple(s, s.ForwardTuple) }
