package link

import (
	"encoding/binary"
	"fmt"
	"sync"

	"penstock.example/schedule"
	"penstock.example/torch"
)

// Transport moves the memory of dense tensors between processes. Messages with different tags do not wait
// for each other. Messages with the same tag arrive in the order of their sends. A message may be shorter
// than the memory that receives it, and must not be longer.
type Transport interface {
	Send(t *torch.Tensor, to, tag int) (Work, error)
	Receive(t *torch.Tensor, from, tag int) (Work, error)
}

// Work is a send or a receive under way. It is safe for concurrent use. The tensor must not change, or be
// freed, until Wait has returned.
type Work interface {
	// Wait blocks until the transfer has ended or the group has failed, and then returns the group's
	// error. It may be called again and returns the same.
	Wait() error
}

// wait waits for all works, also after one has failed: others may still write to their tensors. It
// returns the first error.
func wait(works []Work) (err error) {
	for _, w := range works {
		if failed := w.Wait(); err == nil {
			err = failed
		}
	}
	return err
}

// MaxTag bounds the tags of a Transport: 0 <= tag < MaxTag.
const MaxTag = 1 << 30

// Tags is a range of a Transport's tags.
type Tags struct{ First, Count int }

// Remote carries parcels between the stages of several processes, over a Transport whose sends end when they
// are received. It serves all runs of a pipe, one after the other; [Remote.Open] makes the Link of a run. The
// receiver's process must have a Remote for the same stages.
//
// A parcel is sent as a head and a message for each of its tensors. A receiver must know the sizes of tensors
// before they arrive. So both sides remember the layout of the last parcel of each send action:
//
//	the same layout    head, tensors                 all receives are begun at once
//	another layout     a byte in place of each       the byte ends the receive that was begun;
//	                   remembered tensor, head,      the layout is read,
//	                   layout, tensors               then the tensors
//
// So a batch with another number of rows, such as the last of an epoch, waits longer.
//
// A GPU's tensor is copied through pinned memory of the host at either end, unless a GPU link ([Direct])
// joins the two stages.
type Remote struct {
	transport Transport
	direct    *Direct // or nil
	ends      []int   // the end of each stage's GPU links
	rank      []int   // the process of each stage
	firstTag  int
	parts     int // tags of a parcel
	chunks    int

	layouts sync.Map // of the last parcel, by send action

	staged func(d torch.Device) bool // whether a device's tensors are copied through the host
}

// NewRemote makes a Remote. rank is the process of each stage, and chunks the largest number of
// micro-batches. No other Remote of the Transport may use the tags.
func NewRemote(t Transport, rank []int, chunks int, tags Tags) *Remote {
	return &Remote{transport: t, rank: rank, chunks: chunks, firstTag: tags.First,
		parts:  tags.Count / (2 * len(rank) * len(rank) * chunks),
		staged: func(d torch.Device) bool { return d.Kind != torch.KindCPU }}
}

// SetDirect makes parcels use GPU links. ends has the number of each stage's end. It is called before the
// first Open.
func (l *Remote) SetDirect(d *Direct, ends []int) { l.direct, l.ends = d, ends }

// gpuLink returns the GPU link of a send, or nil if the parcel goes through the hosts.
func (l *Remote) gpuLink(send schedule.Action) *gpuLink {
	if l.direct == nil {
		return nil
	}
	return l.direct.links[schedule.Edge{From: l.ends[send.Stage], To: l.ends[send.Peer]}]
}

func (l *Remote) lastLayout(send schedule.Action) layout {
	value, _ := l.layouts.Load(send)
	last, _ := value.(layout)
	return last
}

// The parts of a parcel. Each has a tag. A byte in place of a remembered tensor has that tensor's tag.
const (
	headPart = iota
	layoutPart
	firstTensor
)

// begin begins the message of a part of a parcel by call, the Transport's Send or Receive, and adds it to
// works. stage is the other end.
func (l *Remote) begin(works *[]Work, call func(t *torch.Tensor, peer, tag int) (Work, error), stage int,
	send schedule.Action, part int, t *torch.Tensor) error {
	if part >= l.parts {
		return fmt.Errorf("link: %v has more than %d tensors and lacks tags; want fewer micro-batches, "+
			"stages or replicas, or a cut that fewer tensors cross", send, l.parts-firstTensor)
	}
	kind := 0
	if send.Kind == schedule.SendGradient {
		kind = 1
	}
	n := len(l.rank)
	tag := l.firstTag + (((kind*n+send.Stage)*n+send.Peer)*l.chunks+send.MicroBatch)*l.parts + part
	w, err := call(t, l.rank[stage], tag)
	if err == nil {
		*works = append(*works, w)
	}
	return err
}

// message makes a tensor of short content, outside the memory accounts.
func message(content []byte) (t *torch.Tensor) {
	h := torch.NewCtx(torch.Options{})
	defer h.Close()
	h.Unlimited(func() { t = h.Keep(torch.From(h, content)) })
	return t
}

// head is the content of the first message of a parcel: its number on its GPU link, and the size of the
// layout that follows. Size 0 means the layout of the last parcel.
func head(number uint64, layout int) []byte {
	return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, number), uint64(layout))
}

func parseHead(b []byte) (number uint64, layout int) {
	return binary.LittleEndian.Uint64(b), int(binary.LittleEndian.Uint64(b[8:]))
}

// Open makes the link of a run. capacity is how many parcels may wait on each link between neighbours
// (schedule.Program.Capacity).
func (l *Remote) Open(capacity int) Link {
	return &remoteRun{Remote: l, capacity: capacity, edges: map[schedule.Action]*edge{}}
}

type remoteRun struct {
	*Remote
	capacity int
	mu       sync.Mutex
	edges    map[schedule.Action]*edge // by send of micro-batch 0
}

// edge is a link in one direction. Its sender and its receiver are in different processes.
type edge struct {
	capacity int                           // from Open; 0 between stages that are not neighbours
	sent     []*outgoing                   // parcels that may not have arrived
	expected []schedule.Action             // sends whose receives have not begun
	posted   map[schedule.Action]*incoming // receives that have begun, by send
}

func (l *remoteRun) edge(send schedule.Action) *edge {
	l.mu.Lock()
	defer l.mu.Unlock()
	send.MicroBatch = 0
	e := l.edges[send]
	if e == nil {
		e = &edge{posted: map[schedule.Action]*incoming{}}
		if send.Peer == send.Stage+1 || send.Peer == send.Stage-1 {
			e.capacity = l.capacity
		}
		l.edges[send] = e
	}
	return e
}

// full reports whether an edge with so many parcels has no capacity for another.
func (e *edge) full(parcels int) bool { return e.capacity > 0 && parcels >= e.capacity }

func (l *remoteRun) Meets(schedule.Action) bool { return true }

// Free waits until the parcels that were sent have arrived, or the group has failed, and frees them. Receives
// are left only after a failure of the run, which is a failure of the group.
func (l *remoteRun) Free() {
	for _, e := range l.edges {
		for _, out := range e.sent {
			wait(out.works) //nolint:errcheck // the run has ended; the group has its error
			out.free(true)
		}
		for _, in := range e.posted {
			wait(in.works) //nolint:errcheck // the same
			in.drop()
		}
	}
	clear(l.edges)
}
