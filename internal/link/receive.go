package link

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	"penstock.example/internal/engine"
	"penstock.example/internal/stream"
	"penstock.example/schedule"
	"penstock.example/torch"
)

// aheadBytes limits the bytes that an edge receives ahead; a single parcel may be larger. A parcel
// arrives two latencies after its receive has begun. Parcels ahead keep the network busy meanwhile:
// 4 MiB are 4 ms of 8 Gbit/s, and 320 ms of 100 Mbit/s.
const aheadBytes = 4 << 20

// incoming is a parcel that is being received.
type incoming struct {
	layout  layout          // of the send's last parcel; then of this one
	head    *torch.Tensor   // the head; then the layout
	tensors []*torch.Tensor // the cores that move
	works   []Work
	staged  bool         // the tensors are on the host
	link    *gpuLink     // or nil
	vacant  stream.Event // the end of earlier uses of the tensors' memory, for a GPU link
}

// drop frees the tensors that are not part of a parcel. Their works must have ended.
func (in *incoming) drop() {
	in.head.Free()
	if in.vacant != nil {
		in.vacant.Free()
	}
	torch.FreeAll(in.tensors)
	in.head, in.tensors, in.works, in.vacant = nil, nil, nil, nil
}

func (l *remoteRun) Expect(c *torch.Ctx, send schedule.Action) error {
	e := l.edge(send)
	e.expected = append(e.expected, send)
	return l.advance(c, e)
}

// advance begins as many expected receives of an edge as its capacity and aheadBytes allow.
func (l *remoteRun) advance(c *torch.Ctx, e *edge) error {
	for len(e.expected) > 0 && !e.full(len(e.posted)) {
		next := e.expected[0]
		bytes := l.lastLayout(next).bytes()
		for _, in := range e.posted {
			bytes += in.layout.bytes()
		}
		if len(e.posted) > 0 && bytes > aheadBytes {
			return nil
		}
		e.expected = e.expected[1:]
		var err error
		if failed := torch.Try(func() { _, err = l.post(c, e, next) }); failed != nil || err != nil {
			return fmt.Errorf("link: %v, ahead of its receive: %w", next, cmp.Or(failed, err))
		}
	}
	return nil
}

// Receive receives a parcel on the device of c, and then begins expected receives.
func (l *remoteRun) Receive(c *torch.Ctx, send schedule.Action) (p Parcel, err error) {
	e := l.edge(send)
	in := e.posted[send]
	if in == nil {
		e.expected = slices.DeleteFunc(e.expected, func(s schedule.Action) bool { return s == send })
		in, err = l.post(c, e, send)
	}
	if err == nil {
		p, err = l.receive(c, send, in)
	}
	if err != nil {
		return p, err
	}
	delete(e.posted, send)
	if err := l.advance(c, e); err != nil {
		p.Free()
		return Parcel{}, err
	}
	return p, nil
}

// post begins to receive the head of a parcel, and tensors of the remembered layout. Some receives may be
// under way even after a failure, such as out of memory: the parcel stays posted until Free.
func (l *remoteRun) post(c *torch.Ctx, e *edge, send schedule.Action) (*incoming, error) {
	in := &incoming{layout: l.lastLayout(send), link: l.gpuLink(send)}
	e.posted[send] = in
	if err := l.postMessage(send, headPart, len(head(0, 0)), in); err != nil {
		return in, err
	}
	return in, l.postTensors(c, send, in)
}

// postTensors allocates the tensors. Without a GPU link it begins to receive them.
func (l *remoteRun) postTensors(c *torch.Ctx, send schedule.Action, in *incoming) error {
	if in.link != nil {
		in.vacant = in.link.streams(c).Allocate(func() {
			for _, s := range in.layout.moving() {
				in.tensors = append(in.tensors, c.Keep(s.allocate(c)))
			}
		})
		return nil
	}
	in.staged = l.staged(c.Device())
	for k, s := range in.layout.moving() {
		if in.staged {
			in.tensors = append(in.tensors, c.Keep(engine.EmptyPinned(c, s.DType, s.Core, s.Strides)))
		} else {
			in.tensors = append(in.tensors, c.Keep(s.allocate(c)))
		}
		if err := l.begin(&in.works, l.transport.Receive, send.Stage, send, firstTensor+k,
			in.tensors[k]); err != nil {
			return err
		}
	}
	return nil
}

// postMessage begins to receive a head or layout of n bytes. A shorter message leaves zeros.
func (l *remoteRun) postMessage(send schedule.Action, part, n int, in *incoming) error {
	in.head = message(make([]byte, n))
	return l.begin(&in.works, l.transport.Receive, send.Stage, send, part, in.head)
}

func (l *remoteRun) receive(c *torch.Ctx, send schedule.Action, in *incoming) (p Parcel, err error) {
	if err := wait(in.works); err != nil {
		return p, err
	}
	number, layout := parseHead(torch.Bytes(in.head))
	g, known := in.link, in.layout != nil || layout > 0
	if g != nil && number != g.number || !known {
		return p, fmt.Errorf("link: %v is parcel %d of its sender, its layout is known: %v; want processes "+
			"with the same program and the same Penstock", send, number, known)
	}
	if layout > 0 {
		if err := l.receiveLayout(c, send, layout, in); err != nil {
			return p, err
		}
	}
	if g != nil {
		g.number++
		queue := func() error { return l.direct.comms.Transfer(g.comm, g.copies, in.tensors) }
		if err := g.streams(c).Receive(in.vacant, queue); err != nil {
			return p, fmt.Errorf("link: %v: %w", send, err)
		}
	}
	return in.parcel(c), nil
}

// receiveLayout receives a new layout of n bytes, and then the tensors.
func (l *remoteRun) receiveLayout(c *torch.Ctx, send schedule.Action, n int, in *incoming) error {
	in.drop()
	if err := l.postMessage(send, layoutPart, n, in); err != nil {
		return err
	}
	if err := wait(in.works); err != nil {
		return err
	}
	in.layout = nil
	if err := json.Unmarshal(torch.Bytes(in.head), &in.layout); err != nil {
		return fmt.Errorf("link: the layout of %v: %w", send, err)
	}
	l.layouts.Store(send, in.layout)
	if err := l.postTensors(c, send, in); err != nil {
		return err
	}
	return wait(in.works)
}

// parcel makes a parcel of the tensors. If it panics, in still owns them.
func (in *incoming) parcel(c *torch.Ctx) Parcel {
	p, next := Parcel{Device: c.Device()}, 0
	for _, slots := range in.layout {
		list := make([]Value, len(slots))
		for i, s := range slots {
			list[i].Wants = s.Wants
			switch {
			case s.Absent:
			case s.Same >= 0:
				list[i].Tensor = list[s.Same].Tensor
			case s.moves():
				if in.staged {
					in.replace(next, c.Keep(c.CopyHere(in.tensors[next])))
				}
				if !slices.Equal(s.Shape, s.Core) {
					in.replace(next, c.Keep(c.Expand(in.tensors[next], s.Shape...)))
				}
				list[i].Tensor = in.tensors[next]
				next++
			default:
				list[i].Tensor = c.Keep(c.Expand(s.allocate(c), s.Shape...))
				in.tensors = append(in.tensors, list[i].Tensor)
			}
		}
		p.Add(list)
	}
	in.tensors = nil
	in.drop()
	return p
}

func (in *incoming) replace(k int, t *torch.Tensor) {
	in.tensors[k].Free()
	in.tensors[k] = t
}
