// Package linktest gives tests communicators like NCCL's, between processes that are goroutines, for
// tensors of CPUs. Streams do their work late. A move ends when both ends have come to it, values have
// no names, and nobody is told that the other end is gone.
package linktest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"penstock.example/internal/engine"
	"penstock.example/internal/link"
	"penstock.example/internal/stream"
	"penstock.example/torch"
)

// Patience is how long anybody waits before it counts as for ever.
const Patience = 20 * time.Second

// Stream is a queue of work that is done late, each on a goroutine.
type Stream struct {
	mu     sync.Mutex
	last   event // of what was queued last
	random *rand.Rand
}

// NewStream makes a stream. Its delays depend on the seed.
func NewStream(seed uint64) *Stream {
	s := &Stream{last: make(event), random: rand.New(rand.NewPCG(seed, 0))}
	close(s.last)
	return s
}

// do queues work, and returns an event that is done after it.
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

// Record returns an event that is done when all work queued so far is.
func (s *Stream) Record() stream.Event { return s.do(func() {}) }

// Wait makes later work wait for an event.
func (s *Stream) Wait(e stream.Event, _ stream.Reason) { s.do(e.Synchronize) }

func (e event) Synchronize() {
	select {
	case <-e:
	case <-time.After(Patience):
		panic("linktest: an event is never done: both ends of a move wait, or one has none")
	}
}

func (event) Free() {}

// Fabric joins the communicators of processes.
type Fabric struct {
	mu    sync.Mutex
	wires []*wire
	// Drop says of a move of a process whether it is lost, which its sender does not notice.
	Drop func(move int) bool
	sent int
}

// wire is what two ends share.
type wire struct {
	id     string
	ends   [2]bool // of the sender and the receiver
	joined chan struct{}
	memory chan []byte // on its way: from an end that sends to one that receives
}

// Communicators are those of a process; see link.Communicators.
type Communicators struct {
	f       *Fabric
	mu      sync.Mutex
	ends    []*end
	stopped chan struct{}
	once    sync.Once
	failed  error
	queued  sync.WaitGroup
}

type end struct {
	*wire
	sends bool
}

// Communicators makes those of a process.
func (f *Fabric) Communicators() *Communicators {
	return &Communicators{f: f, stopped: make(chan struct{})}
}

// ErrClosed is the error after Abort or Close.
var ErrClosed = errors.New("linktest: the communicators were closed")

// ID makes an id.
func (c *Communicators) ID() ([]byte, error) {
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	w := &wire{id: fmt.Sprintf("wire %d", len(c.f.wires)), joined: make(chan struct{}),
		memory: make(chan []byte)}
	c.f.wires = append(c.f.wires, w)
	return []byte(w.id), nil
}

// Open joins the other end.
func (c *Communicators) Open(id []byte, _ torch.Device, sends bool) (int, error) {
	side := 1
	if sends {
		side = 0
	}
	c.f.mu.Lock()
	at := slices.IndexFunc(c.f.wires, func(w *wire) bool { return w.id == string(id) })
	if at < 0 || c.f.wires[at].ends[side] {
		c.f.mu.Unlock()
		return 0, fmt.Errorf("linktest: %q is no id, or was opened before", id)
	}
	w := c.f.wires[at]
	if w.ends[side] = true; w.ends[1-side] {
		close(w.joined)
	}
	c.f.mu.Unlock()
	select {
	case <-w.joined:
	case <-c.stopped:
		return 0, ErrClosed
	case <-time.After(Patience):
		return 0, fmt.Errorf("linktest: nobody has opened the other end of %s", w.id)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ends = append(c.ends, &end{w, sends})
	return len(c.ends) - 1, nil
}

// Transfer queues moves. Those on one stream go on side by side, except those over one communicator.
func (c *Communicators) Transfer(moves []link.Move) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.Err(); err != nil {
		return err
	}
	over := map[*Stream]map[*end][]*torch.Tensor{}
	for _, m := range moves {
		s, ok := m.On.(*Stream)
		if !ok || m.Over < 0 || m.Over >= len(c.ends) {
			return fmt.Errorf("linktest: a move over %d on %v", m.Over, m.On)
		}
		if over[s] == nil {
			over[s] = map[*end][]*torch.Tensor{}
		}
		e := c.ends[m.Over]
		over[s][e] = append(over[s][e], m.Tensor)
	}
	for s, ends := range over {
		c.queued.Add(1)
		s.do(func() {
			defer c.queued.Done()
			var all sync.WaitGroup
			for e, tensors := range ends {
				all.Go(func() {
					for _, t := range tensors {
						c.move(e, t)
					}
				})
			}
			all.Wait()
		})
	}
	return nil
}

// move does one end of a move.
func (c *Communicators) move(e *end, t *torch.Tensor) {
	h := torch.NewCtx(torch.Options{})
	defer h.Close()
	if e.sends {
		c.f.mu.Lock()
		c.f.sent++
		lost := c.f.Drop != nil && c.f.Drop(c.f.sent)
		c.f.mu.Unlock()
		for _, of := range []func() []byte{ // the bytes are read when the other end has come to the move
			func() []byte { return nil },
			func() []byte { return torch.Bytes(engine.InMemoryOrder(h, t)) },
		} {
			if lost {
				return
			}
			select {
			case e.memory <- of():
			case <-c.stopped:
				return
			}
		}
		return
	}
	select {
	case <-e.memory:
	case <-c.stopped:
		return
	}
	select {
	case b := <-e.memory:
		into := engine.InMemoryOrder(h, t)
		if have := into.Numel() * into.DType().Size(); int64(len(b)) != have {
			c.fail(fmt.Errorf("linktest: over %s come %d bytes, and %d are received", e.id, len(b), have))
		} else if err := torch.SetBytes(into, b); err != nil {
			c.fail(err)
		}
	case <-c.stopped:
	}
}

func (c *Communicators) fail(err error) {
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	if c.failed == nil {
		c.failed = err
	}
}

// Err is what has failed, or nil.
func (c *Communicators) Err() error {
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	select {
	case <-c.stopped:
		return ErrClosed
	default:
		return c.failed
	}
}

// Abort ends all that waits in this process.
func (c *Communicators) Abort() { c.once.Do(func() { close(c.stopped) }) }

// Close waits for all that was queued.
func (c *Communicators) Close() {
	ended := make(chan struct{})
	go func() {
		c.queued.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-c.stopped:
	case <-time.After(Patience):
		panic("linktest: moves never end")
	}
	c.Abort()
}
