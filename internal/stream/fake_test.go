package stream_test

import (
	"fmt"
	"math/rand/v2"

	"penstock.example/internal/stream"
)

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
