package schedule

import (
	"cmp"
	"slices"
)

// GPipe returns the program that runs all forwards, then all backwards, both in ascending order of
// micro-batches. For 3 stages and 3 micro-batches, each stage on its own worker, time running
// right:
//
//	stage 0  F0 F1 F2 .  .  .  .  B0 B1 B2
//	stage 1  .  F0 F1 F2 .  .  B0 B1 B2 .
//	stage 2  .  .  F0 F1 F2 B0 B1 B2 .  .
//
// A recomputation stands before the receives of the gradients, which it has no need to wait for:
// stage 1 does 1R1 2>1B1 1B1. A worker may have any stages.
//
// The pipeline is idle for P - 1 of M + P - 1 steps on P workers of one stage each, and every stage
// holds all M micro-batches (Huang et al., 2019, arXiv:1811.06965, section 2.3).
func GPipe(config Config) (*Program, error) {
	each := func(placement []int) (chunks []chunk, err error) {
		for s, w := range placement {
			chunks = append(chunks, chunk{w, s, s + 1})
		}
		return chunks, nil
	}
	return build("gpipe", config, each, func(b *builder) {
		// A worker with several stages runs them in the order of their starts if every stage had a
		// worker of its own: so each follows its dependencies.
		for _, kind := range []Kind{Forward, Backward} {
			var steps []step
			for s := range config.Stages {
				for i := range config.MicroBatches {
					steps = append(steps, step{s, i})
				}
			}
			start := func(s step) int {
				if kind == Forward {
					return s.chunk + s.microBatch
				}
				return s.microBatch - s.chunk
			}
			slices.SortFunc(steps, func(x, y step) int {
				return cmp.Or(cmp.Compare(start(x), start(y)), cmp.Compare(x.microBatch, y.microBatch))
			})
			for _, s := range steps {
				b.perform(kind, s.chunk, s.microBatch)
			}
		}
	})
}

// OneFOneB returns the program that alternates between one forward and one backward, so that a
// stage holds no more micro-batches than stages follow it, itself included. For 4 stages and 5
// micro-batches:
//
//	stage 0  F0 F1 F2 F3 .  .  .  B0 F4 B1 .  B2 .  B3 .  B4
//	stage 1  .  F0 F1 F2 .  .  B0 F3 B1 F4 B2 .  B3 .  B4 .
//	stage 2  .  .  F0 F1 .  B0 F2 B1 F3 B2 F4 B3 .  B4 .  .
//	stage 3  .  .  .  F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 .  .  .
//
// Stage r of P runs min(M, P-1-r) forwards, then a forward and a backward in turn, then the
// backwards that are left. It is idle as long as with [GPipe], for P - 1 of M + P - 1 forwards and
// backwards, and holds min(M, P-r) micro-batches in place of M (Narayanan et al., 2021,
// arXiv:2104.04473, section 2.2.1: PipeDream-flush).
//
// A worker may have several stages if they are consecutive; they go forward and backward as one.
func OneFOneB(config Config) (*Program, error) { return inTurn("1f1b", config, 1, false) }

// oneFOneBEager is [OneFOneB] with twice as many forwards before the first backward: min(M,
// 2(P-1-r)) on stage r of P. For 4 stages and 5 micro-batches:
//
//	stage 0  F0 F1 F2 F3 F4 .  .  B0 .  B1 .  B2 .  B3 .  B4
//	stage 1  .  F0 F1 F2 F3 F4 B0 .  B1 .  B2 .  B3 .  B4 .
//	stage 2  .  .  F0 F1 F2 B0 F3 B1 F4 B2 .  B3 .  B4 .  .
//	stage 3  .  .  .  F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 .  .  .
//
// It is idle as long as 1F1B where transfers take no time, and holds min(M, 2(P-1-r)+1)
// micro-batches. Where transfers take time, a stage has forwards to do while activations and
// gradients are on their way, so that it is idle once for each hop and not once for each
// micro-batch (Alpa's overlap-friendly schedule; Zhuang et al., 2022, arXiv:2211.05322).
func oneFOneBEager(config Config) (*Program, error) { return inTurn("1f1b-2x", config, 2, false) }

// ZeroBubbleH1 returns the program of 1F1B with backwards in two parts: the gradients of the
// weights fill what would be idle, and no stage holds more than the first one of 1F1B. For 4 stages
// and 5 micro-batches:
//
//	stage 0  F0 F1 F2 F3 .  .  .  I0 W0 F4 I1 W1 I2 W2 I3 W3 I4 W4
//	stage 1  .  F0 F1 F2 .  .  I0 F3 I1 W0 F4 I2 W1 I3 W2 I4 W3 W4
//	stage 2  .  .  F0 F1 .  I0 F2 I1 F3 I2 W0 F4 I3 W1 I4 W2 W3 W4
//	stage 3  .  .  .  F0 I0 F1 I1 F2 I2 F3 I3 W0 F4 I4 W1 W2 W3 W4
//
// Stage r of P runs min(M, P-1-r) forwards, then forwards and gradients of inputs in turn, and
// gradients of the weights r micro-batches behind them. With times f, i and w, and M at least P, it
// is idle for (P-1)max(f, i, f+i-w) in place of (P-1)(f+i+w). A stage holds min(M, P)
// micro-batches, min(M, P-r) of them whole (Qi et al., 2023, arXiv:2401.10241, section 2).
//
// A worker may have several stages if they are consecutive.
func ZeroBubbleH1(config Config) (*Program, error) { return inTurn("zb-h1", config, 1, true) }

// ZeroBubbleH2 is [ZeroBubbleH1] with twice as many forwards before the first gradients. For 3
// stages and 6 micro-batches:
//
//	stage 0  F0 F1 F2 F3 F4 I0 W0 F5 I1 W1 I2 W2 I3 W3 I4 W4 I5 W5 .  .
//	stage 1  .  F0 F1 F2 I0 F3 I1 F4 I2 W0 F5 I3 W1 I4 W2 I5 W3 W4 W5 .
//	stage 2  .  .  F0 I0 F1 I1 F2 I2 F3 I3 F4 I4 W0 F5 I5 W1 W2 W3 W4 W5
//
// With times f, i and w, where w is at most f and i, and M is at least 2P-1, stage r of P is idle
// for (P-1-r)(f+i-2w) between its first and its last computation: not at all with equal times.
// Stages do not end together: with a barrier after each step, as the update of the weights needs
// it, each is idle for (P-1)max(f, f+i-2w), as long as with H1 if times are equal. A stage holds
// min(M, 2P-1) micro-batches, min(M, 2(P-1-r)+1) of them whole (Qi et al., 2023, arXiv:2401.10241,
// section 2).
func ZeroBubbleH2(config Config) (*Program, error) { return inTurn("zb-h2", config, 2, true) }

// inTurn is 1F1B with times as many forwards before the first backward.
func inTurn(name string, config Config, times int, split bool) (*Program, error) {
	return build(name, config, one, func(b *builder) {
		for r := range b.chunks {
			steps := make([]step, config.MicroBatches)
			for i := range steps {
				steps[i] = step{r, i}
			}
			b.alternate(steps, steps, times*(len(b.chunks)-1-r), split, times*r)
		}
	})
}

// BreadthFirst returns the program that goes through the stages of each device one after the other,
// each with all micro-batches: forward from the first stage to the last, then backward from the
// last to the first. The stages of P devices go round ([Loop]). For 2 devices with 2 stages each
// and 3 micro-batches:
//
//	worker 0  0F0 0F1 0F2 2F0 2F1 2F2 .   .   2B0 2B1 2B2 0B0 0B1 0B2
//	worker 1  .   1F0 1F1 1F2 3F0 3F1 3F2 3B0 3B1 3B2 1B0 1B1 1B2 .
//
// With V stages on each device it is idle for P - 1 of VM + P - 1 forwards and backwards of a stage
// if M is at least P, and holds all VM of them (Lamy-Poirier, 2022, arXiv:2211.05953). Unlike
// there, backward ascends through the micro-batches, which takes as long.
func BreadthFirst(config Config) (*Program, error) {
	return build("bfs", config, looped, func(b *builder) {
		for _, kind := range []Kind{Forward, Backward} {
			for k := range b.chunks {
				c := k
				if kind == Backward {
					c = len(b.chunks) - 1 - k
				}
				for i := range config.MicroBatches {
					b.perform(kind, c, i)
				}
			}
		}
	})
}

// interleaved returns the program of 1F1B on devices with several stages each, which go round
// ([Loop]). Micro-batches go forward in groups, each through all stages of a device before the
// next; backward likewise, from the last stage. For 2 devices with 2 stages each and 4
// micro-batches:
//
//	worker 0  0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 .   2B2 .   2B3 0B2 0B3
//	worker 1  .   1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3 .
//
// P devices with V stages each have max(1, M div P) groups, as equal as can be, the larger first;
// let g be the size of the first. Device r runs min(VM, (V-1)g + 2(P-1-r)) forwards, then a forward
// and a backward in turn, then the backwards that are left. It is idle for P - 1 of VM + P - 1
// forwards and backwards of a stage if M is at least P, and holds min(VM, (V-1)g + 2(P-1-r) + 1) of
// them (Narayanan et al., 2021, arXiv:2104.04473, section 2.2.2).
func interleaved(config Config) (*Program, error) { return rounds("interleaved", config, 2, false) }

// interleavedZeroBubble returns the program of [interleaved] with backwards in two parts: the
// gradients of the weights fill what would be idle. For 2 devices with 2 stages each and 4
// micro-batches:
//
//	worker 0  0F0 0F1 2F0 2F1 .   2I0 2W0 0F2 2I1 2W1 0F3 0I0 0W0 2F2 0I1 0W1 2F3 2I2 2W2 2I3 2W3 0I2 0W2 0I3 0W3
//	worker 1  .   1F0 1F1 3F0 3I0 3F1 3I1 3W0 1F2 1I0 3W1 1F3 1I1 1W0 3F2 3I2 1W1 3F3 3I3 3W2 1I2 3W3 1I3 1W2 1W3
//
// Device r runs min(VM, (V-1)g + P-1-r) forwards before the first backward. The gradients of the
// weights follow the gradients of the inputs, r micro-batches later. Where forwards and both parts
// take as long as each other, it is idle for P - 1 of 3VM + P - 1 of them if M is at least P. A
// device holds min(VM, (V-1)g + P) stages' micro-batches, min(VM, (V-1)g + P-r) of them whole
// (PyTorch's ScheduleInterleavedZeroBubble; Qi et al., 2023, arXiv:2401.10241).
func interleavedZeroBubble(config Config) (*Program, error) {
	return rounds("interleaved-zb", config, 1, true)
}

// rounds is 1F1B on chunks that go round, with times forwards before the first backward for each
// device that follows.
func rounds(name string, config Config, times int, split bool) (*Program, error) {
	return build(name, config, looped, func(b *builder) {
		devices, m := len(b.workers), config.MicroBatches
		virtual, groups := len(b.chunks)/devices, max(1, m/devices)
		for r := range devices {
			var forward, backward []step
			from, first := 0, (m+groups-1)/groups
			for g := range groups {
				size := m / groups
				if g < m%groups {
					size++
				}
				for v := range virtual {
					for i := from; i < from+size; i++ {
						forward = append(forward, step{v*devices + r, i})
						backward = append(backward, step{(virtual-1-v)*devices + r, i})
					}
				}
				from += size
			}
			b.alternate(forward, backward, (virtual-1)*first+times*(devices-1-r), split, r)
		}
	})
}

// zeroBubbleV returns the program that fills what would be idle with gradients of the weights, on
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
func zeroBubbleV(config Config) (*Program, error) {
	return build("zb-v", config, folded, func(b *builder) {
		p := len(b.workers)
		for r := range p {
			f := b.fold(r, 2*p-1)
			f.times(2*(p-r)-1, "F0")
			f.times(r, "F1", "F0")
			f.times(p-r, "F1", "I1", "W1")
			for f.next["F1"] < f.microBatches {
				if f.next["F0"] < f.microBatches {
					f.times(1, "F0")
				}
				f.times(1, "I0", "W0", "F1", "I1", "W1")
			}
			f.times(r, "I0", "I1")
			f.times(p-r, "I0", "W0")
			f.times(len(f.pending), "W1")
			f.times(len(f.pending), "W0")
		}
	})
}

// dualPipeV returns the program that goes forward and backward at the same time, on devices with
// two stages each that go to and fro ([V]). For 2 devices and 5 micro-batches:
//
//	worker 0  0F0 0F1 0F2 3F0 3I0 3W0 3F1 0F3 3B1---- 3F2 0B0---- 0F4 3B2---- 3F3 0B1---- 3B3---- 3F4 .   0B2---- 3B4---- 0I3 0W3 0I4 0W4
//	worker 1  .   1F0 2F0 1F1 2F1 1F2 2B0---- 2F2 1B0---- 1F3 2B1---- 2F3 1B1---- 1F4 2B2---- 2F4 1B2---- 2B3---- 1B3---- 2I4 1I4 2W4 1W4
//
// On machines that run a forward of one stage while the other goes backward, most of it overlaps
// with communication. Here a device does one thing at a time: where forwards and both parts of a
// backward take as long as each other, and M is at least 2P, it is idle for P - 1 of 6M + P - 1 of
// them, like zb-v, and holds 2P + 1 micro-batches of one of its stages (DeepSeek-AI, 2024,
// arXiv:2412.19437, section 3.2.1, cut in half).
func dualPipeV(config Config) (*Program, error) {
	return build("dualpipe-v", config, folded, func(b *builder) {
		p := len(b.workers)
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
			f.times(len(f.pending), "W")
		}
	})
}

// fold lists the computations of a device with two chunks, which are called 0 and 1. A schedule is
// defined for a least number of micro-batches. For fewer the others are taken out of it.
type fold struct {
	*builder
	of           [2]int
	microBatches int            // that the schedule is listed for
	next         map[string]int // by operation, as in F0 or B1: its next micro-batch
	pending      []step         // gradients of weights that are to be made
}

func (b *builder) fold(r, least int) *fold {
	return &fold{b, [2]int{r, len(b.chunks) - 1 - r}, max(least, b.MicroBatches), map[string]int{}, nil}
}

// times performs operations a number of times, each for its next micro-batch: a letter for the
// kind, and the chunk. W without a chunk is the oldest of either.
func (f *fold) times(n int, operations ...string) {
	for k := range n * len(operations) {
		op := operations[k%len(operations)]
		if op[0] == 'W' {
			at := slices.IndexFunc(f.pending,
				func(s step) bool { return op == "W" || f.of[op[1]-'0'] == s.chunk })
			if at >= 0 {
				f.do(BackwardWeight, f.pending[at])
				f.pending = slices.Delete(f.pending, at, at+1)
			}
			continue
		}
		kind, counter := Forward, op
		if op[0] != 'F' {
			kind, counter = Backward, "B"+op[1:]
		}
		s := step{f.of[op[1]-'0'], f.next[counter]}
		f.next[counter]++
		if op[0] == 'I' {
			kind = BackwardInput
			f.pending = append(f.pending, s)
		}
		f.do(kind, s)
	}
}

func (f *fold) do(kind Kind, s step) {
	if s.microBatch < f.MicroBatches {
		f.perform(kind, s.chunk, s.microBatch)
	}
}
