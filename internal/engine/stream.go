package engine

import (
	"sync"
	"time"

	"penstock.example/internal/shim"
	"penstock.example/internal/stream"
	"penstock.example/torch"
)

// Stream is a queue of work of a CUDA device; see package internal/stream. The zero Stream is the
// default stream of its device, on which a Ctx works that was given none.
type Stream struct {
	device torch.Device
	id     int64
}

// ID is libtorch's number of the stream on its device.
func (s Stream) ID() int64 { return s.id }

// NewStream returns a stream of the device that is not open already, as long as there is one among
// the 32 that libtorch has of each device. CloseStream gives it back. A CPU device's is the host's.
// It panics with *torch.Error if the device cannot be used.
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

// CloseStream ends the use of a stream of NewStream, of which all work has ended. The next one of the
// device is the one that was closed last: what libtorch keeps for products on it is used again. Others'
// streams are left alone.
func CloseStream(s stream.Stream) {
	if own, ok := s.(Stream); ok {
		streams.close(own)
	}
}

// streams are the open streams of CUDA devices.
var streams streamPool

// streamPool knows which of the 32 streams of a device, which libtorch gives in turn, are open.
type streamPool struct {
	mu     sync.Mutex
	users  map[Stream]int
	closed map[torch.Device][]Stream
}

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

// DefaultStream is the stream on which a Ctx works that was given none.
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

// Record returns an event that is done when all work queued so far is. The caller frees it.
func (s Stream) Record() stream.Event { return s.record(false) }

func (s Stream) record(timed bool) *event {
	e, err := shim.RecordEvent(int(s.device.Kind), s.device.Index, s.id, timed)
	streamFailed(s.device, "record an event", err)
	return &event{e, s.device}
}

// Wait makes work that is queued from now on begin when the event is done. It does not block, unless
// the event is the host's.
func (s Stream) Wait(e stream.Event, _ stream.Reason) {
	own, ok := e.(*event)
	if !ok {
		e.Synchronize()
		return
	}
	streamFailed(s.device, "wait for an event", shim.WaitEvent(own.handle, int(s.device.Kind),
		s.device.Index, s.id))
}

// event is one of a CUDA device.
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

// gpuStream is a Stream, or a type that has one embedded, such as of a test.
type gpuStream interface{ gpu() Stream }

func (s Stream) gpu() Stream { return s }

// StreamOf is the context's stream, which the memory of its tensors belongs to.
func StreamOf(c *torch.Ctx) stream.Stream {
	if s := c.Stream(); s != nil {
		return s
	}
	return DefaultStream(c.Device())
}

// MemoryLike allocates what CopyHere of a would have, with no values.
func MemoryLike(c *torch.Ctx, a *torch.Tensor) (out *torch.Tensor) {
	c.NoGrad(func() { out = c.Op("penstock::transfer_memory", a, c.Device()) })
	return out
}

// CopyOn queues a copy of a into memory of MemoryLike on a stream, of either device. Nothing waits
// for anything: see stream.Route. A copy from or to a CPU device blocks until it has ended.
func CopyOn(c *torch.Ctx, s stream.Stream, into, a *torch.Tensor) {
	m := c.Mode()
	defer func(was shim.Mode) { *m = was }(*m)
	if on, ok := s.(gpuStream); ok {
		own, here := on.gpu(), c.Device()
		// libtorch copies on the other GPU's stream
		if own.device.Kind == here.Kind && own.device != here {
			m.PeerIndex, m.PeerStream = int32(own.device.Index), own.id
		} else {
			m.DeviceType, m.DeviceIndex, m.Stream = int32(own.device.Kind), int32(own.device.Index), own.id
		}
	}
	c.NoGrad(func() { c.Call("penstock::transfer_into", into, a) })
}

// ToHost queues a copy of a to memory of the CPU that no account counts. Its values are there when
// the work of the context's stream is done.
func ToHost(c *torch.Ctx, a *torch.Tensor) (out *torch.Tensor) {
	c.NoGrad(func() { out = copyTo(c, torch.CPU(0), a) })
	return out
}

// Moment is when a stream came to a point in its work: on a CPU now.
type Moment struct {
	at    time.Time
	event *event
}

// Now marks the point that the work of the context's stream has come to.
func Now(c *torch.Ctx) Moment {
	if c.Device().Kind == torch.KindCPU {
		return Moment{at: time.Now()}
	}
	return Moment{event: Stream{c.Device(), c.Mode().Stream}.record(true)}
}

// Since is the time from an earlier moment of the same device, once the stream has been waited for.
func (m Moment) Since(earlier Moment) time.Duration {
	if m.event == nil {
		return m.at.Sub(earlier.at)
	}
	s, err := shim.EventSeconds(earlier.event.handle, m.event.handle)
	streamFailed(m.event.device, "read the time of an event", err)
	return time.Duration(s * float64(time.Second))
}

// Free frees the moment.
func (m Moment) Free() {
	if m.event != nil {
		m.event.Free()
	}
}

// PrepareProducts has libtorch take the workspaces that it keeps for products of the calling thread
// on the context's stream of a CUDA device: 32 MiB for each pair of a thread and a stream, with the
// variables of the environment as they are here, and up to as much for products with a bias. No
// account has them, and they are never given back. Otherwise the first product there takes them.
func PrepareProducts(c *torch.Ctx) {
	if c.Device().Kind != torch.KindCPU {
		c.Check("prepare products", shim.PrepareProducts(c.Mode()))
	}
}
