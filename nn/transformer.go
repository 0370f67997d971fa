package nn

// NewTransformerBlock makes the layers of GPT-2's block, normalised before each part (Radford et
// al. 2019, section 2.3): [N, T, dim] to the same.
//
//	x = x + drop1(attn(ln1(x)))      attn is NewSelfAttention, causal
//	x = x + drop2(mlp(ln2(x)))       mlp is Linear(dim, 4 dim), GELU (tanh), Linear(4 dim, dim)
//
// Without dropout there are no drop1 and drop2. See Sequential.AddResidual for the other names.
func NewTransformerBlock(dim, heads int64, dropout float64) *Sequential {
	s := NewSequential()
	part := func(number, name string, l Layer) {
		path := []NamedLayer{{"ln" + number, NewLayerNorm([]int64{dim}, NormConfig{})}, {name, l}}
		if dropout != 0 {
			path = append(path, NamedLayer{"drop" + number, NewDropout(dropout)})
		}
		s.AddResidual(number, path...)
	}
	part("1", "attn", NewSelfAttention(dim, heads, true))
	part("2", "mlp", NewSequential(NewLinear(dim, 4*dim), NewGELUTanh(), NewLinear(4*dim, dim)))
	return s
}

// AddResidual appends the layers of x + path(x) to s and returns s. x goes around the path as a skip
// connection in a namespace of its own. The layers are "skip"+suffix, those of path, and
// "add"+suffix. A partition may cut between any two of them, and a plan of recomputation may keep
// the tensor between them.
//
// The sum overwrites the output of path; see InPlace.
func (s *Sequential) AddResidual(suffix string, path ...NamedLayer) *Sequential {
	skip, space := "skip"+suffix, NewNamespace()
	stash, sum := NewStash(skip), newAddSkip(skip)
	stash.node().Isolate(space)
	sum.Isolate(space)
	s.Add(skip, stash)
	for _, l := range path {
		s.Add(l.Name, l.Layer)
	}
	return s.Add("add"+suffix, sum)
}
