package plan

// sharesMemory reports whether units share memory. Then only the bytes that they save are certain.
func (p *space) sharesMemory() bool { return len(p.chain.Carries)+len(p.chain.GradientCarries) > 0 }

// needs is the bytes that a stage needs in any plan.
type needs struct {
	backward int64 // the most in a unit's backward, with the unit's input
	weights  int64 // of all units, trained
	held     int64 // of all units, frozen
	input    int64 // of the stage
}

// addUnit adds the i-th unit of the chain to a stage that begins with unit first.
func (n *needs) addUnit(p *space, first, i int) {
	l := &p.chain.Layers[i]
	backward := l.Saved - l.Output
	if !p.sharesMemory() {
		made, input := p.chain.InputGradient, int64(0)
		if i > 0 {
			made, input = p.y[i], p.x[i]
		}
		if backward = l.Saved + p.y[i+1] + max(0, made+l.BackwardTmp-l.BackwardEarly); i > first {
			backward += input
		} else {
			n.input = input
		}
	}
	n.backward = max(n.backward, backward)
	n.weights += l.WeightGradient
	n.held += p.frozenBytes(i, i+1)
}

// leastBytes returns a lower bound of the bytes that a worker needs for its stages of a cut, whatever
// it recomputes.
func (p *space) leastBytes(w int, c cut) int64 {
	list := make([]needs, len(p.stagesOf[w]))
	for k, s := range p.stagesOf[w] {
		for i := c[s]; i < c[s+1]; i++ {
			list[k].addUnit(p, c[s], i)
		}
	}
	return leastBytesOf(list, p.options.State)
}

// leastBytesOf is leastBytes for a worker, given the needs of each of its stages. It counts weights and
// optimizer state. It adds all gradients of weights, or the backward of a unit if that needs more.
func leastBytesOf(list []needs, state int) int64 {
	base, gradients, most := int64(0), int64(0), int64(0)
	for _, n := range list {
		base += int64(1+state)*n.weights + n.held
		gradients += n.weights
		most = max(most, n.input+n.backward)
	}
	return base + max(most, gradients)
}

// Oversized returns the largest unit that no device has memory for, even alone and with one
// micro-batch, and the least bytes that it needs. More devices then do not help. found is false if no
// unit is known to be too large. Nothing is planned for this.
func (m Costs) Oversized(machine Machine, options Options) (unit int, bytes int64, found bool) {
	limit := machine.Largest(options.Limit)
	p := &space{chain: m.Chain, held: m.Held}
	p.setBoundaryBytes()
	for u := range m.Chain.Layers {
		var n needs
		n.addUnit(p, u, u)
		if least := leastBytesOf([]needs{n}, options.State); limit > 0 && least > max(limit, bytes) {
			unit, bytes, found = u, least, true
		}
	}
	return unit, bytes, found
}
