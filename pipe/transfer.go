package pipe

import (
	"slices"
	"sync"

	"penstock.example/internal/engine"
	"penstock.example/internal/link"
	"penstock.example/internal/stream"
	"penstock.example/schedule"
	"penstock.example/torch"
)

// eachMove visits the values of an action's parcel, or their gradients, in order: the output if the
// stages are neighbours, then the skips and ties of the later stage. skip and tie get the indices
// on the earlier and the later stage.
func (r *run) eachMove(a schedule.Action, output func(), skip, tie func(earlier, later int)) {
	from, to := min(a.Stage, a.Peer), max(a.Stage, a.Peer)
	if to == from+1 {
		output()
	}
	for i, s := range r.p.stages[to].skips {
		if s.from.stage == from {
			skip(s.from.index, i)
		}
	}
	for i, t := range r.p.stages[to].ties {
		if t.from.stage == from {
			tie(t.from.index, i)
		}
	}
}

// sendActivation sends a later stage the values of a forward, and parameters with micro-batch 0.
func (r *run) sendActivation(c *torch.Ctx, a schedule.Action) error {
	stage, state, wantsAll := r.p.stages[a.Stage], r.state(a), r.p.optimal()
	p, unshared := link.Parcel{Device: stage.Device}, int64(0)
	r.eachMove(a,
		func() {
			p.Add(state.outputValues(c, wantsAll))
			unshared = bytesOf(p) // or less, if the graph holds some
		},
		func(at, _ int) {
			if s := state.skips[at].sent; s != nil {
				_, bytes := s.Storage()
				unshared += bytes
			}
			p.Add(state.stashed(c, stage, at, wantsAll))
		},
		func(at, _ int) {
			if a.MicroBatch == 0 {
				p.Add(link.Values(c.Keep(c.Detach(stage.ties[at].tensor()))))
			}
		})
	return r.send(c, a, p, unshared)
}

// sendGradient sends an earlier stage the gradients of its values; nil are absent.
func (r *run) sendGradient(c *torch.Ctx, a schedule.Action) error {
	state := r.state(a)
	p := link.Parcel{Device: r.p.stages[a.Stage].Device}
	r.eachMove(a,
		func() {
			p.Add(link.Values(state.inGrad...))
			state.inGrad = nil
		},
		func(_, at int) {
			p.Add(link.Values(state.skips[at].popGrads...))
			state.skips[at].popGrads = nil
		},
		func(_, at int) {
			p.Add(link.Values(state.ties[at].sum))
			state.ties[at].sum = nil
		})
	return r.send(c, a, p, bytesOf(p))
}

// send sends a parcel. unshared is its bytes that nothing else holds until their backward.
func (r *run) send(c *torch.Ctx, a schedule.Action, p link.Parcel, unshared int64) error {
	receive, _ := r.program.IndexOf(a.Matching())
	r.parcelBytes[receive] = unshared
	p.Ready = r.p.workers[r.p.stages[a.Stage].worker].stream.Record()
	return r.linkOf(a).Send(c, a, p)
}

// outputValues returns the output for the next stage, without a graph. A value wants a gradient if
// the tensor requires one, if its graph is not made yet, or if the plan assumes one (wantsAll).
func (c *microBatch) outputValues(t *torch.Ctx, wantsAll bool) []link.Value {
	from, noGraph := c.output(), c.sent != nil
	c.sent = nil
	values := make([]link.Value, len(from))
	for i, x := range from {
		if k := slices.Index(from[:i], x); k >= 0 {
			values[i].Tensor = values[k].Tensor
			continue
		}
		trained := x.RequiresGrad()
		values[i] = link.Value{Tensor: x, Wants: wantsAll || noGraph || trained}
		if !noGraph || trained { // noGraph and trained: a parameter that a layer returned
			values[i].Tensor = t.Keep(t.Detach(x))
		}
		if noGraph && trained {
			defer x.Free()
		}
	}
	for k := range from {
		if !noGraph {
			c.execution.Release(t, c.execution.Units()-1, k)
		}
	}
	return values
}

// stashed returns a skip for the next stage that pops it, without a graph; nil if absent.
func (c *microBatch) stashed(t *torch.Ctx, stage *Stage, at int, wantsAll bool) []link.Value {
	s, from := &c.skips[at], c.skips[at].sent
	if _, skips, saved := c.execution.Output(); from == nil && saved {
		from = skips[stage.skips[at].place]
	}
	var v link.Value
	if from != nil {
		v.Tensor, v.Wants = t.Keep(t.Detach(from)), wantsAll || s.sent != nil || from.RequiresGrad()
	}
	if s.left--; s.left == 0 {
		s.sent.Free()
		s.sent = nil
	}
	return []link.Value{v}
}

func (r *run) receiveActivation(c *torch.Ctx, a schedule.Action) error {
	stage, state := r.p.stages[a.Stage], r.state(a)
	p, err := r.linkOf(a).Receive(c, a.Matching())
	if err != nil {
		return err
	}
	defer p.Free()
	r.eachMove(a,
		func() { state.in.Tensors, state.in.Wants = r.takeActivations(c, a, &p, stage.first-1) },
		func(_, at int) {
			in, place := &state.in, stage.skips[at].place
			if in.Skips == nil {
				in.Skips, in.WantsSkips = make([]*torch.Tensor, stage.entering), make([]bool, stage.entering)
			}
			ts, wants := r.takeActivations(c, a, &p, stage.skips[at].stash)
			in.Skips[place], in.WantsSkips[place] = ts[0], wants[0]
		},
		func(_, at int) {
			if a.MicroBatch > 0 {
				return
			}
			value, from := p.Lists[0][0].Tensor, p.Device
			if _, queued := r.p.route(a.Peer, a.Stage); queued {
				value = r.takeTensors(c, a, &p)[0]
			} else {
				p.Take()
			}
			r.p.refresh(c, stage, stage.ties[at], value, from)
			value.Free()
		})
	return nil
}

// takeActivations takes the next list out of a parcel. layer is the one that made it. wants says
// which tensors get a gradient: all if the batch's input wants one, or if a layer up to this one is
// trained.
func (r *run) takeActivations(c *torch.Ctx, a schedule.Action, p *link.Parcel, layer int) (
	out []*torch.Tensor, wants []bool) {
	list := p.Lists[0]
	out, wants = r.takeTensors(c, a, p), make([]bool, len(list))
	for i, t := range out {
		wants[i] = t != nil && list[i].Wants && r.withBackward && t.DType().IsFloat() &&
			(layer >= r.p.firstTrained || r.inputGrad)
	}
	return out, wants
}

func (r *run) receiveGradient(c *torch.Ctx, a schedule.Action) error {
	stage, state := r.p.stages[a.Stage], r.state(a)
	p, err := r.linkOf(a).Receive(c, a.Matching())
	if err != nil {
		return err
	}
	defer p.Free()
	r.eachMove(a,
		func() { state.outGrad = r.takeTensors(c, a, &p) },
		func(at, later int) {
			use := slices.Index(stage.skips[at].to, location{a.Peer, later})
			state.skips[at].grads[use] = r.takeTensors(c, a, &p)
		},
		func(at, _ int) { state.ties[at].later = r.takeTensors(c, a, &p)[0] })
	return nil
}

// copyStreams are the streams for copies, one for each pair of workers in each direction.
type copyStreams struct {
	mu   sync.Mutex
	of   map[[2]int]stream.Stream         // by sending and receiving worker
	open func(from, to int) stream.Stream // in tests
}

// route has the streams of moves between two stages of this process. queued is false if both are on
// CPUs, which copy at once.
func (p *Pipe) route(from, to int) (r stream.Route, queued bool) {
	pair := [2]int{p.stages[from].worker, p.stages[to].worker}
	a, b := p.workers[pair[0]], p.workers[pair[1]]
	if a == nil || b == nil || a.stream == b.stream {
		return r, false
	}
	p.copies.mu.Lock()
	defer p.copies.mu.Unlock()
	copies := p.copies.of[pair]
	if copies == nil {
		if p.copies.open != nil {
			copies = p.copies.open(pair[0], pair[1])
		} else if copies = engine.NewStream(a.device); copies == (stream.Host{}) {
			copies = engine.NewStream(b.device)
		}
		if p.copies.of == nil {
			p.copies.of = map[[2]int]stream.Stream{}
		}
		p.copies.of[pair] = copies
	}
	return stream.Route{From: a.stream, Copies: copies, To: b.stream}, true
}

// takeTensors takes the next list out of a parcel and brings it to the receiving stage's device.
// Tensors of another device or stream are copied and then freed. The result belongs to the receiver
// and is kept.
func (r *run) takeTensors(c *torch.Ctx, receive schedule.Action, p *link.Parcel) []*torch.Tensor {
	list := p.Take()
	out := make([]*torch.Tensor, len(list))
	for i, v := range list {
		out[i] = v.Tensor
	}
	route, queued := r.p.route(receive.Peer, receive.Stage)
	if p.Device == r.p.stages[receive.Stage].Device && (!queued || p.Ready == nil) {
		return out
	}
	once, at := engine.Distinct(out)
	free := func() { torch.FreeAll(once) }
	defer free()
	here := make([]*torch.Tensor, len(once))
	each := func(f func(i int, t *torch.Tensor)) {
		for i, t := range once {
			if t != nil {
				f(i, t)
			}
		}
	}
	if queued {
		route.Move(p.Ready,
			func() { each(func(i int, t *torch.Tensor) { here[i] = engine.MemoryLike(c, t) }) },
			func() { each(func(i int, t *torch.Tensor) { engine.CopyOn(c, route.Copies, here[i], t) }) },
			free)
	} else {
		each(func(i int, t *torch.Tensor) { here[i] = c.CopyHere(t) })
	}
	for i := range out { // when no copy has failed
		out[i] = c.Keep(here[at[i]])
	}
	return out
}

// awaitCaller makes the worker's stream wait for the work that the job's caller has queued. The
// host does not wait until drain. After a failure the next operator fails, too.
func (w *worker) awaitCaller() { _ = torch.Try(func() { stream.Begin(w.stream, w.caller) }) }

// drain waits for all queued work of the worker. It panics if the work has failed.
func (w *worker) drain() { stream.End(stream.Host{}, w.stream) }
