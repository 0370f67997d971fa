package engine

import (
	"sync"
	"time"

	"penstock.example/internal/shim"
	"penstock.example/internal/stream"
	"penstock.example/torch"
)

// Stream is a CUDA device's queue of work; see package internal/stream. ID 0 is the default stream.
type Stream struct {
	device torch.Device
	id     int64 // libtorch's number of the stream on its device
}

func (s Stream) ID() int64 { return s.id }

// NewStream returns a stream of a device, to be closed by CloseStream; stream.Host for a CPU
// device. It returns an open stream only if all 32 of libtorch's are open. It panics with
// *torch.Error if the device cannot be used.
func NewStream(d torch.Device) stream.Stream {
	if d.Kind == torch.KindCPU {
		return stream.Host{}
	}
	return streams.open(d, func() Stream {
		id, err := shim.OpenStream(int(d.Kind), d.Index)
		streamFailed(d, "open a stream", err)
		return Stream{d, id}
	})
}

// CloseStream closes a stream of NewStream whose work has ended; other streams are ignored.
// NewStream returns the stream that was closed last, so that libtorch's workspaces for products on
// it are used again.
func CloseStream(s stream.Stream) {
	if own, ok := s.(Stream); ok {
		streams.close(own)
	}
}

// streamPool knows which of a CUDA device's 32 streams, which libtorch returns in turn, are open.
type streamPool struct {
	mu     sync.Mutex
	users  map[Stream]int
	closed map[torch.Device][]Stream
}

var streams streamPool

func (p *streamPool) open(d torch.Device, next func() Stream) (s Stream) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.users == nil {
		p.users, p.closed = map[Stream]int{}, map[torch.Device][]Stream{}
	}
	if n := len(p.closed[d]); n > 0 {
		s, p.closed[d] = p.closed[d][n-1], p.closed[d][:n-1]
	} else {
		s = next()
		for n := 1; p.users[s] > 0 && n < 32; n++ {
			s = next()
		}
	}
	p.users[s]++
	return s
}

func (p *streamPool) close(s Stream) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.users[s]--; p.users[s] == 0 {
		delete(p.users, s)
		p.closed[s.device] = append(p.closed[s.device], s)
	}
}

// DefaultStream is the stream of a Ctx without SetStream.
func DefaultStream(d torch.Device) stream.Stream {
	if d.Kind == torch.KindCPU {
		return stream.Host{}
	}
	return Stream{device: d}
}

func streamFailed(d torch.Device, what string, err *shim.Error) {
	if err != nil {
		panic(&torch.Error{Op: what, Device: d, Message: err.Message})
	}
}

// Record returns an event that is done when all work queued so far is done. The caller frees it.
func (s Stream) Record() stream.Event { return s.record(false) }

func (s Stream) record(timed bool) *event {
	e, err := shim.RecordEvent(int(s.device.Kind), s.device.Index, s.id, timed)
	streamFailed(s.device, "record an event", err)
	return &event{e, s.device}
}

// Wait makes work that is queued from now on begin when the event is done. It does not block,
// unless the event is the host's.
func (s Stream) Wait(e stream.Event, _ stream.Reason) {
	own, ok := e.(*event)
	if !ok {
		e.Synchronize()
		return
	}
	streamFailed(s.device, "wait for an event", shim.WaitEvent(own.handle, int(s.device.Kind),
		s.device.Index, s.id))
}

type event struct {
	handle shim.Event
	device torch.Device
}

func (e *event) Synchronize() {
	streamFailed(e.device, "wait for an event", shim.SynchronizeEvent(e.handle))
}

func (e *event) Free() {
	if e.handle != 0 {
		shim.FreeEvent(e.handle)
		e.handle = 0
	}
}

// gpuStream is a Stream, or a type that embeds one, as tests do.
type gpuStream interface{ gpu() Stream }

func (s Stream) gpu() Stream { return s }

// StreamOf returns the stream of a context and of the memory of its tensors.
func StreamOf(c *torch.Ctx) stream.Stream {
	if s := c.Stream(); s != nil {
		return s
	}
	return DefaultStream(c.Device())
}

// MemoryLike allocates the result of CopyHere of a without copying.
func MemoryLike(c *torch.Ctx, a *torch.Tensor) (out *torch.Tensor) {
	c.NoGrad(func() { out = c.Op("penstock::transfer_memory", a, c.Device()) })
	return out
}

// CopyOn queues a copy of a into memory of MemoryLike on a stream of either device, without waiting
// for other streams; see stream.Route. A copy from or to a CPU device blocks until it has ended.
func CopyOn(c *torch.Ctx, s stream.Stream, into, a *torch.Tensor) {
	m := c.Mode()
	defer func(was shim.Mode) { *m = was }(*m)
	if g, ok := s.(gpuStream); ok {
		own, device := g.gpu(), c.Device()
		// libtorch copies on the other GPU's stream
		if own.device.Kind == device.Kind && own.device != device {
			m.PeerIndex, m.PeerStream = int32(own.device.Index), own.id
		} else {
			m.DeviceType, m.DeviceIndex, m.Stream = int32(own.device.Kind), int32(own.device.Index), own.id
		}
	}
	c.NoGrad(func() { c.Call("penstock::transfer_into", into, a) })
}

// ToHost queues a copy of a to CPU memory that no account counts. It has ended when the work of the
// context's stream is done.
func ToHost(c *torch.Ctx, a *torch.Tensor) (out *torch.Tensor) {
	c.NoGrad(func() { out = copyTo(c, torch.CPU(0), a) })
	return out
}

// Moment is the time when a stream reaches a point in its work.
type Moment struct {
	at    time.Time
	event *event
}

// Now returns the moment at the end of all work queued on the context's stream; on a CPU the time.
func Now(c *torch.Ctx) Moment {
	if c.Device().Kind == torch.KindCPU {
		return Moment{at: time.Now()}
	}
	return Moment{event: Stream{c.Device(), c.Mode().Stream}.record(true)}
}

// Since returns the time from an earlier moment of the same device. Wait for the stream first.
func (m Moment) Since(earlier Moment) time.Duration {
	if m.event == nil {
		return m.at.Sub(earlier.at)
	}
	s, err := shim.EventSeconds(earlier.event.handle, m.event.handle)
	streamFailed(m.event.device, "read the time of an event", err)
	return time.Duration(s * float64(time.Second))
}

func (m Moment) Free() {
	if m.event != nil {
		m.event.Free()
	}
}

// PrepareProducts allocates libtorch's workspaces for products of the calling thread on the
// context's CUDA stream. Otherwise the first product allocates them. By default they are 32 MiB for
// each pair of a thread and a stream, and up to as much for products with a bias. No account counts
// them, and they are never freed.
func PrepareProducts(c *torch.Ctx) {
	if c.Device().Kind != torch.KindCPU {
		c.Check("prepare products", shim.PrepareProducts(c.Mode()))
	}
}
