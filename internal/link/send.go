package link

import (
	"encoding/json"
	"fmt"
	"slices"

	"penstock.example/internal/engine"
	"penstock.example/internal/stream"
	"penstock.example/schedule"
	"penstock.example/torch"
)

// outgoing is a parcel that is not known to have arrived.
type outgoing struct {
	send   schedule.Action
	works  []Work
	parcel Parcel
	made   []*torch.Tensor // for the messages, and not in the parcel
	way    stream.Way      // of a GPU link
	left   stream.Event    // of a GPU link: the tensors have left; or nil
}

// wait waits until the parcel has arrived, and frees it. After a failure Free frees it.
func (o *outgoing) wait() error {
	err := wait(o.works)
	if err == nil {
		o.free()
	}
	return err
}

func (o *outgoing) free() {
	if o.left == nil {
		o.drop()
		return
	}
	o.way.Free(o.left, o.drop)
	o.left = nil
}

// finish is free at the end of a run.
func (o *outgoing) finish() {
	if o.left != nil {
		o.way.Finish(stream.Host{}, o.left, func() { o.left = nil })
	}
	o.drop()
}

func (o *outgoing) drop() {
	o.parcel.Free()
	torch.FreeAll(o.made)
	o.made = nil
}

// message makes a tensor of short content, in no device's account.
func (o *outgoing) message(content []byte) (t *torch.Tensor) {
	h := torch.NewCtx(torch.Options{})
	defer h.Close()
	h.Unlimited(func() { t = h.Keep(torch.From(h, content)) })
	o.made = append(o.made, t)
	return t
}

// onHost copies tensors to the memory of the host, and waits until the copies are complete.
func (o *outgoing) onHost(c *torch.Ctx, tensors []*torch.Tensor) []*torch.Tensor {
	out := make([]*torch.Tensor, len(tensors))
	for i, t := range tensors {
		out[i] = c.Keep(engine.ToHost(c, t))
		o.made = append(o.made, out[i])
	}
	c.Synchronize()
	return out
}

// pack returns the layout of the parcel and the cores that move. They are kept as long as o.
func (o *outgoing) pack(c *torch.Ctx) (out layout, tensors []*torch.Tensor, err error) {
	out = layout{}
	for _, list := range o.parcel.Lists() {
		slots := make([]slot, len(list))
		for i, v := range list {
			at := &slots[i]
			at.Absent, at.Wants, at.Same = v.Tensor == nil, v.Wants, -1
			if at.Absent {
				continue
			}
			if at.Same = slices.IndexFunc(list[:i],
				func(e Value) bool { return e.Tensor == v.Tensor }); at.Same >= 0 {
				continue
			}
			core, strides, err := coreOf(c, v.Tensor)
			if err != nil {
				return nil, nil, fmt.Errorf("link: %v: %w", o.send, err)
			}
			if core != v.Tensor {
				o.made = append(o.made, c.Keep(core))
			}
			at.DType, at.Shape = v.Tensor.DType(), v.Tensor.Shape()
			at.Core, at.Strides = core.Shape(), strides
			if at.moves() {
				tensors = append(tensors, core)
			}
		}
		out = append(out, slots)
	}
	return out, tensors, nil
}

// Send begins to send a parcel. It waits while as many values are on the link as may wait there.
func (l *remoteRun) Send(c *torch.Ctx, send schedule.Action, p Parcel) error {
	out, e := &outgoing{send: send, parcel: p}, edgeOf(send)
	if err := l.waitForCapacity(e); err != nil {
		out.free()
		return err
	}
	l.mu.Lock()
	l.sent[e] = append(l.sent[e], out) // whatever fails: works may go on
	l.mu.Unlock()
	err := l.begin(c, out)
	if err != nil || l.capacity != schedule.Meet || !e.neighbours() {
		return err
	}
	return out.wait()
}

// waitForCapacity waits until one more parcel may be sent on an edge.
func (l *remoteRun) waitForCapacity(e edge) error {
	for {
		l.mu.Lock()
		list := l.sent[e]
		l.mu.Unlock()
		if !l.full(e, len(list)) {
			return nil
		}
		if err := l.Settle(list[0].send); err != nil {
			return err
		}
	}
}

// Settle waits for a send, if it is still on its way.
func (l *remoteRun) Settle(send schedule.Action) error {
	e := edgeOf(send)
	l.mu.Lock()
	list := l.sent[e]
	l.mu.Unlock()
	at := slices.IndexFunc(list, func(o *outgoing) bool { return o.send == send })
	if at < 0 {
		return nil
	}
	if err := list[at].wait(); err != nil {
		return err
	}
	l.mu.Lock()
	l.sent[e] = slices.Delete(list, at, at+1)
	l.mu.Unlock()
	return nil
}

// begin begins all messages of a parcel.
func (l *remoteRun) begin(c *torch.Ctx, out *outgoing) error {
	send := out.send
	now, tensors, err := out.pack(c)
	if err != nil {
		return err
	}
	before := l.last(send)
	h, text, changed, instead := head{bytes: now.bytes()}, []byte(nil), !now.equal(before), before.tensors()
	if changed {
		if text, err = json.Marshal(now); err != nil {
			return err
		}
		h.layout = uint64(len(text))
	}
	if g := l.gpuLink(send); g != nil {
		if err := l.direct.send(c, g, out, tensors); err != nil {
			return err
		}
		h.number, tensors, instead = g.number, nil, nil
		g.number++
	} else if l.staged(c.Device()) {
		tensors = out.onHost(c, tensors)
	}
	l.remember(send, now)
	if changed {
		for k := range instead {
			if err := l.sendPart(out, firstTensor+k, out.message([]byte{0})); err != nil {
				return err
			}
		}
	}
	if err := l.sendPart(out, headPart, out.message(h.encode())); err != nil {
		return err
	}
	if changed {
		if err := l.sendPart(out, layoutPart, out.message(text)); err != nil {
			return err
		}
	}
	for k, t := range tensors {
		if err := l.sendPart(out, firstTensor+k, t); err != nil {
			return err
		}
	}
	return nil
}

// sendPart begins the message of a part.
func (l *remoteRun) sendPart(out *outgoing, part int, t *torch.Tensor) error {
	tag, err := l.tag(out.send, part)
	if err != nil {
		return err
	}
	w, err := l.transport.Send(t, l.rank[out.send.Peer], tag)
	if err == nil {
		out.works = append(out.works, w)
	}
	return err
}
