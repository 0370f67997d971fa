package autoremat

import "penstock.example/nn"

// Atomic wraps s as one layer, which is kept or recomputed as a whole. Names and parameters are
// those of s, and s stays the caller's.
func Atomic(s *nn.Sequential) nn.Layer { return nn.Tuple(s, s.ForwardTuple) }
