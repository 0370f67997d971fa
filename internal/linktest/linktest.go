// Package linktest gives tests communicators like NCCL's, for tensors on the CPU, between
// goroutines that stand for processes. Streams do their work late. A move, of one tensor, ends when
// both processes have reached it. Moves have no tags, and the loss of a process goes unnoticed.
package linktest

import (
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"penstock.example/internal/engine"
	"penstock.example/internal/stream"
	"penstock.example/torch"
)

// Patience is the limit of a wait. Longer waits count as for ever.
const Patience = 20 * time.Second

// Stream is a queue of work that is done late, each piece on a goroutine.
type Stream struct {
	mu     sync.Mutex
	last   event // the end of the last work
	random *rand.Rand
}

// NewStream makes a stream. Its delays depend on the seed.
func NewStream(seed uint64) *Stream {
	s := &Stream{last: make(event), random: rand.New(rand.NewPCG(seed, 0))}
	close(s.last)
	return s
}

// do queues work, and returns its end.
func (s *Stream) do(f func()) event {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, done, late := s.last, make(event), time.Duration(s.random.IntN(200))*time.Microsecond
	s.last = done
	go func() {
		<-before
		if late > 150*time.Microsecond {
			time.Sleep(late)
		}
		f()
		close(done)
	}()
	return done
}

type event chan struct{}

func (s *Stream) Record() stream.Event { return s.do(func() {}) }

func (s *Stream) Wait(e stream.Event, _ stream.Reason) { s.do(e.Synchronize) }

func (e event) Synchronize() {
	_ = e.await(nil, "an event is never done: both processes wait, or a move has only one end")
}

// await blocks until the event is done. It fails once stopped is done, and panics after Patience.
func (e event) await(stopped event, problem string) error {
	select {
	case <-e:
		return nil
	case <-stopped:
		return ErrClosed
	case <-time.After(Patience):
		panic("linktest: " + problem)
	}
}

func (event) Free() {}

// Fabric joins the communicators of processes.
type Fabric struct {
	// Drop reports whether a move is lost, without an error at its sender. Moves are counted from 1.
	Drop func(move int) bool

	mu    sync.Mutex
	wires []*wire
	sent  int
}

// wire joins a sender and a receiver.
type wire struct {
	open   [2]event // the sender, or the receiver, has opened it
	offers chan offer
}

// offer is a receiver's memory, and the event that the value is in it.
type offer struct {
	into *torch.Tensor
	full event
}

// Communicators implements link.Communicators for one process.
type Communicators struct {
	f       *Fabric
	mu      sync.Mutex
	ends    []end
	stopped event
	once    sync.Once
	queued  sync.WaitGroup
}

type end struct {
	*wire
	sends bool
}

func (f *Fabric) Communicators() *Communicators {
	return &Communicators{f: f, stopped: make(event)}
}

var ErrClosed = errors.New("linktest: the communicators were closed")

func (c *Communicators) ID() ([]byte, error) {
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	c.f.wires = append(c.f.wires, &wire{[2]event{make(event), make(event)}, make(chan offer)})
	return []byte(strconv.Itoa(len(c.f.wires) - 1)), nil
}

// Open panics if the end is open.
func (c *Communicators) Open(id []byte, _ torch.Device, sends bool) (int, error) {
	n, err := strconv.Atoi(string(id))
	if err != nil {
		return 0, err
	}
	c.f.mu.Lock()
	w, side := c.f.wires[n], 1
	c.f.mu.Unlock()
	if sends {
		side = 0
	}
	close(w.open[side])
	if err := w.open[1-side].await(c.stopped, "nobody has opened the other end"); err != nil {
		return 0, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ends = append(c.ends, end{w, sends})
	return len(c.ends) - 1, nil
}

func (c *Communicators) Transfer(over int, on stream.Stream, tensors []*torch.Tensor) error {
	if err := c.Err(); err != nil {
		return err
	}
	c.queued.Add(1)
	on.(*Stream).do(func() {
		defer c.queued.Done()
		for _, t := range tensors {
			c.move(over, t)
		}
	})
	return nil
}

// move does one end of a move. The sender's memory is read when the receiver is ready.
func (c *Communicators) move(over int, t *torch.Tensor) {
	c.mu.Lock()
	e := c.ends[over]
	c.mu.Unlock()
	if !e.sends {
		mine := offer{t, make(event)}
		select {
		case e.offers <- mine:
			<-mine.full
		case <-c.stopped:
		}
		return
	}
	c.f.mu.Lock()
	c.f.sent++
	lost := c.f.Drop != nil && c.f.Drop(c.f.sent)
	c.f.mu.Unlock()
	if lost {
		return
	}
	select {
	case o := <-e.offers:
		h := torch.NewCtx(torch.Options{})
		defer h.Close()
		if err := torch.SetBytes(engine.InMemoryOrder(h, o.into),
			torch.Bytes(engine.InMemoryOrder(h, t))); err != nil {
			panic(err)
		}
		close(o.full)
	case <-c.stopped:
	}
}

func (c *Communicators) Err() error {
	select {
	case <-c.stopped:
		return ErrClosed
	default:
		return nil
	}
}

func (c *Communicators) Abort() { c.once.Do(func() { close(c.stopped) }) }

func (c *Communicators) Close() {
	ended := make(event)
	go func() {
		c.queued.Wait()
		close(ended)
	}()
	_ = ended.await(c.stopped, "moves never end")
	c.Abort()
}
