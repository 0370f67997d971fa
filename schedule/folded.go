package schedule

import "slices"

// ZeroBubbleV returns the program that fills what would be idle with gradients of the weights, on
// devices with two stages each that go to and fro ([V]). For 2 devices and 4 micro-batches:
//
//	worker 0  0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0F3 0I0 0W0 3F2 3I2 3W2 0I1 0W1 3F3 3I3 3W3 0I2 0W2 0I3 0W3 .
//	worker 1  .   1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1F3 1I1 1W1 2F3 2I2 2W2 1I2 2I3 1I3 1W2 2W3 1W3
//
// Where forwards and both parts of a backward take as long as each other, and M is at least 2P - 1,
// a device is idle for none of its 6M computations between its first and its last, and for P - 1 of
// them before and after. Each device then holds 2P micro-batches of one of its stages, as much
// memory as the first stage of 1F1B, and no more otherwise (Qi et al., 2023, arXiv:2401.10241,
// section 6).
func ZeroBubbleV(config Config) (*Program, error) {
	return build("zb-v", config, folded, func(b *builder) {
		p := len(b.order)
		for r := range p {
			f := b.fold(r, 2*p-1)
			f.times(2*(p-r)-1, "F0")
			f.times(r, "F1", "F0")
			f.times(p-r, "F1", "I1", "W1")
			for f.forward[1] < f.microBatches {
				if f.forward[0] < f.microBatches {
					f.times(1, "F0")
				}
				f.times(1, "I0", "W0", "F1", "I1", "W1")
			}
			f.times(r, "I0", "I1")
			f.times(p-r, "I0", "W0")
			f.drain("W1")
			f.drain("W0")
		}
	})
}

// DualPipeV returns the program that goes forward and backward at the same time, on devices with
// two stages each that go to and fro ([V]). For 2 devices and 5 micro-batches:
//
//	worker 0  0F0 0F1 0F2 3F0 3I0 3W0 3F1 0F3 3B1---- 3F2 0B0---- 0F4 3B2---- 3F3 0B1---- 3B3---- 3F4 .   0B2---- 3B4---- 0I3 0W3 0I4 0W4
//	worker 1  .   1F0 2F0 1F1 2F1 1F2 2B0---- 2F2 1B0---- 1F3 2B1---- 2F3 1B1---- 1F4 2B2---- 2F4 1B2---- 2B3---- 1B3---- 2I4 1I4 2W4 1W4
//
// On machines that run a forward of one stage while the other goes backward, most of it overlaps
// with communication. Here a device does one thing at a time: where forwards and both parts of a
// backward take as long as each other, and M is at least 2P, it is idle for P - 1 of 6M + P - 1 of
// them, like [ZeroBubbleV], and holds 2P + 1 micro-batches of one of its stages (DeepSeek-AI, 2024,
// arXiv:2412.19437, section 3.2.1, cut in half).
func DualPipeV(config Config) (*Program, error) {
	return build("dualpipe-v", config, folded, func(b *builder) {
		p := len(b.order)
		for r := range p {
			f := b.fold(r, 2*p)
			f.times(2*(p-1-r), "F0")
			f.times(r+1, "F0", "F1")
			f.times(p-1-r, "I1", "W", "F1")
			f.times(f.microBatches-2*p+r+1, "F0", "B1", "F1", "B0")
			f.times(p-1-r, "B1", "F1", "B0")
			// The last backwards are in parts: second parts fill the time until gradients arrive.
			whole := (r + 1) / 2
			f.times(whole, "B1", "B0")
			if r%2 == 0 {
				f.times(1, "B1", "I0")
				whole++
			}
			f.times(r+1-whole, "I1", "I0")
			f.times(p-1-r, "W", "I0")
			f.drain("W")
		}
	})
}

// fold lists the computations of a device with two chunks, which are called 0 and 1. A schedule is
// defined for a least number of micro-batches. For fewer the others are taken out of it.
type fold struct {
	b            *builder
	chunks       [2]int
	microBatches int    // that the schedule is listed for
	forward      [2]int // by chunk: micro-batches that went forward
	backward     [2]int
	pending      []step // gradients of weights that are to be made
}

func (b *builder) fold(r, least int) *fold {
	return &fold{b: b, chunks: [2]int{r, len(b.chunks) - 1 - r},
		microBatches: max(least, b.config.MicroBatches)}
}

// times performs operations a number of times, each for its next micro-batch: a letter for the
// kind, and the chunk. W without a chunk is the oldest of either.
func (f *fold) times(n int, operations ...string) {
	for range n {
		for _, op := range operations {
			f.do(op)
		}
	}
}

// drain makes the gradients of weights that are left.
func (f *fold) drain(op string) { f.times(len(f.pending), op) }

func (f *fold) do(op string) {
	if op[0] == 'W' {
		at := slices.IndexFunc(f.pending,
			func(s step) bool { return op == "W" || f.chunks[op[1]-'0'] == s.chunk })
		if at >= 0 {
			f.perform(f.pending[at])
			f.pending = slices.Delete(f.pending, at, at+1)
		}
		return
	}
	c := int(op[1] - '0')
	next, kind := &f.backward[c], Backward
	switch op[0] {
	case 'F':
		next, kind = &f.forward[c], Forward
	case 'I':
		kind = BackwardInput
		f.pending = append(f.pending, step{BackwardWeight, f.chunks[c], *next})
	}
	f.perform(step{kind, f.chunks[c], *next})
	*next++
}

func (f *fold) perform(s step) {
	if s.microBatch < f.b.config.MicroBatches {
		f.b.perform(s)
	}
}
