package solver

import "math"

// available is the bytes of one micro-batch on a stage of a pipeline, x(0) included: before the loss,
// while it waits, and from the loss on.
type available struct {
	forward, held, backward int64
}

// spine is Opt(i, L, m) for a micro-batch that waits between its forward and the loss. Forward,
// wait, and the time from the loss on have a limit each. m is what is left of the last one.
//
// It differs from the recurrence only in intervals that end with the loss:
//
//	save i          the forward's moment in saving(i, L) compares with forward
//	keep up to j    sweep(i, j) compares with forward; the return to x(i) comes after the loss
//	keep up to x(L) x(L) leaves the stage, and is not held
//	loss            m >= backward - held if x(L) is a part of X(L)
//
// If the loss is on the stage, x(L) counts during the loss, as in a chain without a pipeline.
type spine struct {
	t *terms
	b *bounds
	available
	least, all []int64 // by i
	keep       []int64 // at i*(n+1)+j: see keeping
}

// spineAdviser also estimates the time of (i, L, m) on a spine.
type spineAdviser interface {
	adviser
	end(i int, m int64) float64
}

func newSpine(t *terms, b *bounds, r available) *spine {
	n := t.n
	s := &spine{t: t, b: b, available: r, least: make([]int64, n+1), all: make([]int64, n+1),
		keep: make([]int64, (n+1)*(n+1))}
	s.least[n] = max(s.waiting(), t.saving(n, n))
	s.all[n] = s.least[n]
	for i := n - 1; i >= 0; i-- {
		save := s.saving(i)
		s.least[i] = max(save, t.saved[i]+s.least[i+1])
		s.all[i] = max(save, t.saved[i]+s.all[i+1])
		for j := i + 1; j <= n; j++ {
			left, _ := b.of(i, j-1)
			keep := max(t.sweeping(i, j, n)-s.early(), left+t.weights(j, n))
			if j == n {
				keep = max(keep, t.kept(i, j)+t.saving(j, j), s.waiting())
			} else {
				keep = max(keep, t.kept(i, j)+s.least[j])
			}
			s.keep[i*(n+1)+j] = keep
			s.least[i] = min(s.least[i], keep)
		}
	}
	return s
}

// early is the bytes that are available before the loss only.
func (s *spine) early() int64 { return s.forward - s.backward }

// waiting is the least m with which the limit held is kept.
func (s *spine) waiting() int64 { return s.backward - s.held }

// saving is the least m for the two operations on layer i of save i.
func (s *spine) saving(i int) int64 {
	forward, backward := s.t.savingEarly(i), s.t.savingLate(i, s.t.n)
	return max(forward-s.early(), backward)
}

// keeping is the least m to keep x(i) up to x(j), for all operations until x(i)'s backward.
func (s *spine) keeping(i, j int) int64 { return s.keep[i*(s.t.n+1)+j] }

// writeSpine is [path.write] on a spine: it adds a plan of (i, L, m), m >= least[i], to p.
func (p *path) writeSpine(s *spine, advice spineAdviser, i int, m int64) {
	t, n := p.t, p.t.n
	if i == n {
		p.save(n, n)
		return
	}
	j := s.choose(advice, i, m)
	if j == i {
		p.save(i, n)
		p.writeSpine(s, advice, i+1, m-t.saved[i])
		p.backward(i)
		return
	}
	p.compute(i, j, n)
	if j == n {
		p.save(n, n)
	} else {
		p.writeSpine(s, advice, j, m-t.kept(i, j))
	}
	p.release(i, j)
	p.write(s.b, advice, i, j-1, m-t.weights(j, n))
}

// choose returns the first step of (i, L, m): the j up to which x(i) is kept, or i to save.
func (s *spine) choose(advice spineAdviser, i int, m int64) int {
	t := s.t
	best, cheapest := -1, math.Inf(1)
	if m >= max(s.saving(i), t.saved[i]+s.least[i+1]) {
		best, cheapest = i, advice.end(i+1, m-t.saved[i])
	}
	for j := i + 1; j <= t.n; j++ {
		sweep := advice.nograd(i, j)
		if best >= 0 && sweep > cheapest {
			break
		}
		if m < s.keeping(i, j) {
			continue
		}
		cost := sweep + advice.at(i, j-1, m-t.weights(j, t.n))
		if j < t.n {
			cost += advice.end(j, m-t.kept(i, j))
		}
		if best < 0 || cost < cheapest {
			best, cheapest = j, cost
		}
	}
	return best
}
