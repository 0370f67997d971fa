package schedule

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
// A worker may have several stages if they are consecutive; they go forward and backward as one. A
// recomputation stands directly before the receives of its backward.
func OneFOneB(config Config) (*Program, error) {
	return build("1f1b", config, one, func(b *builder) {
		for r := range b.chunks {
			b.alternate(r, len(b.chunks)-1-r)
		}
	})
}

// OneFOneBEager is [OneFOneB] with twice as many forwards before the first backward: min(M,
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
func OneFOneBEager(config Config) (*Program, error) {
	return build("1f1b-2x", config, one, func(b *builder) {
		for r := range b.chunks {
			b.alternate(r, 2*(len(b.chunks)-1-r))
		}
	})
}

// alternate appends all computations of a chunk: warmup forwards, then a forward and a backward in
// turn, then the rest.
func (b *builder) alternate(c, warmup int) {
	m := b.config.MicroBatches
	warmup = min(m, warmup)
	for i := range m + warmup {
		if i < m {
			b.forward(c, i)
		}
		if i >= warmup {
			b.backward(c, i-warmup)
		}
	}
}
