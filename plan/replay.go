package plan

import (
	"maps"
	"slices"

	"penstock.example/remat"
	"penstock.example/schedule"
)

// replay is the bytes of a device over its actions, block by block, operation by operation. A value
// for another worker waits as long as the program lets it.
//
//	worker 0   0F1  0F1>1  0F2  ...   1>0B0  0B0        0F1 has made x, and 1>0B0 cannot start
//	waits           x      x    x     y                  before x was received
//
// Micro-batches share no memory, so each is replayed by itself and their bytes add up.
type replay struct {
	p      *Plan
	g      *schedule.Graph
	latest []int // see schedule.Graph.LatestReceives
	worker int
	ids    [][]int     // by micro-batch: its actions on the worker
	parts  []bytesOver // by micro-batch
	all    bytesOver   // of all micro-batches and of reductions
}

// bytesOver is the bytes of a micro-batch over the actions of a device.
type bytesOver struct {
	before, after []int64 // by action: the change when it begins, and from there to its end
	peak          []int64 // by action: the most during it above the bytes when it begins
}

func newBytesOver(actions int) bytesOver {
	list := make([]int64, 3*actions)
	return bytesOver{list[:actions], list[actions : 2*actions], list[2*actions:]}
}

func (p *Plan) newReplay(g *schedule.Graph, latest []int, worker int) *replay {
	r := &replay{p: p, g: g, latest: latest, worker: worker, ids: make([][]int, p.MicroBatches()),
		parts: make([]bytesOver, p.MicroBatches())}
	first, end := g.First[worker], g.First[worker+1]
	r.all = newBytesOver(end - first)
	reduction := int64(0)
	for id := first; id < end; id++ {
		a := g.Actions[id]
		if a.Kind != schedule.Reduce {
			r.ids[a.MicroBatch] = append(r.ids[a.MicroBatch], id)
			continue
		}
		// It continues during later actions, one reduction after the other.
		if more := p.Stages[a.Stage].memory.Reduction - reduction; more > 0 {
			r.all.after[id-first], r.all.peak[id-first] = more, more
			reduction += more
		}
	}
	for i := range r.parts {
		r.parts[i] = newBytesOver(end - first)
		r.update(i)
	}
	return r
}

// update replays a micro-batch after its operations have changed.
func (r *replay) update(microBatch int) {
	old, now := r.parts[microBatch], r.bytesOf(microBatch)
	for k := range now.before {
		r.all.before[k] += now.before[k] - old.before[k]
		r.all.after[k] += now.after[k] - old.after[k]
		r.all.peak[k] += now.peak[k] - old.peak[k]
	}
	r.parts[microBatch] = now
}

func (r *replay) bytesOf(microBatch int) bytesOver {
	m := &micro{replay: r, out: newBytesOver(len(r.all.peak)), microBatch: microBatch,
		first:  r.g.First[r.worker],
		states: map[int]*inFlight{}, due: map[int][]*block{}, sent: map[schedule.Action]map[[3]int]*block{}}
	m.run()
	return m.out
}

// peak returns the device's peak, without its base. It calls visit, which may be nil, with each action,
// the action's peak, and the bytes held at its end.
func (r *replay) peak(visit func(a schedule.Action, peak, live int64)) (most int64) {
	live := int64(0)
	for k, before := range r.all.before {
		live += before
		peak := live + r.all.peak[k]
		live += r.all.after[k]
		most = max(most, peak, live)
		if visit != nil {
			visit(r.g.Actions[r.g.First[r.worker]+k], max(peak, live), live)
		}
	}
	return most
}

// micro replays one micro-batch on all stages of a device.
type micro struct {
	*replay
	out        bytesOver
	microBatch int
	first      int   // id of the worker's first action
	at         int   // index of the action under way
	live       int64 // bytes of the micro-batch
	most       int64 // of live in the action under way
	// gathered is the statistics of deferred batch norms. They stay until the last micro-batch's forward
	// is over.
	gathered int64
	states   map[int]*inFlight                     // by stage
	due      map[int][]*block                      // by action: the blocks that wait until it begins
	sent     map[schedule.Action]map[[3]int]*block // by receive on the same worker
}

func (r *micro) run() {
	ids := r.ids[r.microBatch]
	for k, id := range ids {
		next := r.first + len(r.out.peak)
		if k+1 < len(ids) {
			next = ids[k+1]
		}
		r.endWait(id)
		r.at, r.most = id-r.first, r.live
		before := r.live
		r.do(r.g.Actions[id])
		r.out.peak[r.at] = max(r.most, r.live) - before
		r.out.after[r.at] += r.live - before
		if r.gathered > 0 {
			last, _ := r.g.IndexOf(schedule.Action{Kind: schedule.Forward, Stage: r.g.Actions[id].Stage,
				MicroBatch: r.p.MicroBatches() - 1})
			r.out.after[last-r.first] -= r.gathered
			r.live, r.gathered = r.live-r.gathered, 0
		}
		for len(r.due) > 0 {
			until := slices.Min(slices.Collect(maps.Keys(r.due)))
			if until >= next {
				break
			}
			r.endWait(until)
		}
	}
}

// endWait drops the blocks that wait until an action begins.
func (r *micro) endWait(id int) {
	before := r.live
	r.drop(r.due[id])
	delete(r.due, id)
	if at := id - r.first; at < len(r.out.before) {
		r.out.before[at] += r.live - before
	}
}

// block is memory that exists as long as it has holders.
type block struct {
	bytes   int64
	holders int
}

// inFlight is a micro-batch on a stage.
type inFlight struct {
	fp       *remat.Footprint
	inputs   [][]*block // by boundary, by element; nil if they are not held
	inGraph  []bool     // by boundary: the inputs are part of the graph of a forward with gradients
	saved    []*block   // by unit: the rest of the graph
	ran      []bool     // by unit: its forward
	lossDone bool       // the loss step is over, so that the output was sent
	grads    [][]*block // by boundary, by element
	kind     remat.BackwardKind
	deferred []*remat.UnitBackward // second parts to come
}

// notePeak notes temporary bytes beyond the live ones.
func (r *micro) notePeak(bytes int64) { r.most = max(r.most, r.live+bytes) }

func (r *micro) hold(list []*block) { r.change(list, 1) }
func (r *micro) drop(list []*block) { r.change(list, -1) }

func (r *micro) change(list []*block, holders int) {
	for _, b := range list {
		if b == nil {
			continue
		}
		before := b.holders
		if b.holders += holders; before == 0 {
			r.live += b.bytes
		} else if b.holders == 0 {
			r.live -= b.bytes
		}
	}
}

func (r *micro) do(a schedule.Action) {
	m := r.stateOf(a)
	switch a.Kind {
	case schedule.ReceiveActivation:
		r.receive(a, m.inputs, 0, m.fp.Inputs, m.fp.Arrives)
	case schedule.ReceiveGradient:
		n := len(m.fp.Units)
		b := m.backward()
		r.receive(a, m.grads, n, b.Gradients, b.Arrives)
	case schedule.Forward:
		r.forward(m, a)
	case schedule.Recompute:
		r.beginLoss(m, a)
		_, again, _ := Split(r.ops(a))
		r.operations(m, a, again)
	case schedule.Backward, schedule.BackwardInput:
		r.beginLoss(m, a)
		_, _, back := Split(r.ops(a))
		r.operations(m, a, back)
		r.sendGradients(m, a)
	case schedule.BackwardWeight:
		for _, u := range m.deferred {
			r.notePeak(u.LeftPeak)
			r.live += u.LeftWeights - u.Left
		}
	}
	if a.Kind == schedule.BackwardWeight || a.Kind == schedule.Backward {
		delete(r.states, a.Stage)
	}
}

func (r *micro) ops(a schedule.Action) []remat.Op {
	return r.p.Stages[a.Stage].MicroBatches[a.MicroBatch].Ops
}

func (r *micro) stateOf(a schedule.Action) *inFlight {
	m := r.states[a.Stage]
	if m == nil {
		s := &r.p.Stages[a.Stage]
		fp := s.footprint(a.MicroBatch)
		n := len(fp.Units)
		m = &inFlight{fp: fp, inputs: make([][]*block, n+1), inGraph: make([]bool, n+1),
			saved: make([]*block, n), ran: make([]bool, n), grads: make([][]*block, n+1),
			kind: r.p.backwardKind(r.g, a.Stage, a.MicroBatch)}
		r.states[a.Stage] = m
	}
	return m
}

func (p *Plan) backwardKind(g *schedule.Graph, stage, microBatch int) remat.BackwardKind {
	kind := remat.Adds
	if microBatch == 0 && !p.Stages[stage].memory.Gradients {
		kind = remat.Makes
	}
	if _, split := g.IndexOf(schedule.Action{Kind: schedule.BackwardInput, Stage: stage,
		MicroBatch: microBatch}); split {
		kind += remat.MakesLater
	}
	return kind
}

func (m *inFlight) backward() *remat.BackwardBytes { return m.fp.ByKind(m.kind) }

// blocksOf makes the blocks of the tensors at a boundary. others are the blocks at boundary other.
// A tensor that shares memory with one there gets its block.
func blocksOf(of remat.Blocks, boundary, other int, others []*block) []*block {
	known := map[int]*block{}
	if others != nil {
		for k, b := range of.At[other] {
			if b >= 0 {
				known[b] = others[k]
			}
		}
	}
	out := make([]*block, len(of.At[boundary]))
	for k, b := range of.At[boundary] {
		if b < 0 {
			continue
		}
		if known[b] == nil {
			known[b] = &block{bytes: of.Bytes[b]}
		}
		out[k] = known[b]
	}
	return out
}

// transferred is a tensor that moves between two stages.
type transferred struct {
	at  int    // its index at the boundary
	key [3]int // the same at both ends
}

// moves lists the tensors that an action moves: the tuple between neighbours, skips, and gradients of
// both and of ties. parcel is the tensors at the boundary.
func (p *Plan) moves(a schedule.Action, parcel remat.Parcel) (list []transferred) {
	earlier, later := min(a.Peer, a.Stage), max(a.Peer, a.Stage)
	forward := a.Kind == schedule.SendActivation || a.Kind == schedule.ReceiveActivation
	if later == earlier+1 {
		for k := range parcel.Tuple {
			list = append(list, transferred{k, [3]int{0, 0, k}})
		}
	}
	start := len(parcel.Tuple)
	for place, pops := range parcel.Skips {
		for i, s := range p.skips {
			if s.From != earlier || s.To != later {
				continue
			}
			for k := range pops {
				switch {
				case a.Stage == later && s.ToPlace == place:
					list = append(list, transferred{start + k, [3]int{1, i, k}})
				case a.Stage == earlier && s.FromPlace == place && forward:
					list = append(list, transferred{start + k, [3]int{1, i, k}})
				case a.Stage == earlier && s.FromPlace == place && s.first <= k && k < s.first+s.Pops:
					list = append(list, transferred{start + k, [3]int{1, i, k - s.first}})
				}
			}
		}
		start += len(pops)
	}
	for place := range parcel.Ties {
		for i, t := range p.ties {
			if !forward && t.Earlier == earlier && t.Later == later &&
				(a.Stage == later && t.LaterPlace == place || a.Stage == earlier && t.EarlierPlace == place) {
				list = append(list, transferred{start + place, [3]int{2, i, 0}})
			}
		}
	}
	return list
}

// receive adds the tensors that arrive at a boundary. From another device they are copies.
func (r *micro) receive(a schedule.Action, into [][]*block, boundary int, of remat.Blocks,
	parcel remat.Parcel) {
	if into[boundary] == nil {
		into[boundary] = make([]*block, len(of.At[boundary]))
	}
	sent, same := r.sent[a]
	delete(r.sent, a)
	fresh := map[int]*block{}
	for _, m := range r.p.moves(a, parcel) {
		to := into[boundary][m.at : m.at+1]
		if same {
			to[0] = sent[m.key]
			continue
		}
		if b := of.At[boundary][m.at]; b >= 0 {
			if fresh[b] == nil {
				fresh[b] = &block{bytes: of.Bytes[b]}
			}
			to[0] = fresh[b]
		}
		r.hold(to)
	}
}

// forward performs a forward and sends its output.
func (r *micro) forward(m *inFlight, a schedule.Action) {
	s := &r.p.Stages[a.Stage]
	if a.Stage == 0 {
		m.inputs[0] = blocksOf(m.fp.Inputs, 0, 0, nil)
		for _, b := range m.inputs[0] {
			if b != nil && s.memory.BatchInput {
				b.bytes = 0
			}
		}
		r.hold(m.inputs[0])
	}
	ops, _, _ := Split(r.ops(a))
	r.operations(m, a, ops)
	n := len(m.fp.Units)
	out := m.inputs[n]
	if m.inGraph[n] {
		m.inputs[n] = m.kept(out)
		r.hold(m.inputs[n])
	} else {
		m.inputs[n] = nil
	}
	if a.Stage == len(r.p.Stages)-1 {
		r.drop(out)
	} else {
		r.send(a, schedule.SendActivation, out, m.fp.Leaves)
	}
	if a.MicroBatch == r.p.MicroBatches()-1 && slices.ContainsFunc(s.footprint(0).Units,
		func(u remat.UnitBytes) bool { return u.Statistics > 0 }) {
		r.notePeak(m.fp.Commit)
	}
}

// kept is the part of the stage's output that its graph needs.
func (m *inFlight) kept(out []*block) []*block {
	list := slices.Clone(out)
	for k, is := range m.fp.Released {
		if is {
			list[k] = nil
		}
	}
	return list
}

// send sends the tensors at a boundary to other stages. For another worker they wait until it has
// received them.
func (r *micro) send(a schedule.Action, kind schedule.Kind, list []*block, parcel remat.Parcel) {
	for stage := range r.p.Stages {
		if stage == a.Stage || (stage > a.Stage) != (kind == schedule.SendActivation) {
			continue
		}
		send := schedule.Action{Kind: kind, Stage: a.Stage, MicroBatch: a.MicroBatch, Peer: stage}
		id, found := r.g.IndexOf(send)
		receive, ok := r.g.IndexOf(send.Matching())
		if !found || !ok {
			continue
		}
		var out []*block
		sent := map[[3]int]*block{}
		for _, m := range r.p.moves(send, parcel) {
			out = append(out, list[m.at])
			sent[m.key] = list[m.at]
		}
		r.hold(out)
		if r.g.Worker[receive] == r.worker {
			r.sent[send.Matching()] = sent
		} else {
			until := max(id+1, r.latest[receive])
			r.due[until] = append(r.due[until], out...)
		}
	}
	r.drop(list)
}

// sendGradients sends the gradients of the stage's input to earlier stages.
func (r *micro) sendGradients(m *inFlight, a schedule.Action) {
	if memory := &r.p.Stages[a.Stage].memory; a.Stage == 0 && memory.InputGradient > 0 {
		r.notePeak(memory.InputGradient)
		if a.MicroBatch == 0 && !memory.InputHasGradient {
			r.live += memory.InputGradient
		}
	}
	if list := m.grads[0]; list != nil {
		r.send(a, schedule.SendGradient, list, m.backward().Leaves)
	}
	for b := range m.grads {
		if b > 0 {
			r.drop(m.grads[b]) // of a prologue
		}
		m.grads[b] = nil
	}
	for b := range m.inputs {
		r.drop(m.inputs[b])
		m.inputs[b] = nil
	}
}

// beginLoss makes the gradient of the loss, on the last stage.
func (r *micro) beginLoss(m *inFlight, a schedule.Action) {
	n := len(m.fp.Units)
	if a.Stage < len(r.p.Stages)-1 || m.grads[n] != nil {
		return
	}
	m.grads[n] = blocksOf(m.backward().Gradients, n, n, nil)
	r.hold(m.grads[n])
	r.notePeak(0)
}

func (r *micro) operations(m *inFlight, a schedule.Action, ops []remat.Op) {
	for _, op := range ops {
		switch i := op.Layer; op.Kind {
		case remat.Forward, remat.ForwardKeep, remat.ForwardSave:
			r.unitForward(m, a, i, op.Kind)
		case remat.LossStep:
			m.lossDone = true
			if n := len(m.fp.Units); m.fp.AtOnce && a.Stage == len(r.p.Stages)-1 {
				r.beginLoss(m, a)
				r.notePeak(m.fp.LossTmp)
				if !m.inGraph[n] {
					r.drop(m.inputs[n])
					m.inputs[n] = nil
				}
			}
		case remat.Backward:
			r.unitBackward(m, i)
		}
	}
}

func (r *micro) unitForward(m *inFlight, a schedule.Action, i int, kind remat.Kind) {
	u, run := &m.fp.Units[i], remat.Again
	switch {
	case !m.ran[i] && a.MicroBatch == 0:
		run = remat.FirstOfStep
	case !m.ran[i]:
		run = remat.FirstOfBatch
	}
	m.ran[i] = true
	if kind == remat.ForwardSave {
		r.notePeak(u.Save[run])
	} else {
		r.notePeak(u.Keep[run])
	}
	m.inputs[i+1] = blocksOf(m.fp.Inputs, i+1, i, m.inputs[i])
	r.hold(m.inputs[i+1])
	if run == remat.FirstOfStep && u.Statistics > 0 {
		r.gathered += u.Statistics
		r.live += u.Statistics
	}
	switch kind {
	case remat.ForwardSave:
		m.inGraph[i+1], m.saved[i] = true, &block{bytes: u.Saved}
		r.hold(m.saved[i : i+1])
		if out := m.inputs[i+1]; m.lossDone && i == len(m.fp.Units)-1 {
			m.inputs[i+1] = m.kept(out)
			r.hold(m.inputs[i+1])
			r.drop(out)
		}
	case remat.Forward:
		r.dropInput(m, i)
	}
}

// dropInput drops x(i) unless it is part of a graph.
func (r *micro) dropInput(m *inFlight, i int) {
	if !m.inGraph[i] {
		r.drop(m.inputs[i])
		m.inputs[i] = nil
	}
}

func (r *micro) unitBackward(m *inFlight, i int) {
	b := m.backward()
	u, before := &b.Units[i], r.live
	m.grads[i] = blocksOf(b.Gradients, i, i+1, m.grads[i+1])
	r.hold(m.grads[i])
	r.live += u.Weights
	if m.kind >= remat.MakesLater {
		m.deferred = append(m.deferred, u)
		r.live += u.Left
	}
	stays := slices.Concat(m.inputs[i], m.grads[i])
	gone := append(append([]*block(nil), m.inputs[i+1]...), m.grads[i+1]...)
	r.drop(gone)
	r.drop(m.saved[i : i+1])
	m.inputs[i+1], m.inGraph[i+1], m.saved[i], m.grads[i+1] = nil, false, nil, nil
	r.most = max(r.most, before+u.Peak+heldElsewhere(gone, stays))
	r.dropInput(m, i)
}

// heldElsewhere returns the bytes of blocks that a unit's backward drops, but that the second part of a
// later unit's backward or another stage still holds. They may exist during the backward's peak.
func heldElsewhere(gone, stays []*block) (bytes int64) {
	seen := map[*block]bool{nil: true}
	for _, b := range stays {
		seen[b] = true
	}
	for _, b := range gone {
		if !seen[b] && b.holders > 0 {
			bytes += b.bytes
		}
		seen[b] = true
	}
	return bytes
}
