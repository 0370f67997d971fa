package stream_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	_ "penstock.example/internal/draws" // sets the number of draws
	"penstock.example/internal/must"
	"penstock.example/internal/stream"
	"penstock.example/schedule"
	"pgregory.net/rapid"
)

// job is a program that is run on made-up GPUs, as package pipe runs one: hosts queue the actions of
// their workers in order, and wait for actions of others to be queued, not to be done.
type job struct {
	g       *gpus
	graph   *schedule.Graph
	move    func(r stream.Route, ready stream.Event, allocate, copy, free func())
	caller  *fake
	compute []*fake // by worker
	copies  map[[2]int]*fake

	step    int
	next    []int  // by worker: its next action
	within  []bool // by worker: its host is in an action
	queued  []bool // by id
	sent    map[schedule.Action]parcel
	here    map[schedule.Action]*block // what was received, by send, until it is not needed
	sums    []*block                   // by stage: the sum of gradients
	sumText []string
	batch   []*block // by micro-batch
	split   bool
	stage0  int // its worker

	ways     map[[2]int]*between // of workers that are processes, by sender and receiver; else nil
	rooms    map[schedule.Action]room
	left     map[schedule.Action]leaving // what was sent and not freed
	received map[schedule.Action]bool
	meet     bool // nothing waits on links
	ended    bool // the hosts have queued all
}

// parcel is a value on its way.
type parcel struct {
	ready stream.Event
	value *block
	text  string
}

func newJob(g *gpus, p *schedule.Program) *job {
	j := &job{g: g, graph: p.Graph(), meet: p.Capacity == schedule.Meet, move: stream.Route.Move,
		caller: g.stream("caller"), copies: map[[2]int]*fake{}}
	for w := range p.Workers {
		j.compute = append(j.compute, g.stream(fmt.Sprintf("worker %d", w)))
	}
	for from := range p.Workers {
		for to := range p.Workers {
			if from != to {
				j.copies[[2]int{from, to}] = g.stream(fmt.Sprintf("copies %d>%d", from, to))
			}
		}
	}
	for id, a := range j.graph.Actions {
		j.split = j.split || a.Kind == schedule.BackwardWeight
		if a.Stage == 0 {
			j.stage0 = j.graph.Worker[id]
		}
	}
	return j
}

func (j *job) text(a schedule.Action) string { return fmt.Sprintf("%v of step %d", a, j.step) }

// run is a step: the caller makes the batch, the workers do the program, and the caller reads the
// sums of gradients and gives the batch back.
func (j *job) run(stages, microBatches int) {
	j.step++
	j.ended = false
	j.next, j.within = slices.Clone(j.graph.First[:len(j.compute)]), make([]bool, len(j.compute))
	j.queued = make([]bool, len(j.graph.Actions))
	j.sent, j.here, j.received = map[schedule.Action]parcel{}, map[schedule.Action]*block{},
		map[schedule.Action]bool{}
	j.sums, j.sumText, j.batch = make([]*block, stages), make([]string, stages), nil
	for i := range microBatches {
		b := j.caller.allocate()
		j.caller.put(b, j.batchText(i))
		j.batch = append(j.batch, b)
	}
	for _, s := range j.compute {
		stream.Begin(s, j.caller)
	}
	j.g.others = func() { j.somebody() }
	for !slices.Equal(j.next, j.graph.First[1:]) {
		if !j.somebody() {
			panic("no host can go on")
		}
	}
	j.g.others, j.ended = nil, true
	for w, s := range j.compute {
		j.settle(w, true)
		stream.End(host{j.g}, s)
	}
	for s, b := range j.sums {
		if b != nil && b.holds != j.sumText[s] {
			j.g.fault("the caller read %q as the gradient of stage %d, want %q", b.holds, s, j.sumText[s])
		}
	}
	for _, b := range j.batch {
		j.caller.free(b)
	}
	for id, a := range j.graph.Actions {
		if s := j.sums[a.Stage]; s != nil {
			j.compute[j.graph.Worker[id]].free(s)
			j.sums[a.Stage] = nil
		}
	}
	if len(j.sent) > 0 {
		j.g.fault("%d values were not received", len(j.sent))
	}
}

func (j *job) batchText(i int) string { return fmt.Sprintf("batch %d of step %d", i, j.step) }

// somebody has a host that can go on do its next action.
func (j *job) somebody() bool {
	for _, w := range j.g.random.Perm(len(j.next)) {
		id := j.next[w]
		if j.within[w] || id == j.graph.First[w+1] ||
			slices.ContainsFunc(j.graph.Deps[id], func(dep int) bool { return !j.queued[dep] }) {
			continue
		}
		j.within[w] = true
		j.do(w, j.graph.Actions[id])
		j.next[w]++
		j.queued[id], j.within[w] = true, false
		return true
	}
	return false
}

// peers are the transfers of a kind that a stage does for a micro-batch.
func (j *job) peers(a schedule.Action, kind schedule.Kind) (list []schedule.Action) {
	for _, b := range j.graph.Actions {
		if b.Kind == kind && b.Stage == a.Stage && b.MicroBatch == a.MicroBatch {
			list = append(list, b)
		}
	}
	return list
}

// do queues what an action does.
func (j *job) do(w int, a schedule.Action) {
	s := j.compute[w]
	what := a.String()
	if j.ways != nil {
		j.settle(w, false)
		j.expect(w)
	}
	switch a.Kind {
	case schedule.Forward:
		j.compute_(s, a, schedule.ReceiveActivation, schedule.SendActivation)
	case schedule.Recompute:
		scratch := s.allocate()
		s.put(scratch, what)
		s.see(what, scratch, what)
		s.free(scratch)
	case schedule.Backward:
		j.compute_(s, a, schedule.ReceiveGradient, schedule.SendGradient)
		j.weights(s, a)
	case schedule.BackwardInput:
		j.compute_(s, a, schedule.ReceiveGradient, schedule.SendGradient)
	case schedule.BackwardWeight:
		j.weights(s, a)
	case schedule.SendActivation, schedule.SendGradient:
		p := j.sent[a]
		p.ready = s.Record()
		j.sent[a] = p
		receive, _ := j.graph.IndexOf(a.Matching())
		if to := j.graph.Worker[receive]; j.ways != nil && to != w {
			j.sendAway(w, to, a)
		}
	case schedule.ReceiveActivation, schedule.ReceiveGradient:
		send := a.Matching()
		p := j.sent[send]
		delete(j.sent, send)
		id, _ := j.graph.IndexOf(send)
		from := j.graph.Worker[id]
		if from == w {
			j.here[send] = p.value
			return
		}
		if j.ways != nil {
			j.here[send] = j.receiveAway(w, from, send)
			return
		}
		var got *block
		copies := j.copies[[2]int{from, w}]
		j.move(stream.Route{From: j.compute[from], Copies: copies, To: s}, p.ready,
			func() { got = s.allocate() },
			func() { copies.do(func() { got.holds = p.value.holds }) },
			func() { j.compute[from].free(p.value) })
		j.here[send] = got
	}
}

// compute_ reads what was received and makes what is to be sent. What was received stays until the
// weights' gradients, or goes with backward's end.
func (j *job) compute_(s *fake, a schedule.Action, receives, sends schedule.Kind) {
	what := a.String()
	scratch := s.allocate()
	s.put(scratch, what)
	if a.Kind == schedule.Forward && a.Stage == 0 {
		s.see(what, j.batch[a.MicroBatch], j.batchText(a.MicroBatch))
	}
	for _, r := range j.peers(a, receives) {
		s.see(what, j.here[r.Matching()], j.text(r.Matching()))
	}
	for _, send := range j.peers(a, sends) {
		b := s.allocate()
		s.put(b, j.text(send))
		j.sent[send] = parcel{value: b, text: j.text(send)}
	}
	s.see(what, scratch, what)
	s.free(scratch)
}

// weights adds to the gradients, and frees what the micro-batch holds on the stage.
func (j *job) weights(s *fake, a schedule.Action) {
	what := a.String()
	for _, kind := range []schedule.Kind{schedule.ReceiveActivation, schedule.ReceiveGradient} {
		for _, r := range j.peers(a, kind) {
			send := r.Matching()
			s.see(what, j.here[send], j.text(send))
		}
	}
	if j.sums[a.Stage] == nil {
		j.sums[a.Stage] = s.allocate()
		s.put(j.sums[a.Stage], "")
	}
	sum, add := j.sums[a.Stage], j.text(a)
	s.do(func() { sum.holds += add })
	j.sumText[a.Stage] += add
	for _, kind := range []schedule.Kind{schedule.ReceiveActivation, schedule.ReceiveGradient} {
		for _, r := range j.peers(a, kind) {
			s.free(j.here[r.Matching()])
			delete(j.here, r.Matching())
		}
	}
}

// drawProgram draws a schedule by name, its size, chunks of devices and skips.
func drawProgram(t *rapid.T) *schedule.Program {
	s := rapid.SampledFrom(schedule.Schedules()).Draw(t, "schedule")
	devices := rapid.IntRange(1, 4).Draw(t, "devices")
	virtual := s.Virtual
	if virtual == 0 {
		virtual = rapid.IntRange(1, 3).Draw(t, "virtual")
	}
	n := devices * virtual
	var skips []schedule.Edge
	if n > 2 {
		for range rapid.IntRange(0, 2).Draw(t, "skips") {
			from := rapid.IntRange(0, n-3).Draw(t, "from")
			skips = append(skips, schedule.Edge{From: from, To: rapid.IntRange(from+2, n-1).Draw(t, "to")})
		}
	}
	p, err := s.Program(devices, virtual,
		schedule.Config{MicroBatches: rapid.IntRange(1, 6).Draw(t, "micro-batches"), Skips: skips,
			Capacity: rapid.IntRange(schedule.Meet, 2).Draw(t, "capacity")})
	if err != nil {
		t.Skip(err)
	}
	return p
}

// trial is two steps of a program on made-up GPUs. It returns what went wrong, or "".
func trial(p *schedule.Program, seed uint64, without stream.Reason, change func(*job)) string {
	g := newGPUs(seed, without)
	j := newJob(g, p)
	if change != nil {
		change(j)
	}
	for range 2 {
		j.run(p.Stages, p.MicroBatches)
	}
	g.finish()
	return g.wrong
}

// Whatever is late, everybody reads what was meant for him, with any program, in one process and in
// several.
func TestStreamsKeepTheOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawProgram(t)
		for _, change := range []func(*job){nil, apart} {
			if wrong := trial(p, rapid.Uint64().Draw(t, "seed"), stream.Reasons, change); wrong != "" {
				t.Fatalf("%s\n%v", wrong, p)
			}
		}
	})
}

// Each wait is needed, in one process and between processes: without it somebody reads what was not
// meant for him.
func TestEachWaitIsNeeded(t *testing.T) {
	needed := func(name string, without stream.Reason, change func(*job)) {
		found, trials := "", 0
		for ; found == "" && trials < 20000; trials++ {
			p := must.Get(mustNamed(t, "1f1b").Program(2+trials%3, 1,
				schedule.Config{MicroBatches: 4, Capacity: 2}))(t)
			found = trial(p, uint64(trials), without, change)
		}
		if found == "" {
			t.Errorf("%s: nothing went wrong in %d trials", name, trials)
		}
	}
	for without := range stream.Reasons {
		needed("without "+without.String(), without, nil)
		needed("apart without "+without.String(), without, apart)
	}
	needed("vacant recorded before the allocation", stream.Reasons, func(j *job) { j.move = early })
}

func mustNamed(t *testing.T, name string) schedule.Schedule {
	t.Helper()
	return must.Get(schedule.Named(name))(t)
}

// early is Move with one line elsewhere: the event after which the memory of the copy is vacant is
// recorded before the memory is allocated. Another host may free a block in between, and queue its
// wait after the event.
func early(r stream.Route, ready stream.Event, allocate, copy, free func()) {
	vacant := r.To.Record()
	allocate()
	r.Copies.Wait(ready, stream.Produced)
	r.Copies.Wait(vacant, stream.Vacant)
	copy()
	copied := r.Copies.Record()
	r.To.Wait(copied, stream.Arrived)
	r.From.Wait(copied, stream.Copied)
	free()
}

// A copy that fails leaves nothing behind: the values are freed after what it has queued. An
// allocation that fails changes nothing.
func TestMoveThatFails(t *testing.T) {
	for _, fails := range []string{"allocate", "copy"} {
		g := newGPUs(1, stream.Reasons)
		from, copies, to := g.stream("from"), g.stream("copies"), g.stream("to")
		freed := false
		func() {
			defer func() {
				if recover() != fails {
					t.Errorf("%s: it did not panic", fails)
				}
			}()
			at := func(name string) func() {
				return func() {
					if name == fails {
						panic(fails)
					}
				}
			}
			stream.Route{From: from, Copies: copies, To: to}.Move(from.Record(), at("allocate"), at("copy"),
				func() { freed = true })
		}()
		if freed != (fails == "copy") || (len(from.queue) > 0) != (fails == "copy") {
			t.Errorf("%s: freed %v, the sender waits %d times", fails, freed, len(from.queue))
		}
		g.finish()
	}
}

// between is what joins a worker to one of another process in one direction: what was queued at its
// two ends. Values have no names: the first that is sent is the first that is received.
type between struct {
	g        *gpus
	sends    []*passing // not begun or not ended
	receives []*passing
}

// passing is one end of a move.
type passing struct {
	value *block
	what  schedule.Action
	early bool   // a small value: it leaves before the receive has begun
	begun bool   // a receive
	holds string // what has left
	left  bool
}

// send is a step of a stream that ends when the value has left.
func (b *between) send(v *block, what schedule.Action) func() (ended, moved bool) {
	s := &passing{value: v, what: what, early: b.g.random.IntN(2) == 0}
	b.sends = append(b.sends, s)
	return func() (ended, moved bool) {
		if s.early || b.sends[0] == s && len(b.receives) > 0 && b.receives[0].begun {
			s.holds, s.left = v.holds, true
		}
		return s.left, false
	}
}

// receive is a step of a stream that ends when the value is there. Meanwhile its memory holds a part.
func (b *between) receive(v *block, what schedule.Action) func() (ended, moved bool) {
	r := &passing{value: v, what: what}
	b.receives = append(b.receives, r)
	return func() (ended, moved bool) {
		if !r.begun {
			r.begun, moved, v.holds = true, true, "a part of "+what.String()
		}
		if b.receives[0] != r || len(b.sends) == 0 || !b.sends[0].left {
			return false, moved
		}
		if b.sends[0].what != what {
			b.g.fault("%v was received for %v", b.sends[0].what, what)
		}
		v.holds = b.sends[0].holds
		b.sends, b.receives = b.sends[1:], b.receives[1:]
		return true, true
	}
}

// apart makes each worker of a job one of a process of its own.
func apart(j *job) {
	j.ways = map[[2]int]*between{}
	j.rooms = map[schedule.Action]room{}
	j.left = map[schedule.Action]leaving{}
	for pair := range j.copies {
		j.ways[pair] = &between{g: j.g}
		j.copies[[2]int{pair[0], -1 - pair[1]}] = j.g.stream(fmt.Sprintf("receives %d>%d", pair[0], pair[1]))
	}
}

type room struct {
	value  *block
	vacant stream.Event
}

type leaving struct {
	way   stream.Way
	event stream.Event
	value *block
}

// sendAway sends a value to another process, and frees values that were received there by now.
func (j *job) sendAway(w, to int, a schedule.Action) {
	p := j.sent[a]
	way := stream.Way{Own: j.compute[w], Copies: j.copies[[2]int{w, to}]}
	event, _ := way.Send(way.Own.Record(), func() error {
		way.Copies.(*fake).meet(j.ways[[2]int{w, to}].send(p.value, a))
		return nil
	})
	j.left[a] = leaving{way, event, p.value}
	if j.meet {
		j.settle(w, true)
	}
}

// settle frees what a worker has sent and was received, sooner or later, or all: at the end of a run,
// and where nothing waits on links, so that the stream waits for the receiver.
func (j *job) settle(w int, all bool) {
	for _, a := range j.graph.Actions {
		l, is := j.left[a]
		if is && l.way.Own == stream.Stream(j.compute[w]) &&
			(all || j.received[a] && j.g.random.IntN(2) == 0) {
			free := func() { j.compute[w].free(l.value) }
			if j.ended {
				l.way.Finish(host{j.g}, l.event, free)
			} else {
				l.way.Free(l.event, free)
			}
			if j.ended && !l.event.(*event).done() {
				j.g.fault("the caller goes on before %v has left", a)
			}
			delete(j.left, a)
		}
	}
}

// expect takes memory for a value that a worker will receive later, or does not.
func (j *job) expect(w int) {
	for id := j.next[w]; id < j.graph.First[w+1]; id++ {
		send := j.graph.Actions[id].Matching()
		from, is := j.graph.IndexOf(send)
		if !j.graph.Actions[id].Kind.Receive() || !is || j.graph.Worker[from] == w {
			continue
		}
		if _, is := j.rooms[send]; !is && j.g.random.IntN(3) == 0 {
			j.room(w, j.graph.Worker[from], send)
		}
		return
	}
}

func (j *job) way(from, w int) stream.Way {
	return stream.Way{Own: j.compute[w], Copies: j.copies[[2]int{from, -1 - w}]}
}

func (j *job) room(w, from int, send schedule.Action) {
	var r room
	r.vacant = j.way(from, w).Allocate(func() { r.value = j.compute[w].allocate() })
	j.rooms[send] = r
}

// receiveAway receives a value of another process. Its host has heard that the other one has queued
// the send.
func (j *job) receiveAway(w, from int, send schedule.Action) *block {
	if _, is := j.rooms[send]; !is {
		j.room(w, from, send)
	}
	r := j.rooms[send]
	delete(j.rooms, send)
	_ = j.way(from, w).Receive(r.vacant, func() error {
		j.copies[[2]int{from, -1 - w}].meet(j.ways[[2]int{from, w}].receive(r.value, send))
		return nil
	})
	j.received[send] = true
	return r.value
}

// Work queued beside a transfer that fails comes after it: what has left, or arrived, is known.
func TestAWayThatFails(t *testing.T) {
	g := newGPUs(1, stream.Reasons)
	own, copies := g.stream("own"), g.stream("copies")
	w := stream.Way{Own: own, Copies: copies}
	failure := fmt.Errorf("no memory")
	if left, err := w.Send(own.Record(), func() error { return failure }); left == nil || err != failure {
		t.Errorf("a send gave %v, %v", left, err)
	}
	if err := w.Receive(w.Allocate(func() {}), func() error { return failure }); err != failure ||
		len(own.queue) != 1 {
		t.Errorf("a receive gave %v, and the worker waits %d times", err, len(own.queue))
	}
	g.finish()
	if g.wrong != "" {
		t.Error(g.wrong)
	}
}

// gpus are made-up GPUs whose streams do their work late and in any order that events allow. Memory
// is handed out as libtorch's caching allocator does: a block that is freed serves the next
// allocation for the same stream, the youngest first.
//
// Everything runs on one goroutine. Whenever a host queues something, records, waits, allocates or
// frees, others go on first, or do not: streams by some steps, and other hosts by an action.
type gpus struct {
	random  *rand.Rand
	without stream.Reason // waits that are left out; Reasons for none
	streams []*fake
	others  func() // another host does something
	wrong   string // the first thing that went wrong
	blocks  int
}

// fake is a stream of made-up GPUs.
type fake struct {
	on    *gpus
	name  string
	queue []work
	ended int // how much of its work has ended
	freed []*block
}

// work is a step of a stream: a wait for an event, something that it does, or something that it tries
// until it has met another one.
type work struct {
	until *event
	do    func()
	meet  func() (ended, moved bool)
}

// event is done when so much of a stream's work has ended.
type event struct {
	of *fake
	at int
}

func (e *event) done() bool { return e.of.ended >= e.at }

// Synchronize has the streams work until the event is done.
func (e *event) Synchronize() {
	for !e.done() {
		if !e.of.on.step() {
			panic("streams wait for each other: " + e.of.name)
		}
	}
}

func (e *event) Free() {}

// block is memory. It holds a text.
type block struct {
	number int
	holds  string
}

func newGPUs(seed uint64, without stream.Reason) *gpus {
	return &gpus{random: rand.New(rand.NewPCG(seed, 0)), without: without}
}

func (g *gpus) stream(name string) *fake {
	s := &fake{on: g, name: name}
	g.streams = append(g.streams, s)
	return s
}

// step has a stream that can work do a step, and says whether there is one.
func (g *gpus) step() bool {
	for _, i := range g.random.Perm(len(g.streams)) {
		if g.streams[i].step() {
			return true
		}
	}
	return false
}

func (s *fake) step() bool {
	if s.ended == len(s.queue) {
		return false
	}
	w := s.queue[s.ended]
	if w.until != nil && !w.until.done() {
		return false
	}
	if w.meet != nil {
		if ended, moved := w.meet(); !ended {
			return moved
		}
	}
	if w.do != nil {
		w.do()
	}
	s.ended++
	return true
}

// pause lets others go on: often nobody, sometimes one stream alone and far, sometimes another host.
func (g *gpus) pause() {
	switch g.random.IntN(6) {
	case 0:
		s := g.streams[g.random.IntN(len(g.streams))]
		for range g.random.IntN(20) {
			if !s.step() {
				break
			}
		}
	case 1:
		for range g.random.IntN(10) {
			g.step()
		}
	case 2:
		if g.others != nil {
			g.others()
		}
	}
}

// finish has all streams do all of their work.
func (g *gpus) finish() {
	for g.step() {
	}
	for _, s := range g.streams {
		if s.ended < len(s.queue) {
			g.fault("%s waits for ever", s.name)
		}
	}
}

func (g *gpus) fault(format string, args ...any) {
	if g.wrong == "" {
		g.wrong = fmt.Sprintf(format, args...)
	}
}

func (s *fake) Record() stream.Event {
	s.on.pause()
	e := &event{s, len(s.queue)}
	s.on.pause()
	return e
}

func (s *fake) Wait(e stream.Event, why stream.Reason) {
	s.on.pause()
	if own, ok := e.(*event); ok && why != s.on.without {
		s.queue = append(s.queue, work{until: own})
	}
	s.on.pause()
}

// do queues something.
func (s *fake) do(f func()) {
	s.on.pause()
	s.queue = append(s.queue, work{do: f})
}

// meet queues something that is tried until it has ended. moved says that a try has changed something.
func (s *fake) meet(f func() (ended, moved bool)) {
	s.on.pause()
	s.queue = append(s.queue, work{meet: f})
}

// put queues that a block is written, and see that it is read and holds what is wanted.
func (s *fake) put(b *block, text string) { s.do(func() { b.holds = text }) }

func (s *fake) see(what string, b *block, want string) {
	s.do(func() {
		if b.holds != want {
			s.on.fault("%s: %s on %s read %q, want %q", s.name, what, s.name, b.holds, want)
		}
	})
}

// allocate takes memory that belongs to the stream.
func (s *fake) allocate() *block {
	s.on.pause()
	if n := len(s.freed); n > 0 {
		b := s.freed[n-1]
		s.freed = s.freed[:n-1]
		return b
	}
	s.on.blocks++
	return &block{number: s.on.blocks}
}

// free gives it back.
func (s *fake) free(b *block) {
	s.on.pause()
	s.freed = append(s.freed, b)
}

// host is the host as a stream of made-up GPUs.
type host struct{ on *gpus }

func (h host) Record() stream.Event { return stream.Host{}.Record() }

func (h host) Wait(e stream.Event, why stream.Reason) {
	if why != h.on.without {
		e.Synchronize()
	}
}
