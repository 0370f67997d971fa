package profile

import (
	"slices"

	"penstock.example/nn"
	"penstock.example/remat"
	"penstock.example/torch"
)

// backwards measures the backwards of a stage's units, from the last to the first, with the gradients
// that come from the stages after it.
func (p *prober) backwards(st *staged) error {
	p.s, p.inputGrad = st.s, st.inputGrad
	defer st.free()
	n := len(st.units)
	p.arrive(st)
	if err := p.descend(st, 0, n); err != nil {
		return err
	}
	return attempt(st.all[0].name, func() error {
		defer p.c.Close()
		p.depart(st)
		return nil
	})
}

// kinds lists the kinds of backwards that are measured.
func (p *prober) kinds() (list []remat.BackwardKind) {
	list = []remat.BackwardKind{remat.Makes}
	if !p.FirstOnly {
		list = append(list, remat.Adds)
	}
	if p.Split {
		list = append(list, remat.MakesLater)
	}
	if p.Split && !p.FirstOnly {
		list = append(list, remat.AddsLater)
	}
	return list
}

// descend measures the backwards of the units from <= i < to, whose first one's input is held, from the
// last to the first. It holds the input of the middle one for the upper half, and makes it again from
// there: inputs of log2 of the units at once, beside those that there is room for, for at most half as many forwards of each unit.
// Lean, it makes each from the first one's.
func (p *prober) descend(st *staged, from, to int) error {
	if err := p.ctx.Err(); err != nil {
		return err
	}
	if p.isLean {
		for i := to - 1; i >= from; i-- {
			err := p.ctx.Err()
			if err == nil {
				err = p.inputOf(st, from, i)
			}
			if err == nil {
				err = p.backward(st, i)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	if to-from == 1 {
		return p.backward(st, from)
	}
	middle := (from + to) / 2
	if err := p.inputOf(st, from, middle); err != nil {
		return err
	}
	if err := p.descend(st, middle, to); err != nil {
		return err
	}
	return p.descend(st, from, middle)
}

// inputOf makes the input of a unit from that of the last one before it that is held, which unit from is, and holds it.
func (p *prober) inputOf(st *staged, from, unit int) error {
	if _, held := st.held[unit]; held {
		return nil
	}
	for i := from + 1; i < unit; i++ {
		if _, held := st.held[i]; held {
			from = i
		}
	}
	in := input{p.shared(st.held[from].xs), p.shared(st.held[from].skips)}
	defer func() { in.free() }()
	for i := from; i < unit; i++ {
		err := attempt(st.all[i].name, func() error {
			defer p.c.Close()
			defer p.dropHeld()
			for _, l := range st.all[i].list {
				defer p.ready(l)()
			}
			p.xs, p.skips = in.xs, in.skips
			defer func() { p.xs, p.skips = nil, nil }()
			xs, skips := p.next(i)
			in.free()
			in = input{xs, skips}
			return nil
		})
		if err != nil {
			return err
		}
	}
	st.held[unit], in = in, input{}
	return nil
}

// backward measures the backwards of a unit, and leaves the gradients of its input.
func (p *prober) backward(st *staged, i int) error {
	out := &st.all[i]
	in := st.held[i]
	p.tell(float64(len(p.layers)-st.last+sum(st.units[i+1:])) / float64(len(p.layers)))
	p.xs, p.skips = in.xs, in.skips
	defer func() {
		p.xs, p.skips = nil, nil
		in.free()
		delete(st.held, i)
	}()
	return attempt(out.name, func() error {
		defer p.c.Close()
		defer p.dropHeld()
		for _, l := range out.list {
			defer p.ready(l)()
		}
		for _, kind := range p.kinds() {
			p.c.Refill(p.left[kind].all())
			p.backOf(st, i, kind)
			p.left[kind].hollow()
		}
		if p.Split {
			last := p.kinds()[len(p.kinds())-1]
			b := &out.backs[last]
			out.leaves.settle(&st.flows.back[last], i, b.madeThen-b.second.delta)
			if !p.BytesOnly {
				out.share = b.share()
			}
		}
		return nil
	})
}

// backOf measures the backwards of a kind of a unit.
func (p *prober) backOf(st *staged, i int, kind remat.BackwardKind) {
	out := &st.all[i]
	if kind == remat.MakesLater && !out.passes { // the gradients of parameters are there
		out.leaves = p.parts(st, i)
	}
	b := &out.backs[kind]
	if p.FirstOnly {
		*b = p.back(st, i, kind, nothing, func(*storage) bool { return false })
		return
	}
	all := st.next != nil && i == len(st.units)-1 // the gradients are the next stage's
	deferred := st.deferred(i, kind)
	if all {
		r := p.back(st, i, kind, gradientsAlone, func(*storage) bool { return true })
		b.held, b.heldThen = r.first.peak, r.second.peak
		if theirs := st.deferredByNext(kind); len(theirs) > 0 {
			b.next = p.back(st, i, kind, gradientsAlone, func(s *storage) bool { return theirs[s] }).first.peak
		}
	}
	if len(deferred) > 0 {
		b.deferred = p.back(st, i, kind, gradientsAlone, func(s *storage) bool { return deferred[s] }).first.peak
	}
	var then int64
	if kind >= remat.MakesLater {
		then = p.back(st, i, kind, everything, func(*storage) bool { return false }).second.peak
	}
	held, heldThen, after, next := b.held, b.heldThen, b.deferred, b.next
	*b = p.back(st, i, kind, nothing, func(*storage) bool { return false })
	b.held, b.deferred = max(held, b.first.peak), max(after, b.first.peak)
	b.heldThen, b.next = max(heldThen, b.second.peak), next
	b.second.peak = then
}

// copying says what a backward that is measured has copies of. One without copies leaves gradients to
// the unit before; others drop what they leave.
type copying int

const (
	nothing copying = iota
	gradientsAlone
	everything // also of its input, which the second part may be the last to hold
)

// back measures one backward. Meanwhile somebody else holds the input that is no copy, and those blocks
// of the output of the unit, and of its gradients, that held says.
func (p *prober) back(st *staged, i int, kind remat.BackwardKind, copies copying, held func(*storage) bool) (out backReading) {
	if kind == remat.Makes || kind == remat.MakesLater {
		for _, l := range st.all[i].list {
			zeroGrads(l)
		}
	}
	left, list := &p.left[kind], st.all[i].list
	f := &st.flows.back[kind]
	after := st.elements(i+1, st.flows.tuple[i+1])
	arrived := left.list(after)
	given := make([]uintptr, after.count())
	for k, t := range arrived {
		if t != nil {
			given[k] = p.hold(t)
		}
	}
	for k, t := range st.ties { // a replica has the gradient of one micro-batch
		if t.earlier && t.first == i && st.s.Uses(i, k) {
			st.s.TieTensor(k).SetGradOf(nil)
		}
	}
	before := gradBytes(list)
	in := input{p.xs, p.skips}
	if copies == everything {
		in = p.copyOf(st, i)
	}
	e := p.executeFrom(in, i)
	if copies == everything {
		in.free()
	}
	e.Again(i)
	p.do(e, remat.Op{Kind: remat.ForwardSave, Layer: i})
	e.Defer = kind >= remat.MakesLater

	var others []*torch.Tensor
	hold := func(elements []*torch.Tensor, states []*storage) {
		for k, t := range elements {
			if t != nil && states[k] != nil && held(states[k]) {
				others = append(others, p.owned(p.c.Keep(p.c.Detach(t))))
			}
		}
	}
	ys, stashed := e.Saved(i)
	hold(slices.Concat(ys, stashed), st.flows.states[i+1])
	hold(arrived, f.states[i+1])
	if copies != nothing {
		own := left.copied(p, func(id uintptr) bool {
			k := slices.Index(given, id)
			return held(f.states[i+1][k])
		})
		left = &own
		defer left.free()
	}
	left.give(st, i, e)
	out.first = p.do(e, remat.Op{Kind: remat.Backward, Layer: i})
	left.take(p, st, i, e)
	torch.FreeAll(others)
	out.made = gradBytes(list) - before
	if copies == nothing {
		f.goes(i, given, left.list(st.elements(i, st.flows.tuple[i])), list)
	}
	if e.Defer {
		out.second = p.read(func() { e.Weights(p.c) })
		out.madeThen = gradBytes(list) - before - out.made
	}
	e.Free()
	return out
}

// copyOf is the input of unit i. What has memory of its own is copied, but for what the stage gets from
// the batch, which is held throughout.
func (p *prober) copyOf(st *staged, i int) input {
	states := st.flows.states[i]
	elements := p.shared(slices.Concat(p.xs, p.skips))
	for k, x := range elements {
		if x == nil {
			continue
		}
		_, bytes := x.Storage()
		s, users := states[k], 0
		for _, other := range states {
			if other == s {
				users++
			}
		}
		if s == nil || s.first == 0 && st.number == 0 || users > 1 || bytes != x.Numel()*x.DType().Size() || !x.IsContiguous() {
			continue
		}
		elements[k] = p.c.Keep(p.c.Clone(x))
		x.Free()
	}
	return input{elements[:len(p.xs)], elements[len(p.xs):]}
}

// deferred is the memory at the boundary after unit i that the units after it hold between the parts of
// a backward.
func (st *staged) deferred(i int, kind remat.BackwardKind) map[*storage]bool {
	if kind < remat.MakesLater {
		return nil
	}
	out := map[*storage]bool{}
	f := &st.flows.back[kind]
	there := func(s *storage) bool {
		return s != nil && (slices.Contains(st.flows.states[i+1], s) || slices.Contains(f.states[i+1], s))
	}
	for j := i + 1; j < len(st.all); j++ {
		for at, list := range map[*[]*storage][]int{&st.flows.states[j]: st.all[j].leaves.inputs, &st.flows.states[j+1]: st.all[j].leaves.outputs,
			&f.states[j]: st.all[j].leaves.going, &f.states[j+1]: st.all[j].leaves.given} {
			for _, k := range list {
				if s := (*at)[k]; there(s) {
					out[s] = true
				}
			}
		}
	}
	return out
}

// deferredByNext is the memory at the stage's end that the next one holds between the parts of a backward,
// but for skips.
func (st *staged) deferredByNext(kind remat.BackwardKind) map[*storage]bool {
	next, later := st.next, kind
	if later < remat.MakesLater {
		later += remat.MakesLater
	}
	n, theirs, out := len(st.units), next.deferred(-1, later), map[*storage]bool{}
	pair := func(sent, got []*storage) {
		for k := range min(next.flows.tuple[0], len(sent), len(got)) {
			if theirs[got[k]] {
				out[sent[k]] = true
			}
		}
	}
	pair(st.flows.states[n], next.flows.states[0])
	pair(st.flows.back[kind].states[n], next.flows.back[later].states[0])
	return out
}

// arrive makes what later stages have sent the gradients of the stage's output. That of the last one
// has those of ones.
func (p *prober) arrive(st *staged) {
	n := len(st.units)
	tuple := st.flows.tuple[n]
	for _, kind := range p.kinds() {
		left := &p.left[kind]
		if st.number < len(p.Balance)-1 {
			left.free()
			back := &p.returned[kind]
			left.xs, back.xs = back.xs, nil
			left.skips = make([][]*torch.Tensor, len(st.beyond))
			for _, r := range p.routes {
				if at := st.s.Leaves(r.Key); at >= 0 {
					left.skips[at] = back.skips[r.Key]
					delete(back.skips, r.Key)
				}
			}
			for k, t := range st.ties {
				if g := back.ties[t.owner]; t.later && g != nil {
					left.put(k, g)
					delete(back.ties, t.owner)
				}
			}
		}
		st.flows.back[kind].arrives(left.list(st.elements(n, tuple)))
	}
}

// ones gives the model's output gradients for all kinds of backwards. They lie like ones, and are zeros when their
// memory is given back: values do not count.
func (p *prober) ones(ys []*torch.Tensor) {
	for _, kind := range p.kinds() {
		left := &p.left[kind]
		left.xs = make([]*torch.Tensor, len(ys))
		for k, y := range ys {
			if y != nil && y.RequiresGrad() && !slices.Contains(ys[:k], y) {
				left.xs[k] = p.c.Keep(p.c.OnesLike(y))
			}
		}
		left.hollow()
	}
}

// returned are gradients that stages send to earlier ones.
type returned struct {
	xs    []*torch.Tensor
	skips map[nn.SkipKey][]*torch.Tensor // of all pops by later stages, in their order
	ties  map[*nn.Param]*torch.Tensor
}

func (b *returned) all() []*torch.Tensor {
	out := slices.Clone(b.xs)
	for _, list := range b.skips {
		out = append(out, list...)
	}
	for _, t := range b.ties {
		out = append(out, t)
	}
	return out
}

func (b *returned) free() {
	torch.FreeAll(b.all())
	*b = returned{}
}

// depart sends the gradients of the stage's input to earlier stages.
func (p *prober) depart(st *staged) {
	for _, kind := range p.kinds() {
		left, back := &p.left[kind], &p.returned[kind]
		if st.number == 0 {
			left.free()
			continue
		}
		if back.skips == nil {
			back.skips, back.ties = map[nn.SkipKey][]*torch.Tensor{}, map[*nn.Param]*torch.Tensor{}
		}
		move := func(list []*torch.Tensor, to int) []*torch.Tensor {
			if !p.apart(st.number, to) {
				return list
			}
			defer torch.FreeAll(list)
			p.c.Refill(list)
			return p.transferred(list)
		}
		torch.FreeAll(back.xs)
		back.xs = move(left.xs, st.number-1)
		for key, sent := range p.sent {
			if at := st.s.Enters(key); at >= 0 && at < len(left.skips) {
				back.skips[key] = append(move(left.skips[at], sent.stage), back.skips[key]...)
				left.skips[at] = nil
			}
		}
		for k, t := range left.ties {
			owner := st.ties[k].owner
			back.ties[owner] = move([]*torch.Tensor{t}, p.userBefore(st, owner))[0]
		}
		left.xs, left.ties = nil, nil
		left.free()
		torch.Hollow(back.all())
	}
}

// userBefore is the last stage before one that uses a parameter.
func (p *prober) userBefore(st *staged, owner *nn.Param) int {
	stage, first := -1, 0
	for s, n := range p.Balance[:st.number] {
		for _, l := range p.layers[first : first+n] {
			if slices.ContainsFunc(nn.Shared(l.Layer), func(q nn.NamedParam) bool { return q.Owner() == owner }) {
				stage = s
			}
		}
		first += n
	}
	return stage
}

// backReading is what a backward takes.
type backReading struct {
	first, second  reading // the two parts; a whole one is a first
	made, madeThen int64   // bytes of gradients of parameters that the parts make
	// deferred is the peak of the first part where the units after it have deferred something, held where
	// another stage holds all of the output and its gradients, and heldThen that of the second part.
	deferred, held, heldThen int64
	next                     int64 // the first part's, where the next stage holds what it has deferred
}

// zeroGrads drops the gradients of a layer's parameters.
func zeroGrads(l nn.NamedLayer) {
	for _, s := range l.State() {
		if s.Trainable() {
			s.Tensor().SetGradOf(nil)
		}
	}
}

// gradBytes is the bytes of the gradients of the layers' parameters. Shared ones count once.
func gradBytes(list []nn.NamedLayer) (sum int64) {
	seen := map[*nn.Param]bool{}
	for _, l := range list {
		for _, s := range l.State() {
			if s.Trainable() && !seen[s.Owner()] && s.Tensor().HasGrad() {
				seen[s.Owner()] = true
				sum += s.Owner().Bytes()
			}
		}
	}
	return sum
}
