package schedule

import (
	"cmp"
	"slices"
)

// GPipe returns the program that runs all forwards, then all backwards, both in ascending order of
// micro-batches. A worker may have any stages. For 3 workers of one stage and 3 micro-batches:
//
//	stage 0  F0 F1 F2 .  .  .  .  B0 B1 B2
//	stage 1  .  F0 F1 F2 .  .  B0 B1 B2 .
//	stage 2  .  .  F0 F1 F2 B0 B1 B2 .  .
//
// The pipeline is idle for P - 1 of M + P - 1 steps on P workers of one stage each, and every stage
// holds all M micro-batches (Huang et al., 2019, arXiv:1811.06965, section 2.3).
func GPipe(config Config) (*Program, error) {
	return build("gpipe", config, single, func(b *builder) {
		// A worker orders its stages as they would start on a worker of their own. So each
		// computation follows its dependencies.
		for _, kind := range []Kind{Forward, Backward} {
			var cells []cell
			for s := range config.Stages {
				for i := range config.MicroBatches {
					cells = append(cells, cell{s, i})
				}
			}
			delay := map[Kind]int{Forward: 1, Backward: -1}[kind] // of a stage after the one before
			slices.SortFunc(cells, func(x, y cell) int {
				return cmp.Or(delay*(x.chunk-y.chunk)+x.microBatch-y.microBatch, x.microBatch-y.microBatch)
			})
			for _, c := range cells {
				b.perform(kind, c)
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
// It is idle as long as with [GPipe] and holds min(M, P-r) micro-batches in place of M on stage r
// of P (Narayanan et al., 2021, arXiv:2104.04473, section 2.2.1: PipeDream-flush). A worker may
// have several stages if they are consecutive; they go forward and backward as one.
func OneFOneB(config Config) (*Program, error) { return inTurn("1f1b", config, 1, false) }

// oneFOneBEager is [OneFOneB] with twice as many forwards before the first backward: min(M,
// 2(P-1-r)) on stage r of P, which holds min(M, 2(P-1-r)+1) micro-batches. If transfers take no
// time, it is idle as long as 1F1B. Otherwise a stage runs forwards meanwhile, and is idle once for
// each hop, not once for each micro-batch (Alpa's overlap-friendly schedule; Zhuang et al., 2022,
// arXiv:2211.05322).
func oneFOneBEager(config Config) (*Program, error) { return inTurn("1f1b-2x", config, 2, false) }

// zeroBubbleH1 is 1F1B with backwards in two parts: the gradients of the weights fill idle time,
// and no stage holds more than the first one of 1F1B. Stage r of P runs min(M, P-1-r) forwards,
// then forwards and gradients of inputs in turn, and gradients of the weights r micro-batches
// later. If a forward takes f, the parts of a backward i and w, and M is at least P, it is idle for
// (P-1)max(f, i, f+i-w) in place of (P-1)(f+i+w). A stage holds min(M, P) micro-batches, min(M,
// P-r) of them whole (Qi et al., 2023, arXiv:2401.10241, section 2).
func zeroBubbleH1(config Config) (*Program, error) { return inTurn("zb-h1", config, 1, true) }

// zeroBubbleH2 is [zeroBubbleH1] with twice as many forwards before the first gradients. If w is at
// most f and i, and M at least 2P-1, stage r of P is idle for (P-1-r)(f+i-2w) between its first and
// its last computation. The update waits for all stages: with its wait each stage is idle for
// (P-1)max(f, f+i-2w). A stage holds min(M, 2P-1) micro-batches, min(M, 2(P-1-r)+1) of them whole
// (Qi et al., 2023, section 2).
func zeroBubbleH2(config Config) (*Program, error) { return inTurn("zb-h2", config, 2, true) }

// inTurn is 1F1B. lead is how many more forwards a stage runs before its first backward than the
// next stage does.
func inTurn(name string, config Config, lead int, split bool) (*Program, error) {
	return build(name, config, oneBlock, func(b *builder) {
		for r := range b.chunks {
			cells := make([]cell, config.MicroBatches)
			for i := range cells {
				cells[i] = cell{r, i}
			}
			b.alternate(cells, cells, lead*(len(b.chunks)-1-r), split, lead*r)
		}
	})
}

// breadthFirst goes through the stages of each device one after the other, each with all
// micro-batches: forward from the first stage to the last, then backward. The stages of P devices
// go round ([loop]), V on each. A device holds all M micro-batches of its stages. It is idle for
// P - 1 of VM + P - 1 steps, each a forward and a backward of a stage, if M is at least P
// (Lamy-Poirier, 2022, arXiv:2211.05953; backward ascends here, which takes as long).
func breadthFirst(config Config) (*Program, error) {
	return build("bfs", config, looped, func(b *builder) {
		for k := range 2 * len(b.chunks) {
			kind, c := Forward, k
			if k >= len(b.chunks) {
				kind, c = Backward, 2*len(b.chunks)-1-k
			}
			for i := range config.MicroBatches {
				b.perform(kind, cell{c, i})
			}
		}
	})
}

// interleaved is 1F1B on devices with several stages each, which go round ([loop]). Micro-batches
// go forward in groups, each through all stages of a device before the next; backward likewise,
// from the last stage. P devices with V stages each have max(1, M div P) groups, as equal as can
// be, the larger first; let g be the size of the first. Device r runs min(VM, (V-1)g + 2(P-1-r))
// forwards, then a forward and a backward in turn, then the remaining backwards. It is idle as long
// as [breadthFirst], and holds min(VM, (V-1)g + 2(P-1-r) + 1) pairs of a stage and a micro-batch
// (Narayanan et al., 2021, arXiv:2104.04473, section 2.2.2).
func interleaved(config Config) (*Program, error) { return rounds("interleaved", config, 2, false) }

// interleavedZeroBubble is [interleaved] with backwards in two parts. Device r runs min(VM, (V-1)g
// + P-1-r) forwards before the first backward. The gradients of the weights follow the gradients of
// the inputs, r micro-batches later. If all computations take the same time t, and M is at least P,
// a device computes for 3VMt and is idle for (P-1)t. It holds min(VM, (V-1)g + P) pairs of a stage
// and a micro-batch (PyTorch's ScheduleInterleavedZeroBubble; Qi et al., 2023).
func interleavedZeroBubble(config Config) (*Program, error) {
	return rounds("interleaved-zb", config, 1, true)
}

// rounds is inTurn for devices with several chunks each, which go round.
func rounds(name string, config Config, lead int, split bool) (*Program, error) {
	return build(name, config, looped, func(b *builder) {
		devices, m := len(b.workers), config.MicroBatches
		virtual, groups := len(b.chunks)/devices, max(1, m/devices)
		for r := range devices {
			var forward, backward []cell
			from, first := 0, (m+groups-1)/groups
			for g := range groups {
				size := m / groups
				if g < m%groups {
					size++
				}
				for v := range virtual {
					for i := from; i < from+size; i++ {
						forward = append(forward, cell{v*devices + r, i})
						backward = append(backward, cell{(virtual-1-v)*devices + r, i})
					}
				}
				from += size
			}
			b.alternate(forward, backward, (virtual-1)*first+lead*(devices-1-r), split, r)
		}
	})
}

// zeroBubbleV fills idle time with gradients of the weights, on devices with two stages each that
// go to and fro ([vee]). If all computations take the same time, and M is at least 2P - 1, a device
// is never idle between its first and its last computation, and for P - 1 of them before and after.
// It holds at most 2P pairs of a stage and a micro-batch (Qi et al., 2023, section 6).
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

// dualPipeV goes forward and backward at the same time, on devices with two stages each that go to
// and fro ([vee]). On machines that run a forward of one stage while the other goes backward, most
// of it overlaps with communication. Here a device does one thing at a time: with equal times, and
// M at least 2P, it is idle as long as zb-v, and holds 2P + 1 pairs of a stage and a micro-batch
// (DeepSeek-AI, 2024, arXiv:2412.19437, section 3.2.1, cut in half).
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

// fold lists the computations of a device with two chunks, called 0 and 1. If a schedule needs more
// micro-batches than there are, it is listed for more, and builder.perform leaves out the others.
type fold struct {
	*builder
	pair         [2]int         // indices of the two chunks
	microBatches int            // as many as the schedule needs, or more
	next         map[string]int // by operation, such as F0 or B1: its next micro-batch
	pending      []cell         // gradients of weights still to be computed
}

func (b *builder) fold(r, least int) *fold {
	return &fold{b, [2]int{r, len(b.chunks) - 1 - r}, max(least, b.MicroBatches), map[string]int{}, nil}
}

// times performs operations n times, each on its next micro-batch. An operation is a letter for the
// kind and the chunk; W without a chunk takes the oldest cell of either.
func (f *fold) times(n int, operations ...string) {
	for k := range n * len(operations) {
		op := operations[k%len(operations)]
		if op[0] == 'W' {
			at := slices.IndexFunc(f.pending,
				func(s cell) bool { return op == "W" || f.pair[op[1]-'0'] == s.chunk })
			if at >= 0 {
				f.perform(BackwardWeight, f.pending[at])
				f.pending = slices.Delete(f.pending, at, at+1)
			}
			continue
		}
		kind, counter := Forward, op
		if op[0] != 'F' {
			kind, counter = Backward, "B"+op[1:]
		}
		s := cell{f.pair[op[1]-'0'], f.next[counter]}
		f.next[counter]++
		if op[0] == 'I' {
			kind = BackwardInput
			f.pending = append(f.pending, s)
		}
		f.perform(kind, s)
	}
}
