package stream_test

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	_ "penstock.example/internal/draws" // sets the number of draws
	"penstock.example/internal/stream"
	"penstock.example/schedule"
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
	j := &job{g: g, graph: p.Graph(), meet: p.Capacity == schedule.Meet, move: stream.Route.Move, caller: g.stream("caller"), copies: map[[2]int]*fake{}}
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
	j.sent, j.here, j.received = map[schedule.Action]parcel{}, map[schedule.Action]*block{}, map[schedule.Action]bool{}
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
		if j.within[w] || id == j.graph.First[w+1] || slices.ContainsFunc(j.graph.Cross[id], func(dep int) bool { return !j.queued[dep] }) {
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
		j.compute_(s, a, schedule.ReceiveActivation, schedule.SendActivation, false)
	case schedule.Recompute:
		scratch := s.allocate()
		s.put(scratch, what)
		s.see(what, scratch, what)
		s.free(scratch)
	case schedule.Backward:
		j.compute_(s, a, schedule.ReceiveGradient, schedule.SendGradient, true)
		j.weights(s, a)
	case schedule.BackwardInput:
		j.compute_(s, a, schedule.ReceiveGradient, schedule.SendGradient, false)
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
func (j *job) compute_(s *fake, a schedule.Action, receives, sends schedule.Kind, _ bool) {
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
	p, err := s.Program(devices, virtual, schedule.Config{MicroBatches: rapid.IntRange(1, 6).Draw(t, "micro-batches"), Skips: skips,
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

// Each wait is needed: without it somebody reads what was not meant for him.
func TestEachWaitIsNeeded(t *testing.T) {
	changes := map[string]func(*job){"vacant recorded before the allocation": func(j *job) { j.move = early }}
	for without := range stream.Reasons {
		changes["without "+without.String()] = nil
	}
	for name, change := range changes {
		without := stream.Reasons
		for r := range stream.Reasons {
			if name == "without "+r.String() {
				without = r
			}
		}
		found, trials := "", 0
		for ; found == "" && trials < 20000; trials++ {
			devices := 2 + trials%3
			p, err := mustNamed(t, "1f1b").Program(devices, 1, schedule.Config{MicroBatches: 4, Capacity: 2})
			if err != nil {
				t.Fatal(err)
			}
			found = trial(p, uint64(trials), without, change)
		}
		if found == "" {
			t.Errorf("%s: nothing went wrong in %d trials", name, trials)
		}
		t.Logf("%s, after %d trials: %s", name, trials, found)
	}
}

func mustNamed(t *testing.T, name string) schedule.Schedule {
	t.Helper()
	s, err := schedule.Named(name)
	if err != nil {
		t.Fatal(err)
	}
	return s
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
			stream.Route{From: from, Copies: copies, To: to}.Move(from.Record(), at("allocate"), at("copy"), func() { freed = true })
		}()
		if freed != (fails == "copy") || (len(from.queue) > 0) != (fails == "copy") {
			t.Errorf("%s: freed %v, the sender waits %d times", fails, freed, len(from.queue))
		}
		g.finish()
	}
}

// On a CPU nothing is queued, and nothing waits.
func TestHost(t *testing.T) {
	var did []string
	note := func(s string) func() { return func() { did = append(did, s) } }
	h := stream.Host{}
	stream.Begin(h, h)
	stream.Route{From: h, Copies: h, To: h}.Move(h.Record(), note("allocate"), note("copy"), note("free"))
	stream.End(h, h)
	if want := []string{"allocate", "copy", "free"}; !slices.Equal(did, want) {
		t.Errorf("it did %v, want %v", did, want)
	}
	g := newGPUs(1, stream.Reasons)
	s := g.stream("gpu")
	ended := false
	s.do(func() { ended = true })
	stream.End(h, s)
	if !ended {
		t.Error("the host went on before the work of the stream had ended")
	}
}
