package link

import (
	"encoding/json"
	"fmt"
	"reflect"
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
		o.free(false)
	}
	return err
}

// free frees the parcel; last is at the end of the run.
func (o *outgoing) free(last bool) {
	left := o.left
	switch o.left = nil; {
	case left == nil:
		o.drop()
	case last:
		o.way.Finish(stream.Host{}, left, o.drop)
	default:
		o.way.Free(left, o.drop)
	}
}

func (o *outgoing) drop() {
	o.parcel.Free()
	torch.FreeAll(o.made)
	o.made = nil
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
	out, e := &outgoing{send: send, parcel: p}, l.edge(send)
	for e.full(len(e.sent)) {
		if err := e.settle(0); err != nil {
			out.free(false)
			return err
		}
	}
	e.sent = append(e.sent, out) // whatever fails: works may go on
	if err := l.sendAll(c, out); err != nil || e.capacity != schedule.Meet {
		return err
	}
	return out.wait()
}

// Settle waits for a send, if it is still on its way.
func (l *remoteRun) Settle(send schedule.Action) error {
	e := l.edge(send)
	at := slices.IndexFunc(e.sent, func(o *outgoing) bool { return o.send == send })
	if at < 0 {
		return nil
	}
	return e.settle(at)
}

func (e *edge) settle(at int) error {
	err := e.sent[at].wait()
	if err == nil {
		e.sent = slices.Delete(e.sent, at, at+1)
	}
	return err
}

// sendAll begins all messages of a parcel.
func (l *remoteRun) sendAll(c *torch.Ctx, out *outgoing) error {
	send := out.send
	now, tensors, err := out.pack(c)
	if err != nil {
		return err
	}
	before, number, text := l.last(send), uint64(0), []byte(nil)
	instead := before.tensors()
	if !reflect.DeepEqual(now, before) {
		if text, err = json.Marshal(now); err != nil {
			return err
		}
	}
	if g := l.gpuLink(send); g != nil {
		if err := l.direct.send(c, g, out, tensors); err != nil {
			return err
		}
		number, tensors, instead = g.number, nil, nil
		g.number++
	} else if l.staged(c.Device()) {
		tensors = out.onHost(c, tensors)
	}
	l.known.Store(send, now)
	begin := func(part int, t *torch.Tensor) {
		if err == nil {
			err = l.begin(&out.works, l.transport.Send, send.Peer, send, part, t)
		}
	}
	short := func(part int, content []byte) {
		out.made = append(out.made, message(content))
		begin(part, out.made[len(out.made)-1])
	}
	if text != nil {
		for k := range instead {
			short(firstTensor+k, []byte{0})
		}
	}
	if short(headPart, head(number, len(text))); text != nil {
		short(layoutPart, text)
	}
	for k, t := range tensors {
		begin(firstTensor+k, t)
	}
	return err
}
