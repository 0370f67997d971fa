package link

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"

	"penstock.example/internal/stream"
	"penstock.example/schedule"
	"penstock.example/torch"
)

// Transport moves the memory of tensors between processes. Messages with different tags do not wait
// for each other; those with the same tag arrive in the order in which they are sent. A message may
// be shorter than the memory it is received in, and must not be longer.
type Transport interface {
	// Send begins to send the memory of a dense tensor to a process. The tensor must stay until
	// the work is done.
	Send(t *torch.Tensor, to, tag int) (Work, error)
	// Receive begins to fill the memory of a dense tensor with what a process sends.
	Receive(t *torch.Tensor, from, tag int) (Work, error)
}

// Tags is a range of a Transport's tags.
type Tags struct{ First, Count int }

// Remote carries parcels between the stages of several processes, over a Transport on which a send
// ends when it is received. It is for all runs of a pipe, one after the other; [Remote.Open] makes
// the Link of a run. The process of the receiver must have a Remote for the same stages.
//
// A parcel is one message for each of its tensors. Whoever receives must know the sizes before. Both
// sides therefore remember the layout of the last parcel of a send action. Where this parcel has
// another, a byte comes in place of each remembered tensor:
//
//	the same layout    tensors                          received all at once
//	another layout     a byte in place of each          the receives that were begun end;
//	                   remembered tensor, head,         the layout is read,
//	                   layout, tensors                  then the tensors
//
// The receiver tells the byte from a tensor by a mark, which it has written to the end of the first
// tensor's memory (mark.go). A parcel that ends with the mark itself is sent as one of another layout.
// Where all tensors are too small for a mark, each parcel has a head, which says whether a layout
// follows. A batch with other rows, as the last of an epoch, costs three messages and waits more at
// each change.
//
// A tensor of a GPU goes by a copy in pinned memory of the host, at either end, unless its parcel has
// a way of its own ([Direct]).
type Remote struct {
	transport Transport
	direct    *Direct // or nil
	ends      []int   // of the ways, by stage
	rank      []int   // by stage
	first     int     // tag
	parts     int     // tags of a parcel
	chunks    int

	staged func(d torch.Device) bool // whether tensors of a device go by a copy on the host

	mu    sync.Mutex
	known map[schedule.Action][]byte // the layout of the last parcel, by send
}

// NewRemote makes a Remote. rank is the process of each stage, chunks the most micro-batches, tags
// what no other Remote of the Transport uses.
func NewRemote(t Transport, rank []int, chunks int, tags Tags) (*Remote, error) {
	sends := 2 * len(rank) * len(rank) * chunks
	l := &Remote{transport: t, rank: rank, chunks: chunks, first: tags.First, parts: tags.Count / sends,
		known: map[schedule.Action][]byte{}, staged: func(d torch.Device) bool { return d.Kind != torch.KindCPU }}
	if l.parts < 16 {
		return nil, fmt.Errorf("link: %d stages and %d micro-batches have %d sends between processes, and there are tags "+
			"for %d; want fewer", len(rank), chunks, sends, tags.Count/16)
	}
	return l, nil
}

// SetDirect has parcels take the ways that there are. ends has the device of each stage, as the ways
// number them. It comes before the first Open.
func (l *Remote) SetDirect(d *Direct, ends []int) { l.direct, l.ends = d, ends }

// way is that of a send, or nil where parcels go through the hosts.
func (l *Remote) way(send schedule.Action) *way {
	if l.direct == nil {
		return nil
	}
	return l.direct.ways[schedule.Edge{From: l.ends[send.Stage], To: l.ends[send.Peer]}]
}

// last is the layout of a send's last parcel, if there was one.
func (l *Remote) last(send schedule.Action) (text []byte, known bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	text, known = l.known[send]
	return text, known
}

// recall remembers the layout of a send's parcel, and reports whether the one before had the same.
func (l *Remote) recall(send schedule.Action, text []byte) (same bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before, was := l.known[send]
	l.known[send] = text
	return was && bytes.Equal(before, text)
}

// Open makes the link of a run in which so many values may wait on each link between neighbours
// (schedule.Program.Capacity).
func (l *Remote) Open(capacity int) Link {
	return &remoteRun{Remote: l, capacity: capacity, waiting: map[edge][]*sending{}, wanted: map[edge][]schedule.Action{},
		expected: map[schedule.Action]*arriving{}}
}

// remoteRun is the link of a run.
type remoteRun struct {
	*Remote
	capacity int

	mu       sync.Mutex // of the fields, not of the values: an edge has one sender and one receiver
	waiting  map[edge][]*sending
	wanted   map[edge][]schedule.Action    // sends whose parcels are expected and not begun to receive
	expected map[schedule.Action]*arriving // by send, of those that are begun and were not received, whatever has failed
}

// aheadBytes is what an edge may receive ahead, or a single parcel that is larger. A sender hears that
// there is room for a parcel a latency after the receive is begun, and what it sends takes another. A
// link is busy meanwhile if there is room for what it carries in both: 4 MiB are four milliseconds of
// 8 Gbit/s, and 320 of 100 Mbit/s.
const aheadBytes = 4 << 20

// edge is a link in one direction.
type edge struct {
	kind     schedule.Kind
	from, to int
}

// sending is a parcel that was sent and is not known to have arrived.
type sending struct {
	send   schedule.Action
	works  []Work
	parcel Parcel
	made   []*torch.Tensor // for the messages, and not in the parcel
	way    stream.Way      // if it has one
	left   stream.Event    // of a way: the tensors have left; or nil
}

// wait waits until the parcel has arrived, and frees it. On failure it is left to Free.
func (s *sending) wait() error {
	err := wait(s.works)
	if err == nil {
		s.free()
	}
	return err
}

func (s *sending) free() {
	if s.left == nil {
		s.drop()
		return
	}
	s.way.Free(s.left, s.drop)
	s.left = nil
}

// finish is free at the end of a run.
func (s *sending) finish() {
	if s.left != nil {
		s.way.Finish(stream.Host{}, s.left, func() { s.left = nil })
	}
	s.drop()
}

func (s *sending) drop() {
	s.parcel.Free()
	torch.FreeAll(s.made)
	s.made = nil
}

// content is a short message, in no device's account.
func (s *sending) content(content []byte) (t *torch.Tensor) {
	h := torch.NewCtx(torch.Options{})
	defer h.Close()
	h.Unlimited(func() { t = h.Keep(torch.From(h, content)) })
	s.made = append(s.made, t)
	return t
}

// onHost copies tensors to the memory of the host, and waits until they are there.
func (s *sending) onHost(c *torch.Ctx, tensors []*torch.Tensor) []*torch.Tensor {
	out := make([]*torch.Tensor, len(tensors))
	for i, t := range tensors {
		out[i] = c.Keep(c.ToHost(t))
		s.made = append(s.made, out[i])
	}
	c.Synchronize()
	return out
}

// Parts of a parcel's tags. The tensors of a new layout have tags of their own, as those of the
// remembered one are taken by the receives that were begun.
const (
	headTag = iota
	layoutTag
	firstTensorTag
)

// tag is the first tag of the parcel of a send.
func (l *Remote) tag(send schedule.Action) int {
	kind := 0
	if send.Kind == schedule.SendGradient {
		kind = 1
	}
	n := len(l.rank)
	return l.first + (((kind*n+send.Stage)*n+send.Peer)*l.chunks+send.MicroBatch)*l.parts
}

// tensorTag is the part of a parcel's tags of its k-th tensor, of a remembered layout or a new one.
func (l *Remote) tensorTag(send schedule.Action, k int, fresh bool) (int, error) {
	at := firstTensorTag + 2*k
	if fresh {
		at++
	}
	if at >= l.parts {
		return 0, fmt.Errorf("link: %v has more than %d tensors, for which there are no tags; want fewer micro-batches, "+
			"or a cut that fewer tensors cross", send, k)
	}
	return at, nil
}

// headBytes is the size of a head: the number of bytes of the layout that follows, or 0 if the
// parcel has the layout of the one before.
const headBytes = 8

// Send begins to send a parcel, and waits while more values than the capacity are on their way.
func (l *remoteRun) Send(c *torch.Ctx, send schedule.Action, p Parcel) error {
	s := &sending{send: send, parcel: p}
	e := edgeOf(send)
	if err := l.reap(e); err != nil {
		s.free()
		return err
	}
	l.mu.Lock()
	l.waiting[e] = append(l.waiting[e], s) // whatever fails: works may go on
	l.mu.Unlock()
	err := l.begin(c, send, s)
	if err != nil || l.capacity != schedule.Meet || send.Peer != send.Stage+1 && send.Peer != send.Stage-1 {
		return err
	}
	return s.wait()
}

func edgeOf(send schedule.Action) edge { return edge{send.Kind, send.Stage, send.Peer} }

// Settle waits for a send, if it is still on its way.
func (l *remoteRun) Settle(send schedule.Action) error {
	l.mu.Lock()
	e := edgeOf(send)
	list := l.waiting[e]
	l.mu.Unlock()
	at := slices.IndexFunc(list, func(s *sending) bool { return s.send == send })
	if at < 0 {
		return nil
	}
	if err := list[at].wait(); err != nil {
		return err
	}
	l.mu.Lock()
	l.waiting[e] = append(slices.Clone(list[:at]), list[at+1:]...)
	l.mu.Unlock()
	return nil
}

// reap waits until one more parcel may be sent on an edge, and frees those that have arrived then.
func (l *remoteRun) reap(e edge) error {
	l.mu.Lock()
	list := l.waiting[e]
	l.mu.Unlock()
	for l.full(e, len(list)) {
		if err := list[0].wait(); err != nil {
			return err
		}
		list = list[1:]
	}
	l.mu.Lock()
	l.waiting[e] = list
	l.mu.Unlock()
	return nil
}

// begin begins all messages of a parcel.
func (l *remoteRun) begin(c *torch.Ctx, send schedule.Action, s *sending) error {
	shape, tensors, err := s.pack(c)
	if err != nil {
		return err
	}
	text := shape.encode()
	if len(text) > maxLayout {
		return fmt.Errorf("link: the description of %v has %d bytes; want at most %d", send, len(text), maxLayout)
	}
	if w := l.way(send); w != nil {
		return l.sendDirect(c, send, s, w, shape, tensors)
	}
	if l.staged(c.Device()) {
		tensors = s.onHost(c, tensors)
	}
	before, was := l.last(send)
	same, marked := l.recall(send, text), shape.marked()
	if same && marked >= 0 && hasMark(c, tensors[marked]) {
		same = false
	}
	if !same && was {
		old, err := parseLayout(before)
		if err != nil {
			return err
		}
		for k := range old.tensors() {
			tag, err := l.tensorTag(send, k, false)
			if err == nil {
				err = l.post(send, s, s.content([]byte{0}), tag)
			}
			if err != nil {
				return err
			}
		}
	}
	if !same || marked < 0 {
		head := make([]byte, headBytes)
		if !same {
			binary.LittleEndian.PutUint64(head, uint64(len(text)))
		}
		if err := l.post(send, s, s.content(head), headTag); err != nil {
			return err
		}
	}
	if !same {
		if err := l.post(send, s, s.content(text), layoutTag); err != nil {
			return err
		}
	}
	for k, t := range tensors {
		tag, err := l.tensorTag(send, k, !same)
		if err == nil {
			err = l.post(send, s, t, tag)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// post begins a message, whose tag is that of a part of the parcel.
func (l *remoteRun) post(send schedule.Action, s *sending, t *torch.Tensor, part int) error {
	w, err := l.transport.Send(t, l.rank[send.Peer], l.tag(send)+part)
	if err == nil {
		s.works = append(s.works, w)
	}
	return err
}

// Expect begins to receive a parcel, the tensors of the remembered layout or the head, once there is
// room for it beside those that are expected before it on its edge.
func (l *remoteRun) Expect(c *torch.Ctx, send schedule.Action) error {
	e := edgeOf(send)
	l.mu.Lock()
	l.wanted[e] = append(l.wanted[e], send)
	l.mu.Unlock()
	return l.advance(c, e)
}

// advance begins to receive what is expected on an edge, as far as there is room. An error says of which
// parcel it is.
func (l *remoteRun) advance(c *torch.Ctx, e edge) error {
	for {
		l.mu.Lock()
		wanted, parcels, bytes := l.wanted[e], 0, int64(0)
		for send, a := range l.expected {
			if edgeOf(send) == e {
				parcels, bytes = parcels+1, bytes+a.bytes
			}
		}
		l.mu.Unlock()
		if len(wanted) == 0 || l.full(e, parcels) {
			return nil
		}
		a, err := l.next(wanted[0])
		if err != nil || parcels >= 1 && bytes+a.bytes > aheadBytes {
			return err
		}
		l.mu.Lock()
		l.wanted[e] = wanted[1:]
		l.mu.Unlock()
		if failed := torch.Try(func() { err = l.expect(c, wanted[0], a) }); failed != nil || err != nil {
			return fmt.Errorf("link: %v, ahead of its receive: %w", wanted[0], cmp.Or(failed, err))
		}
	}
}

// full says of an edge that as many values are on it as may wait.
func (l *remoteRun) full(e edge, values int) bool {
	neighbours := e.to == e.from+1 || e.to == e.from-1
	return neighbours && l.capacity > 0 && values >= l.capacity
}

// Receive receives a parcel on the device of c, and begins to receive what its room is for then.
func (l *remoteRun) Receive(c *torch.Ctx, send schedule.Action) (p Parcel, err error) {
	e := edgeOf(send)
	l.mu.Lock()
	a := l.expected[send]
	if a == nil {
		l.wanted[e] = slices.DeleteFunc(l.wanted[e], func(s schedule.Action) bool { return s == send })
	}
	l.mu.Unlock()
	if a == nil {
		if a, err = l.next(send); err == nil {
			err = l.expect(c, send, a)
		}
	}
	if err == nil {
		p, err = l.receive(c, send, a)
	}
	if err != nil {
		return p, err
	}
	l.mu.Lock()
	delete(l.expected, send)
	l.mu.Unlock()
	if err := l.advance(c, e); err != nil {
		p.Free()
		return Parcel{}, err
	}
	return p, nil
}

// receive receives a parcel that was begun to receive.
func (l *remoteRun) receive(c *torch.Ctx, send schedule.Action, a *arriving) (p Parcel, err error) {
	if a.way != nil {
		return l.receiveDirect(c, send, a)
	}
	if err := wait(a.works); err != nil {
		return p, err
	}
	if a.marked >= 0 && hasMark(c, a.tensors[a.marked]) { // a byte has come
		if err := l.expectHead(send, a, headBytes); err != nil {
			return p, err
		}
	}
	if a.head == nil {
		return a.parcel(c), nil
	}
	head, err := a.head.bytes()
	if err != nil {
		return p, err
	}
	n := binary.LittleEndian.Uint64(head)
	if n == 0 && a.known && a.marked < 0 {
		return a.parcel(c), nil
	}
	if n > maxLayout || n == 0 {
		return p, fmt.Errorf("link: %v came with a head of %d; want processes with the same program and the same Penstock", send, n)
	}
	a.drop()
	text, err := l.text(send, int(n))
	if err == nil {
		a.layout, err = parseLayout(text)
	}
	if err == nil {
		a.marked = -1
		err = l.tensors(c, send, true, a)
	}
	if err != nil {
		return p, err
	}
	l.recall(send, text)
	if err := wait(a.works); err != nil {
		return p, err
	}
	return a.parcel(c), nil
}

// arriving is a parcel that is being received.
type arriving struct {
	head    *arrivingBytes // nil if there is none so far
	known   bool           // the layout is that of the parcel before, or that which came with this one
	marked  int            // the tensor that has a mark until it arrives, or -1
	bytes   int64          // that it had last time
	layout  layout
	tensors []*torch.Tensor // the cores that move
	works   []Work
	staged  bool         // the tensors are on the host
	way     *way         // or nil
	vacant  stream.Event // of a way: nothing uses the memory of the tensors any more
}

// next is a parcel that is not begun to receive, which has the remembered layout.
func (l *remoteRun) next(send schedule.Action) (a *arriving, err error) {
	text, known := l.last(send)
	a = &arriving{way: l.way(send), known: known, marked: -1}
	if known {
		a.layout, err = parseLayout(text)
		a.bytes = int64(a.layout.bytes())
	}
	return a, err
}

// expect begins to receive what has the remembered layout, and the head where that has no mark. Where it
// fails, as without memory, some of it may be under way: it is expected until Free.
func (l *remoteRun) expect(c *torch.Ctx, send schedule.Action, a *arriving) error {
	l.mu.Lock()
	l.expected[send] = a
	l.mu.Unlock()
	if a.way != nil {
		a.makeRoom(c)
		return l.expectHead(send, a, directHeadBytes)
	}
	if a.known {
		a.marked = a.layout.marked()
		if err := l.tensors(c, send, false, a); err != nil || a.marked >= 0 {
			return err
		}
	}
	return l.expectHead(send, a, headBytes)
}

// expectHead begins to receive a head of so many bytes.
func (l *remoteRun) expectHead(send schedule.Action, a *arriving, n int) (err error) {
	if a.head, err = l.small(n, send, headTag); err == nil {
		a.works = append(a.works, a.head.work)
	}
	return err
}

// text receives a layout of so many bytes.
func (l *remoteRun) text(send schedule.Action, n int) ([]byte, error) {
	m, err := l.small(n, send, layoutTag)
	if err != nil {
		return nil, err
	}
	return m.bytes()
}

// tensors begins to receive the tensors of a layout.
func (l *remoteRun) tensors(c *torch.Ctx, send schedule.Action, fresh bool, a *arriving) error {
	a.staged = l.staged(c.Device())
	for k, s := range a.layout.tensors() {
		tag, err := l.tensorTag(send, k, fresh)
		if err != nil {
			return err
		}
		var t *torch.Tensor
		if a.staged {
			t = c.Keep(c.EmptyPinned(s.dtype, s.core, s.strides))
		} else {
			t = c.Keep(s.empty(c))
		}
		a.tensors = append(a.tensors, t)
		if k == a.marked {
			if err := setMark(c, t); err != nil {
				return err
			}
		}
		w, err := l.transport.Receive(t, l.rank[send.Stage], l.tag(send)+tag)
		if err != nil {
			return err
		}
		a.works = append(a.works, w)
	}
	return nil
}

// arrivingBytes is a short message that is being received, in no device's account.
type arrivingBytes struct {
	t    *torch.Tensor
	work Work
}

func (l *remoteRun) small(n int, send schedule.Action, part int) (*arrivingBytes, error) {
	m, h := &arrivingBytes{}, torch.NewCtx(torch.Options{})
	defer h.Close()
	h.Unlimited(func() { m.t = h.Keep(h.Empty(torch.Uint8, int64(n))) })
	var err error
	if m.work, err = l.transport.Receive(m.t, l.rank[send.Stage], l.tag(send)+part); err != nil {
		m.t.Free()
		return nil, err
	}
	return m, nil
}

// bytes waits for the message and frees its tensor.
func (m *arrivingBytes) bytes() ([]byte, error) {
	defer func() {
		m.t.Free()
		m.t = nil
	}()
	if err := m.work.Wait(); err != nil {
		return nil, err
	}
	return torch.Bytes(m.t), nil
}

// wait waits for all works, also when one has failed: others may still write to their tensors. It
// returns the error of the first that has one.
func wait(works []Work) (err error) {
	for _, w := range works {
		err = cmp.Or(err, w.Wait())
	}
	return err
}

// drop frees the tensors that were not made part of a parcel. Nothing arrives in them any more.
func (a *arriving) drop() {
	if a.head != nil {
		a.head.t.Free()
	}
	if a.vacant != nil {
		a.vacant.Free()
	}
	torch.FreeAll(a.tensors)
	a.head, a.tensors, a.works, a.vacant = nil, nil, nil, nil
}

// parcel is what has arrived. Until it is whole its tensors are among a's.
func (a *arriving) parcel(c *torch.Ctx) Parcel {
	p, next := Parcel{Device: c.Device()}, 0
	for _, slots := range a.layout {
		list := make([]Value, len(slots))
		for i, s := range slots {
			list[i].Wants = s.wants
			switch {
			case s.absent:
			case s.same >= 0:
				list[i].Tensor = list[s.same].Tensor
			case s.moves():
				if a.staged {
					a.replace(next, c.Keep(c.CopyHere(a.tensors[next])))
				}
				if !slices.Equal(s.shape, s.core) {
					a.replace(next, c.Keep(c.Expand(a.tensors[next], s.shape...)))
				}
				list[i].Tensor = a.tensors[next]
				next++
			default:
				list[i].Tensor = c.Keep(c.Expand(s.empty(c), s.shape...))
				a.tensors = append(a.tensors, list[i].Tensor)
			}
		}
		p.Add(list)
	}
	a.tensors = nil
	a.drop()
	return p
}

func (a *arriving) replace(k int, t *torch.Tensor) {
	a.tensors[k].Free()
	a.tensors[k] = t
}

// Meets is true: a send ends when it is received.
func (l *remoteRun) Meets(schedule.Action) bool { return true }

// Abort does nothing: whoever aborts fails the group, which ends all works and a Direct's moves.
func (l *remoteRun) Abort() {}

// Free waits until the parcels that were sent have arrived, or the group has failed, and frees them.
// What is still expected then is of a run that failed, and so has the group.
func (l *remoteRun) Free() {
	for _, list := range l.waiting {
		for _, s := range list {
			wait(s.works) //nolint:errcheck // the run has ended; the group has its error
			s.finish()
		}
	}
	clear(l.waiting)
	for _, a := range l.expected {
		wait(a.works) //nolint:errcheck // likewise
		a.drop()
	}
	clear(l.expected)
}

// tensors are the slots whose tensors move.
func (l layout) tensors() (out []slot) {
	for _, list := range l {
		for _, s := range list {
			if s.moves() {
				out = append(out, s)
			}
		}
	}
	return out
}

// pack describes a parcel, and lists the cores that move. They are kept as long as s is.
func (s *sending) pack(c *torch.Ctx) (out layout, tensors []*torch.Tensor, err error) {
	p := &s.parcel
	for _, list := range p.Lists() {
		slots := make([]slot, len(list))
		for i, v := range list {
			at := &slots[i]
			at.absent, at.wants, at.same = v.Tensor == nil, v.Wants, -1
			if at.absent {
				continue
			}
			if at.same = slices.IndexFunc(list[:i], func(e Value) bool { return e.Tensor == v.Tensor }); at.same >= 0 {
				continue
			}
			core, strides, err := coreOf(c, v.Tensor)
			if err != nil {
				return nil, nil, fmt.Errorf("link: %v: %w", s.send, err)
			}
			if core != v.Tensor {
				s.made = append(s.made, c.Keep(core))
			}
			at.dtype, at.shape = v.Tensor.DType(), v.Tensor.Shape()
			at.core, at.strides = core.Shape(), strides
			if at.moves() {
				tensors = append(tensors, core)
			}
		}
		out = append(out, slots)
	}
	return out, tensors, nil
}

// coreOf is a view of t without the dimensions along which t repeats itself, with its strides: what a
// copy to another device would hold. t must be dense, as a copy that is made here would be in no plan.
func coreOf(c *torch.Ctx, t *torch.Tensor) (core *torch.Tensor, strides []int64, err error) {
	strides = c.Strides(t)
	if !torch.Dense(t.Shape(), strides) {
		return nil, nil, fmt.Errorf("a tensor of shape %v with strides %v has gaps; want it dense", t.Shape(), strides)
	}
	core = t
	for d, stride := range strides {
		if stride == 0 && core.Size(d) > 1 {
			core = c.Narrow(core, int64(d), 0, 1)
		}
	}
	return core, strides, nil
}

// empty makes room for a core.
func (s slot) empty(c *torch.Ctx) *torch.Tensor { return c.EmptyStrided(s.dtype, s.core, s.strides) }
