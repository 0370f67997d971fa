package stream_test

import (
	"fmt"
	"slices"
	"testing"

	"penstock.example/internal/stream"
	"penstock.example/schedule"
)

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
		if is && l.way.Own == stream.Stream(j.compute[w]) && (all || j.received[a] && j.g.random.IntN(2) == 0) {
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
	r.vacant = j.way(from, w).Room(func() { r.value = j.compute[w].allocate() })
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

// Each wait between processes is needed, and with all of them everybody reads what was meant for him.
func TestEachWaitBetweenProcessesIsNeeded(t *testing.T) {
	program := func(name string, devices int) *schedule.Program {
		p, err := mustNamed(t, name).Program(devices, 1, schedule.Config{MicroBatches: 4, Capacity: 2})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	for seed := range uint64(2000) {
		if wrong := trial(program([]string{"1f1b", "gpipe", "zb-h1"}[seed%3], 2+int(seed)%3), seed, stream.Reasons, apart); wrong != "" {
			t.Fatal(wrong)
		}
	}
	reasons := slices.Collect(func(yield func(stream.Reason) bool) {
		for r := range stream.Reasons {
			if !yield(r) {
				return
			}
		}
	})
	for _, without := range reasons {
		found, trials := "", 0
		for ; found == "" && trials < 20000; trials++ {
			found = trial(program("1f1b", 2+trials%3), uint64(trials), without, apart)
		}
		if found == "" {
			t.Errorf("without %v: nothing went wrong in %d trials", without, trials)
		}
		t.Logf("without %v, after %d trials: %s", without, trials, found)
	}
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
	if err := w.Receive(w.Room(func() {}), func() error { return failure }); err != failure || len(own.queue) != 1 {
		t.Errorf("a receive gave %v, and the worker waits %d times", err, len(own.queue))
	}
	g.finish()
	if g.wrong != "" {
		t.Error(g.wrong)
	}
}
