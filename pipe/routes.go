package pipe

import (
	"sync"

	"penstock.example/internal/link"
	"penstock.example/internal/stream"
	"penstock.example/schedule"
	"penstock.example/torch"
)

// copyStreams are the streams for copies, one for each pair of workers in each direction.
type copyStreams struct {
	mu   sync.Mutex
	of   map[[2]int]stream.Stream
	open func(from, to int) stream.Stream // in tests
}

// route is the streams of moves between the workers of two stages of this process. queued is false
// if both are CPUs, whose copies are done when the call returns.
func (p *Pipe) route(from, to int) (r stream.Route, queued bool) {
	pair := [2]int{p.stages[from].worker, p.stages[to].worker}
	a, b := p.workers[pair[0]], p.workers[pair[1]]
	if a == nil || b == nil || a.stream == b.stream {
		return r, false
	}
	p.copies.mu.Lock()
	defer p.copies.mu.Unlock()
	copies := p.copies.of[pair]
	if copies == nil {
		if p.copies.open != nil {
			copies = p.copies.open(pair[0], pair[1])
		} else if copies = a.device.NewStream(); copies == (stream.Host{}) {
			copies = b.device.NewStream()
		}
		if p.copies.of == nil {
			p.copies.of = map[[2]int]stream.Stream{}
		}
		p.copies.of[pair] = copies
	}
	return stream.Route{From: a.stream, Copies: copies, To: b.stream}, true
}

// close closes the streams, when no copy goes on.
func (s *copyStreams) close() {
	for _, c := range s.of {
		torch.CloseStream(c)
	}
}

// arrives brings the next list of a parcel to the device of the stage that receives it. Tensors on
// another device, or of another stream, are copied and then freed. Others are taken as they are. The
// result belongs to the receiver and is kept.
func (r *run) arrives(c *torch.Ctx, receive schedule.Action, p *link.Parcel) []*torch.Tensor {
	list := p.Take()
	out := make([]*torch.Tensor, len(list))
	for i, v := range list {
		out[i] = v.Tensor
	}
	route, queued := r.p.route(receive.Peer, receive.Stage)
	if p.Device == r.p.stages[receive.Stage].Device && (!queued || p.Ready == nil) {
		return out
	}
	once, at := torch.Distinct(out)
	free := func() { torch.FreeAll(once) }
	defer free() // also when a copy fails
	here := make([]*torch.Tensor, len(once))
	each := func(f func(i int, t *torch.Tensor)) func() {
		return func() {
			for i, t := range once {
				if t != nil {
					f(i, t)
				}
			}
		}
	}
	if queued {
		route.Move(p.Ready,
			each(func(i int, t *torch.Tensor) { here[i] = c.MemoryLike(t) }),
			each(func(i int, t *torch.Tensor) { c.CopyOn(route.Copies, here[i], t) }), free)
	} else {
		each(func(i int, t *torch.Tensor) { here[i] = c.CopyHere(t) })()
	}
	for i := range out { // not before: a copy that fails would leave those before it
		out[i] = c.Keep(here[at[i]])
	}
	return out
}

// begin has the worker's work begin after the queued work of its job's caller. From there to leave
// nothing waits for a GPU. A device on which even that fails says so again in the next operator.
func (w *worker) begin() {
	_ = torch.Try(func() { stream.Begin(w.stream, w.caller()) })
}

// leave blocks until all work of the worker is done. It panics if the work has failed.
func (w *worker) leave() { stream.End(stream.Host{}, w.stream) }

// caller is the stream on which the caller of a run queues what it makes on the worker's device.
func (w *worker) caller() stream.Stream {
	if w.given != nil {
		return w.given
	}
	return w.device.DefaultStream()
}
