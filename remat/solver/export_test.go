package solver

// Cost is the time, in microseconds, that layers first to last need beyond running each forward
// with gradients and backward once, if x(first) is there and, while they run, bytes are left for
// all else: what they make and keep, temporaries, and the gradient of x(last+1). The loss is the
// layer after the last. ok is false if so many bytes are not enough, or there are no such layers. A
// plan of that time exists, if maybe a better one too; more bytes may cost more where that is so,
// by no more than what is lost.
func (t *Table) Cost(first, last int, bytes int64) (extra float64, ok bool) {
	if first < 0 || last < first || last > t.t.n {
		return 0, false
	}
	if least, _ := t.b.of(first, last); bytes < least {
		return 0, false
	}
	if t.steps != nil {
		return t.steps.microseconds(int64(t.steps.at(first, last, bytes))), true
	}
	g := t.grid(bytes)
	if v := g.at(first, last, bytes); v < infinite {
		return g.microseconds(v), true
	}
	p := newPath(t.t)
	p.write(t.b, hopeful{g}, first, last, bytes)
	return p.extra, true
}
