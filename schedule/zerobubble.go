package schedule

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
func ZeroBubbleH1(config Config) (*Program, error) { return zeroBubble("zb-h1", config, 1) }

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
func ZeroBubbleH2(config Config) (*Program, error) { return zeroBubble("zb-h2", config, 2) }

func zeroBubble(name string, config Config, times int) (*Program, error) {
	return build(name, config, one, func(b *builder) {
		for r := range b.chunks {
			list := func(kind Kind) []step {
				steps := make([]step, config.MicroBatches)
				for i := range steps {
					steps[i] = step{kind, r, i}
				}
				return steps
			}
			b.behind(list(Forward), list(BackwardInput), list(BackwardWeight),
				times*(len(b.chunks)-1-r), times*r)
		}
	})
}

// behind appends the computations of a worker: warmup forwards, then a forward and the gradients of
// an input in turn, and after each, from the lag-th on, the gradients of the weights of the oldest.
func (b *builder) behind(forward, input, weight []step, warmup, lag int) {
	warmup = min(len(forward), warmup)
	next := 0
	for k := range len(forward) + warmup {
		if k < len(forward) {
			b.perform(forward[k])
		}
		if k < warmup {
			continue
		}
		b.perform(input[k-warmup])
		if k-warmup >= lag {
			b.perform(weight[next])
			next++
		}
	}
	for _, s := range weight[next:] {
		b.perform(s)
	}
}
