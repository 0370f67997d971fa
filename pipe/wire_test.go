package pipe_test

import (
	"runtime"
	"slices"
	"sync"

	"penstock.example/internal/link"
	"penstock.example/schedule"
	"penstock.example/torch"
)

// wire is a link like one between two processes. A parcel on its way is bytes. Its tensors are freed
// before Send returns, and the receiver gets others, made from the bytes on its own device. A stage
// that used another's tensors would find them freed.
type wire struct {
	meet   bool  // Send waits until the receiver is at Receive
	delays bool  // parcels arrive after Send has returned, in any order
	worker []int // by stage; a worker does not meet itself

	mu         sync.Mutex
	moved      *sync.Cond
	arrived    map[schedule.Action]packed
	posted     map[schedule.Action]bool // by send: the receiver is at Receive
	aborted    bool
	deliveries sync.WaitGroup
}

func newWire(meet, delays bool, worker []int) *wire {
	w := &wire{meet: meet, delays: delays, worker: worker,
		arrived: map[schedule.Action]packed{}, posted: map[schedule.Action]bool{}}
	w.moved = sync.NewCond(&w.mu)
	return w
}

func (w *wire) Meets(send schedule.Action) bool {
	return w.meet && w.worker[send.Stage] != w.worker[send.Peer]
}

func (w *wire) Send(c *torch.Ctx, send schedule.Action, p link.Parcel) error {
	if p.Ready != nil {
		p.Ready.Synchronize()
	}
	parcel := pack(c, p)
	p.Free()
	arrive := func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.arrived[send] = parcel
		w.moved.Broadcast()
	}
	if w.delays {
		w.deliveries.Add(1)
		go func() {
			defer w.deliveries.Done()
			for range torch.Mix(uint64(send.MicroBatch), uint64(send.Stage)) % 7 {
				runtime.Gosched()
			}
			arrive()
		}()
	} else {
		arrive()
	}
	return w.wait(func() bool { return !w.Meets(send) || w.posted[send] })
}

func (w *wire) Receive(c *torch.Ctx, send schedule.Action) (link.Parcel, error) {
	w.mu.Lock()
	w.posted[send] = true
	w.moved.Broadcast()
	w.mu.Unlock()
	var parcel packed
	err := w.wait(func() (ok bool) { parcel, ok = w.arrived[send]; return ok })
	if err != nil {
		return link.Parcel{}, err
	}
	return parcel.unpack(c), nil
}

func (w *wire) wait(until func() bool) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for !until() && !w.aborted {
		w.moved.Wait()
	}
	if w.aborted {
		return link.ErrAborted
	}
	return nil
}

func (w *wire) Expect(*torch.Ctx, schedule.Action) error { return nil }

func (w *wire) Settle(schedule.Action) error { return nil }

func (w *wire) Abort() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.aborted = true
	w.moved.Broadcast()
}

func (w *wire) Free() { w.deliveries.Wait() }

// packed is a parcel as bytes.
type packed [][]packedValue

type packedValue struct {
	absent, wants  bool
	same           int // index of the same tensor earlier in the list, or -1
	dtype          torch.DType
	shape, strides []int64
	bytes          []byte
}

func pack(c *torch.Ctx, p link.Parcel) (out packed) {
	for _, list := range p.Lists() {
		values := make([]packedValue, len(list))
		for i, v := range list {
			at := &values[i]
			at.absent, at.wants = v.Tensor == nil, v.Wants
			at.same = slices.IndexFunc(list[:i], func(e link.Value) bool { return e.Tensor == v.Tensor })
			if at.absent || at.same >= 0 {
				continue
			}
			at.dtype, at.shape, at.bytes = v.Tensor.DType(), v.Tensor.Shape(), torch.Bytes(v.Tensor)
			for d := range at.shape {
				at.strides = append(at.strides, c.Call("aten::stride", "int", v.Tensor, d)[0].(int64))
			}
		}
		out = append(out, values)
	}
	return out
}

func (p packed) unpack(c *torch.Ctx) link.Parcel {
	out := link.Parcel{Device: c.Device()}
	for _, values := range p {
		list := make([]link.Value, len(values))
		for i, v := range values {
			switch list[i].Wants = v.wants; {
			case v.absent:
			case v.same >= 0:
				list[i].Tensor = list[v.same].Tensor
			default:
				list[i].Tensor = c.Keep(v.unpack(c))
			}
		}
		out.Add(list)
	}
	return out
}

// unpack makes a tensor with the strides that it had. What was expanded is expanded again.
func (v packedValue) unpack(c *torch.Ctx) *torch.Tensor {
	from, shape := torch.FromBytes(c, v.bytes, v.dtype, v.shape), slices.Clone(v.shape)
	for d, stride := range v.strides {
		if stride == 0 && shape[d] > 1 {
			from, shape[d] = c.Narrow(from, int64(d), 0, 1), 1
		}
	}
	out := c.Call("aten::empty_strided", "", shape, v.strides, v.dtype)[0].(*torch.Tensor)
	c.Copy_(out, from)
	return c.Call("aten::expand", "", out, v.shape)[0].(*torch.Tensor)
}
