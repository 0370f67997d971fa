package plan

// room is the bytes, x(0) counted, that one micro-batch has on a stage of a pipeline: while its forwards run, which are the operations before the loss; between them and the loss, when it
// waits for the micro-batches around it; and from the loss on.
type room struct {
	forward, held, backward int64
}

// spine is Opt(i, L, m) where the forwards before the loss and the operations from it on have rooms of their own, and what is held between the two is limited as well. m is what is left of
// room.backward.
//
// Of the recurrence only the intervals that end with the loss, which are those begun before it, are affected:
//
//	save i          as before, but of saving(i, L) the forward's moment compares with room.forward
//	keep up to j    as before, but sweep(i, j) compares with room.forward; what comes back to x(i) does so after the loss, and costs what the grid of the whole chain says
//	keep up to x(L) as before, but x(L) leaves the stage, and is not held
//	loss            in addition held must suffice: m >= room.backward - room.held where x(L) is a part of X(L)
//
// x(L) alone counts during its own micro-batch's loss, as it does in a chain without a pipeline, though on a stage that is not the last it has gone by then.
type spine struct {
	g *grid
	room
	least, all []int64 // by i
	rows       []row
}

// newSpine finds out for which m there is a plan. Times need fill.
func newSpine(g *grid, r room) *spine {
	n := g.t.n
	s := &spine{g: g, room: r, least: make([]int64, n+1), all: make([]int64, n+1)}
	s.least[n] = max(s.waiting(), g.t.saving(n, n))
	s.all[n] = s.least[n]
	for i := n - 1; i >= 0; i-- {
		save := s.saving(i)
		least := max(save, g.t.saved[i]+s.least[i+1])
		s.all[i] = max(save, g.t.saved[i]+s.all[i+1])
		for j := i + 1; j <= n; j++ {
			least = min(least, s.keeping(i, j))
		}
		s.least[i] = least
	}
	return s
}

// early is by how many bytes a moment before the loss has more room than one after it.
func (s *spine) early() int64 { return s.forward - s.backward }

// waiting is the m below which more is held than may be.
func (s *spine) waiting() int64 { return s.backward - s.held }

// saving is the least m for the operations of layer i that save i begins with and ends with.
func (s *spine) saving(i int) int64 {
	forward, backward := s.g.t.savingEarly(i), s.g.t.savingLate(i, s.g.t.n)
	return max(forward-s.early(), backward)
}

// keeping is the least m for keeping x(i) up to x(j), all in between included.
func (s *spine) keeping(i, j int) int64 {
	t := s.g.t
	left, _ := s.g.b.of(i, j-1)
	need := max(t.sweeping(i, j, t.n)-s.early(), left+t.weights(j, t.n))
	if j == t.n {
		return max(need, t.kept(i, j)+t.saving(j, j), s.waiting())
	}
	return max(need, t.kept(i, j)+s.least[j])
}

// feasible says that there is a plan.
func (s *spine) feasible() bool { return s.backward-s.g.t.chain.Input >= s.least[0] }

// fill computes the times, for all m up to that of the grid.
func (s *spine) fill() {
	g, n := s.g, s.g.t.n
	s.rows = make([]row, n+1)
	cells := 0
	for i := range s.rows {
		r := &s.rows[i]
		r.lo, r.n, r.tail = g.band(i, n, s.least[i], s.all[i])
		cells += r.n
	}
	v := make([]float32, cells)
	free := row{lo: -1 << 40, tail: 0} // of the loss after x(n) alone
	for i := n; i >= 0; i-- {
		r := &s.rows[i]
		r.v, v = v[:r.n:r.n], v[r.n:]
		if r.n == 0 {
			continue
		}
		r.clear()
		r.follow(g.slotAbove(s.saving(i), i, n), &s.rows[i+1])
		for j := i + 1; j <= n; j++ {
			right, move := &s.rows[j], int(g.moves[i*g.b.w+j])
			if j == n {
				right, move = &free, 0
			}
			// keeping compares what its parts compare, exactly; a row's own first slot may be later.
			r.split(max(r.lo, g.slotAbove(s.keeping(i, j), i, n)), r.hi(), right, move, &g.rows[i*g.b.w+j-1], g.nograd(i, j))
		}
		r.close()
	}
}

// at is the time of (i, L, m) in units of the grid's scale.
func (s *spine) at(i int, m int64) float32 {
	switch {
	case m < s.least[i]:
		return infinite
	case m >= s.all[i]:
		return 0
	}
	return s.g.look(&s.rows[i], i, s.g.t.n, m)
}

// write adds a plan of (i, L, m), m >= least[i], to p, as [path.write] does where all has one room.
func (p *path) writeSpine(s *spine, i int, m int64) {
	t, n := p.t, p.t.n
	if i == n {
		p.wait(0)
		p.save(n, n)
		return
	}
	j := s.choose(i, m)
	if j == i {
		p.save(i, n)
		p.writeSpine(s, i+1, m-t.saved[i])
		p.backward(i)
		return
	}
	p.compute(i, j, n)
	if j == n {
		p.wait(t.kept(i, n))
		p.save(n, n)
	} else {
		p.writeSpine(s, j, m-t.kept(i, j))
	}
	p.release(i, j)
	p.write(s.g.b, hopeful{s.g}, i, j-1, m-t.weights(j, n))
}

// choose is what comes first in (i, L, m): the j up to which x(i) is kept, or i to save.
func (s *spine) choose(i int, m int64) int {
	t, advice := s.g.t, hopeful{s.g}
	best, cheapest := -1, infinite
	consider := func(j int, cost float32) {
		if best < 0 || cost < cheapest {
			best, cheapest = j, cost
		}
	}
	if m >= max(s.saving(i), t.saved[i]+s.least[i+1]) {
		consider(i, s.hope(i+1, m-t.saved[i]))
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
			cost += s.hope(j, m-t.kept(i, j))
		}
		consider(j, cost)
	}
	return best
}

// hope is at, or a guess where that has no time for what is possible.
func (s *spine) hope(i int, m int64) float32 {
	v := s.at(i, m)
	if v == infinite && m >= s.least[i] {
		v = s.rows[i].guess(s.g.nograd(i, s.g.t.n))
	}
	return v
}

// path is a plan in the room that there is; nil if there is none.
func (s *spine) path() *path {
	if !s.feasible() {
		return nil
	}
	if s.rows == nil {
		s.fill()
	}
	p := newPath(s.g.t)
	p.writeSpine(s, 0, s.backward-s.g.t.chain.Input)
	return p
}
