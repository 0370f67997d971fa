package torch

import (
	"slices"

	"penstock.example/internal/arg"
	"penstock.example/internal/shim"
	"penstock.example/internal/stream"
	"penstock.example/internal/system"
)

// Options configures a Ctx. The zero value is cpu:0, no gradients, libtorch's own thread count,
// seed 0.
type Options struct {
	Device  Device
	Grad    bool   // record the graph
	Threads int    // intra-op threads of every call, at most 256; 0 leaves them alone
	Seed    uint64 // of the random numbers drawn through the context

	// Autocast runs products and convolutions in this type, and operators that need the precision
	// in float32. libtorch decides which operators those are. Parameters stay float32 and get
	// float32 gradients. Unlike torch.autocast, no cast of a weight is kept for later operators.
	Autocast Autocast
}

// Ctx is the context that operators run in. It owns every tensor made through it and carries grad
// mode, device, intra-op threads and seed. These are applied inside each call, so they do not
// depend on the goroutine's OS thread.
//
// The order of sums in backward does depend on the OS thread: autograd numbers nodes per thread and
// runs them by number. A goroutine must lock itself to its thread if the gradient of a weight with
// several uses is to be summed in the same order every time. A pipe's workers do.
//
// A Ctx is not safe for concurrent use: it belongs to one goroutine at a time. Close frees
// everything it owns.
type Ctx struct {
	mode   shim.Mode
	device Device
	stream stream.Stream // nil for the default stream of the device
	seed   uint64
	draws  uint64
	owned  []*Tensor // creation order; nil where freed or moved out

	call encoder // scratch of the call being built
	out  [24]uint64
}

// NewCtx returns a context, which the caller must Close. It panics with an *Error if
// Options.Threads is not from 0 to 256.
func NewCtx(o Options) *Ctx {
	c := &Ctx{device: o.Device, seed: o.Seed, mode: shim.CPUMode()}
	c.mode.Account = int32(o.Device.Account())
	c.SetThreads(o.Threads)
	if o.Device.Kind != KindCPU {
		c.mode.DeviceType, c.mode.DeviceIndex = int32(o.Device.Kind), int32(o.Device.Index)
		setNumerics(nil)
	}
	c.SetGrad(o.Grad)
	c.SetAutocast(o.Autocast)
	c.call.c = c
	return c
}

// Close frees every tensor that the context still owns. The context can be used again afterwards.
func (c *Ctx) Close() { c.Release(0) }

// Device is the device on which the context makes tensors. Threads, Grad and Autocast are as in
// Options.
func (c *Ctx) Device() Device     { return c.device }
func (c *Ctx) Threads() int       { return int(c.mode.Threads) }
func (c *Ctx) Grad() bool         { return c.mode.Grad != 0 }
func (c *Ctx) Autocast() Autocast { return Autocast(c.mode.Autocast) }

// SetThreads sets the intra-op threads of later calls. It panics as NewCtx does.
func (c *Ctx) SetThreads(n int) {
	if err := arg.Between("torch", "Threads", n, 0, system.MaxThreads); err != nil {
		panic(&Error{Op: "SetThreads", Device: c.device, Err: err})
	}
	c.mode.Threads = int32(n)
}

// SetGrad sets whether operators record the graph, and returns the old setting.
func (c *Ctx) SetGrad(on bool) (was bool) {
	was, c.mode.Grad = c.Grad(), flag(on)
	return was
}

// NoGrad runs f without recording the graph.
func (c *Ctx) NoGrad(f func()) {
	defer c.SetGrad(c.SetGrad(false))
	f()
}

// Unlimited runs f with its allocations charged to no device, so that no limit refuses them. It is
// for work in place that must not fail halfway: even there libtorch allocates a few bytes for
// scalars.
func (c *Ctx) Unlimited(f func()) {
	defer func(was int32) { c.mode.Account = was }(c.mode.Account)
	c.mode.Account = 0
	f()
}

// SetAutocast sets autocast for later operators and returns the old setting. Backward uses the
// casts in the graph.
func (c *Ctx) SetAutocast(to Autocast) (was Autocast) {
	was, c.mode.Autocast = c.Autocast(), int32(to)
	return was
}

// Mode returns the settings of the context for package shim.
func (c *Ctx) Mode() *shim.Mode { return &c.mode }

// SetStream makes the context work on a stream of its device. stream.Host has no effect.
func (c *Ctx) SetStream(s stream.Stream) {
	c.stream = s
	if gpu, ok := s.(interface{ ID() int64 }); ok {
		c.mode.Stream = gpu.ID()
	}
}

// Stream is the stream that SetStream has set, or nil.
func (c *Ctx) Stream() stream.Stream { return c.stream }

// Synchronize blocks until the work of the context's stream is done. On a CPU it returns at once.
func (c *Ctx) Synchronize() {
	if c.device.Kind == KindCPU {
		return
	}
	e, err := shim.RecordEvent(int(c.device.Kind), c.device.Index, c.mode.Stream, false)
	c.Check("synchronize", err)
	defer shim.FreeEvent(e)
	c.Check("synchronize", shim.SynchronizeEvent(e))
}

// Own returns a tensor for a handle of package shim, whose reference the context takes over; nil
// for 0.
func (c *Ctx) Own(h shim.Handle) *Tensor {
	if h == 0 {
		return nil
	}
	t := &Tensor{h: h, owner: c, slot: len(c.owned)}
	c.owned = append(c.owned, t)
	remember(t)
	return t
}

// OwnAll is Own for each handle.
func (c *Ctx) OwnAll(handles []shim.Handle) []*Tensor {
	out := make([]*Tensor, len(handles))
	for i, h := range handles {
		out[i] = c.Own(h)
	}
	return out
}

// Keep moves t, if it is not kept already, out of its context: it survives Close, and the caller
// frees it. It returns t.
func (c *Ctx) Keep(t *Tensor) *Tensor {
	if t != nil && t.owner != nil {
		t.owner.owned[t.slot] = nil
		t.owner = nil
	}
	return t
}

// Adopt moves a kept tensor into the context, which then frees it. It returns t.
func (c *Ctx) Adopt(t *Tensor) *Tensor {
	if t == nil || t.owner == c {
		return t
	}
	if t.owner != nil {
		panic("torch: Adopt of a tensor that another context owns")
	}
	t.handle() // panics if t was freed
	t.owner, t.slot = c, len(c.owned)
	c.owned = append(c.owned, t)
	return t
}

// Owns reports whether the context will free t. For nil it is true.
func (c *Ctx) Owns(t *Tensor) bool { return t == nil || t.owner == c }

// Share returns a second handle on t, the same tensor in the same graph, owned by the context.
func (c *Ctx) Share(t *Tensor) *Tensor {
	shim.Retain(t.handleFor("share"))
	return c.Own(t.h)
}

// Mark returns the number of tensors owned so far, for Release.
func (c *Ctx) Mark() int { return len(c.owned) }

// Release frees the tensors that the context made since mark, except keep. Memory that neither
// autograd nor another handle holds is free at once.
func (c *Ctx) Release(mark int, keep ...*Tensor) {
	kept := c.owned[:mark]
	for _, t := range c.owned[mark:] {
		if t == nil {
			continue
		}
		if slices.Contains(keep, t) {
			t.slot = len(kept)
			kept = append(kept, t)
			continue
		}
		t.owner = nil
		t.Free()
	}
	clear(c.owned[len(kept):])
	c.owned = kept
}
