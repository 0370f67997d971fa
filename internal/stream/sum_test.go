package stream_test

import (
	"fmt"
	"iter"
	"testing"

	"penstock.example/internal/stream"
	"penstock.example/schedule"
)

// summers are the hosts of replicas that sum gradients, as package pipe does: one for each worker, and
// one beside it for its sums. They take turns whenever one of them pauses.
type summers struct {
	g      *gpus
	yield  func() // of the host whose turn it is
	queued map[schedule.Action]bool
	wires  map[schedule.Edge]*between
	copies map[[2]int]*fake // by sender and receiver; the receiver's end is [sender, -1-receiver]
}

// until has others go on until something is so.
func (s *summers) until(so func() bool) {
	for !so() {
		if s.yield(); s.g.random.IntN(2) == 0 {
			s.g.step()
		}
	}
}

// patient is a host that lets others go on while it waits.
type patient struct{ *summers }

func (patient) Record() stream.Event { return stream.Host{}.Record() }

func (p patient) Wait(e stream.Event, why stream.Reason) {
	if why != p.g.without {
		p.until(e.(*event).done)
	}
}

// sum is that of a stage on a replica, of so many.
func (s *summers) sum(stage, k, replicas int, grads []*block, own *fake) {
	text := func(last, i int) (t string) { // the sum of the first replicas
		for r := range last + 1 {
			t += fmt.Sprintf(" %d of %d on %d", i, stage, r)
		}
		return t
	}
	way := func(from, to int) stream.Way {
		if from == k {
			return stream.Way{Own: own, Copies: s.copies[[2]int{from, to}]}
		}
		return stream.Way{Own: own, Copies: s.copies[[2]int{from, -1 - to}]}
	}
	action := func(from, to, i int) schedule.Action {
		return schedule.Action{Kind: schedule.SendGradient, Stage: from, MicroBatch: len(grads)*stage + i, Peer: to}
	}
	send := func(to, i int) stream.Event {
		w, a := way(k, to), action(k, to, i)
		left, _ := w.Send(own.Record(), func() error {
			w.Copies.(*fake).meet(s.wires[schedule.Edge{From: k, To: to}].send(grads[i], a))
			return nil
		})
		s.queued[a] = true
		return left
	}
	receive := func(from, i int, want string) *block {
		w, a := way(from, k), action(from, k, i)
		var got *block
		vacant := w.Room(func() { got = own.allocate() })
		s.until(func() bool { return s.queued[a] })
		_ = w.Receive(vacant, func() error {
			w.Copies.(*fake).meet(s.wires[schedule.Edge{From: from, To: k}].receive(got, a))
			return nil
		})
		own.see(a.String(), got, want)
		return got
	}
	var up, down []stream.Event
	for i, g := range grads {
		if k > 0 {
			before := receive(k-1, i, text(k-1, i))
			own.do(func() { g.holds = before.holds + g.holds })
			own.free(before)
		}
		if k < replicas-1 {
			up = append(up, send(k+1, i))
		}
	}
	for i, g := range grads {
		if k < replicas-1 {
			all := receive(k+1, i, text(replicas-1, i))
			way(k, k+1).Free(up[i], func() {})
			own.do(func() { g.holds = all.holds })
			own.free(all)
		}
		if k > 0 {
			down = append(down, send(k-1, i))
		}
	}
	for _, left := range down {
		way(k, k-1).Finish(patient{s}, left, func() {})
		if !left.(*event).done() {
			s.g.fault("the caller goes on before a sum has left replica %d", k)
		}
	}
}

// sumTrial has replicas sum the gradients of two stages. It returns what went wrong, or "".
func sumTrial(seed uint64, without stream.Reason) string {
	const stages, params = 2, 3
	g := newGPUs(seed, without)
	replicas := 2 + int(seed)%2
	s := &summers{g: g, queued: map[schedule.Action]bool{}, wires: map[schedule.Edge]*between{}, copies: map[[2]int]*fake{}}
	for k := range replicas {
		for _, to := range []int{k - 1, k + 1} {
			if to >= 0 && to < replicas {
				s.wires[schedule.Edge{From: k, To: to}] = &between{g: g}
				s.copies[[2]int{k, to}] = g.stream(fmt.Sprintf("sends %d>%d", k, to))
				s.copies[[2]int{k, -1 - to}] = g.stream(fmt.Sprintf("receives %d>%d", k, to))
			}
		}
	}
	hosts := map[int]func() bool{} // each goes on until it pauses, and says whether it has not ended
	add := func(host func()) {
		var pause func()
		next, _ := iter.Pull(iter.Seq[struct{}](func(yield func(struct{}) bool) {
			pause = func() { yield(struct{}{}) }
			host()
		}))
		hosts[len(hosts)] = func() bool {
			s.yield = func() { pause() }
			_, more := next()
			return more
		}
	}
	for k := range replicas {
		own, sums := g.stream(fmt.Sprintf("worker %d", k)), g.stream(fmt.Sprintf("sums %d", k))
		var ready [stages]stream.Event
		var grads [stages][]*block
		ended := false
		add(func() {
			for stage := range stages {
				for i := range params {
					b := own.allocate()
					own.put(b, fmt.Sprintf(" %d of %d on %d", i, stage, k))
					grads[stage] = append(grads[stage], b)
				}
				ready[stage] = own.Record()
			}
			scratch := own.allocate()
			own.put(scratch, "scratch")
			s.until(func() bool { return ended })
			for stage, list := range grads { // which the caller reads
				for i, b := range list {
					want := ""
					for r := range replicas {
						want += fmt.Sprintf(" %d of %d on %d", i, stage, r)
					}
					if b.holds != want {
						g.fault("the caller read %q, want %q", b.holds, want)
					}
				}
			}
		})
		add(func() {
			for stage := range stages {
				s.until(func() bool { return ready[stage] != nil })
				_ = stream.Beside(patient{s}, sums, ready[stage], func() error {
					s.sum(stage, k, replicas, grads[stage], sums)
					return nil
				})
			}
			ended = true
		})
	}
	g.others = func() { s.yield() }
	left := len(hosts)
	over := make([]bool, left)
	for turns := 0; left > 0; turns++ {
		if turns > 1e6 {
			return "hosts wait for each other"
		}
		if i := g.random.IntN(len(hosts)); !over[i] && !hosts[i]() {
			over[i], left = true, left-1
		}
	}
	g.others = nil
	g.finish()
	return g.wrong
}

// Each wait of a sum over replicas is needed, and with all of them everybody reads what was meant for
// him. Copied alone is known anyway: a gradient that has come back as a sum had left.
func TestEachWaitOfASumIsNeeded(t *testing.T) {
	for seed := range uint64(1000) {
		if wrong := sumTrial(seed, stream.Reasons); wrong != "" {
			t.Fatal(wrong)
		}
	}
	for without := range stream.Reasons {
		if without == stream.Given || without == stream.Copied {
			continue
		}
		found, trials := "", 0
		for ; found == "" && trials < 10000; trials++ {
			found = sumTrial(uint64(trials), without)
		}
		if found == "" {
			t.Errorf("without %v: nothing went wrong in %d trials", without, trials)
		}
		t.Logf("without %v, after %d trials: %s", without, trials, found)
	}
}
