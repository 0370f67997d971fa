package torch

// Random state is derived, not saved: every draw has its own generator, seeded from the context's
// seed and the number of the draw. The same seed draws the same bits on any thread. libtorch's
// global generators are not used.

// SetSeed starts a new sequence of draws.
func (c *Ctx) SetSeed(seed uint64) { c.seed, c.draws = seed, 0 }

// Draws returns the state of the sequence: its seed and the number of draws made.
func (c *Ctx) Draws() (seed, made uint64) { return c.seed, c.draws }

// ResumeDraws sets the state of the sequence to a result of Draws.
func (c *Ctx) ResumeDraws(seed, made uint64) { c.seed, c.draws = seed, made }

// NextSeed takes the next draw of the sequence and returns its seed.
func (c *Ctx) NextSeed() uint64 {
	s := Mix(c.seed, c.draws)
	c.draws++
	return s
}

// Mix derives a seed from a parent and a number: two rounds of the SplitMix64 finaliser (Steele,
// Lea and Flood, "Fast Splittable Pseudorandom Number Generators", 2014).
func Mix(parent, n uint64) uint64 {
	return finalise(finalise(parent+0x9e3779b97f4a7c15) ^ (n + 0xd1b54a32d192ed03))
}

func finalise(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Dropout zeroes each element with probability p and scales the others by 1/(1-p).
func (c *Ctx) Dropout(x *Tensor, p float64) *Tensor {
	if p == 0 {
		return x
	}
	var mask *Tensor
	c.NoGrad(func() {
		mask = c.Op("aten::empty_like", x)
		if p == 1 {
			c.Zero_(mask)
			return
		}
		c.op("aten::bernoulli_.float").t(mask).f(1 - p).seed().inPlace(mask)
		c.MulScalar_(mask, 1/(1-p))
	})
	return c.Mul(x, mask)
}
