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

// outgoing is a sent parcel, which may not have arrived.
type outgoing struct {
	send   schedule.Action
	works  []Work
	parcel Parcel
	made   []*torch.Tensor // tensors of messages that are not in the parcel
	way    stream.Way      // of a GPU link
	ended  stream.Event    // the end of the sends on a GPU link; or nil
}

// free frees the parcel. At the end of a run the host waits for the sends on a GPU link.
func (o *outgoing) free(endOfRun bool) {
	ended := o.ended
	switch o.ended = nil; {
	case ended == nil:
		o.drop()
	case endOfRun:
		o.way.Finish(stream.Host{}, ended, o.drop)
	default:
		o.way.Free(ended, o.drop)
	}
}

func (o *outgoing) drop() {
	o.parcel.Free()
	torch.FreeAll(o.made)
	o.made = nil
}

// pack returns the layout of the parcel and the cores that move. The cores live as long as o.
func (o *outgoing) pack(c *torch.Ctx) (out layout, tensors []*torch.Tensor, err error) {
	out = layout{}
	for _, list := range o.parcel.Lists {
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

// Send begins to send a parcel. It waits while the edge is full.
func (l *remoteRun) Send(c *torch.Ctx, send schedule.Action, p Parcel) error {
	out, e := &outgoing{send: send, parcel: p}, l.edge(send)
	for e.full(len(e.sent)) {
		if err := e.settle(0); err != nil {
			out.free(false)
			return err
		}
	}
	e.sent = append(e.sent, out) // first, so that Free waits for its works after a failure
	if err := l.sendAll(c, out); err != nil || e.capacity != schedule.Meet {
		return err
	}
	return e.settle(len(e.sent) - 1)
}

func (l *remoteRun) Settle(send schedule.Action) error {
	e := l.edge(send)
	at := slices.IndexFunc(e.sent, func(o *outgoing) bool { return o.send == send })
	if at < 0 {
		return nil
	}
	return e.settle(at)
}

// settle waits until a sent parcel has arrived, and frees it. After a failure remoteRun.Free frees it.
func (e *edge) settle(at int) error {
	err := wait(e.sent[at].works)
	if err == nil {
		e.sent[at].free(false)
		e.sent = slices.Delete(e.sent, at, at+1)
	}
	return err
}

func (l *remoteRun) sendAll(c *torch.Ctx, out *outgoing) error {
	send := out.send
	current, tensors, err := out.pack(c)
	if err != nil {
		return err
	}
	last, number, text := l.lastLayout(send), uint64(0), []byte(nil)
	expected := len(last.moving()) // messages that the receiver has begun to receive
	if !reflect.DeepEqual(current, last) {
		if text, err = json.Marshal(current); err != nil {
			return err
		}
	}
	if g := l.gpuLink(send); g != nil {
		out.way = g.streams(c)
		if out.parcel.Ready == nil {
			out.parcel.Ready = out.way.Own.Record()
		}
		out.ended, err = out.way.Send(out.parcel.Ready, func() error {
			return l.direct.comms.Transfer(g.comm, g.copies, tensors)
		})
		if err != nil {
			return fmt.Errorf("link: %v: %w", send, err)
		}
		number, tensors, expected = g.number, nil, 0
		g.number++
	} else if l.staged(c.Device()) {
		for i, t := range tensors {
			tensors[i] = c.Keep(engine.ToHost(c, t))
			out.made = append(out.made, tensors[i])
		}
		c.Synchronize() // the copies are complete
	}
	l.layouts.Store(send, current)
	begin := func(part int, t *torch.Tensor) {
		if err == nil {
			err = l.begin(&out.works, l.transport.Send, send.Peer, send, part, t)
		}
	}
	sendShort := func(part int, content []byte) {
		out.made = append(out.made, message(content))
		begin(part, out.made[len(out.made)-1])
	}
	if text != nil {
		for k := range expected {
			sendShort(firstTensor+k, []byte{0})
		}
	}
	if sendShort(headPart, head(number, len(text))); text != nil {
		sendShort(layoutPart, text)
	}
	for k, t := range tensors {
		begin(firstTensor+k, t)
	}
	return err
}
