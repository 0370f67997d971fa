package link

import (
	"encoding/binary"
	"fmt"
	"sync"

	"penstock.example/schedule"
	"penstock.example/torch"
)

// Transport moves the memory of tensors between processes. Messages with different tags do not wait
// for each other. Messages with the same tag arrive in the order in which they are sent. A message may
// be shorter than the memory that receives it, and must not be longer.
type Transport interface {
	// Send begins to send the memory of a dense tensor to a process. The tensor must stay until
	// the work is done.
	Send(t *torch.Tensor, to, tag int) (Work, error)
	// Receive begins to fill the memory of a dense tensor with what a process sends.
	Receive(t *torch.Tensor, from, tag int) (Work, error)
}

// Work is a send or a receive under way. It is safe for concurrent use. The tensor must stay as it is
// until Wait has returned.
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

// Remote carries parcels between the stages of several processes, over a Transport on which a send
// ends when it is received. It is for all runs of a pipe, one after the other; [Remote.Open] makes
// the Link of a run. The receiver's process must have a Remote for the same stages.
//
// A parcel is a head and a message for each of its tensors. A receiver must know the sizes of tensors
// before they arrive. Both sides therefore remember the layout of the last parcel of each send action:
//
//	the same layout    head, tensors                 all receives are begun at once
//	another layout     a byte in place of each       the byte ends the receive that was begun;
//	                   remembered tensor, head,      the layout is read,
//	                   layout, tensors               then the tensors
//
// So a batch with another number of rows, such as the last of an epoch, waits longer.
//
// A tensor of a GPU goes by a copy in pinned memory of the host at either end, unless a GPU link
// ([Direct]) joins the two stages.
type Remote struct {
	transport Transport
	direct    *Direct // or nil
	ends      []int   // of the GPU links, by stage
	rank      []int   // by stage
	first     int     // tag
	parts     int     // tags of a parcel
	chunks    int

	known sync.Map // the layout of the last parcel, by send

	staged func(d torch.Device) bool // whether tensors of a device go by a copy on the host
}

// NewRemote makes a Remote. rank is the process of each stage, chunks the most micro-batches, tags
// the tags that no other Remote of the Transport uses.
func NewRemote(t Transport, rank []int, chunks int, tags Tags) *Remote {
	return &Remote{transport: t, rank: rank, chunks: chunks, first: tags.First,
		parts:  tags.Count / (2 * len(rank) * len(rank) * chunks),
		staged: func(d torch.Device) bool { return d.Kind != torch.KindCPU }}
}

// SetDirect lets parcels take GPU links. ends is the end of each stage, as Direct numbers them. It comes
// before the first Open.
func (l *Remote) SetDirect(d *Direct, ends []int) { l.direct, l.ends = d, ends }

// gpuLink returns the GPU link of a send, or nil if the parcel goes through the hosts.
func (l *Remote) gpuLink(send schedule.Action) *gpuLink {
	if l.direct == nil {
		return nil
	}
	return l.direct.links[schedule.Edge{From: l.ends[send.Stage], To: l.ends[send.Peer]}]
}

// last returns the layout of a send's last parcel, or nil.
func (l *Remote) last(send schedule.Action) layout {
	known, _ := l.known.Load(send)
	last, _ := known.(layout)
	return last
}

// Parts of a parcel. Each has a tag. A byte in place of a remembered tensor has the tag of the tensor that
// follows it.
const (
	headPart = iota
	layoutPart
	firstTensor
)

// transfer is the Send or Receive of a Transport.
type transfer func(t *torch.Tensor, peer, tag int) (Work, error)

// begin begins the message of a part of a parcel, and adds it to the works. stage is that of the other end.
func (l *Remote) begin(works *[]Work, call transfer, stage int, send schedule.Action, part int,
	t *torch.Tensor) error {
	if part >= l.parts {
		return fmt.Errorf("link: %v has more than %d tensors, for which there are no tags; want fewer "+
			"micro-batches, stages or replicas, or a cut that fewer tensors cross", send, l.parts-firstTensor)
	}
	kind := 0
	if send.Kind == schedule.SendGradient {
		kind = 1
	}
	n := len(l.rank)
	tag := l.first + (((kind*n+send.Stage)*n+send.Peer)*l.chunks+send.MicroBatch)*l.parts + part
	w, err := call(t, l.rank[stage], tag)
	if err == nil {
		*works = append(*works, w)
	}
	return err
}

// message makes a tensor of short content, in no device's account.
func message(content []byte) (t *torch.Tensor) {
	h := torch.NewCtx(torch.Options{})
	defer h.Close()
	h.Unlimited(func() { t = h.Keep(torch.From(h, content)) })
	return t
}

// head is the content of the first message of a parcel: its number on its GPU link, and the bytes of the
// layout that follows. Without these the parcel has the layout of the last one.
func head(number uint64, layout int) []byte {
	return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, number), uint64(layout))
}

func parseHead(b []byte) (number uint64, layout int) {
	return binary.LittleEndian.Uint64(b), int(binary.LittleEndian.Uint64(b[8:]))
}

// Open makes the link of a run. capacity is how many values may wait on each link between neighbours
// (schedule.Program.Capacity).
func (l *Remote) Open(capacity int) Link {
	return &remoteRun{Remote: l, capacity: capacity, edges: map[edgeOf]*edge{}}
}

// remoteRun is the link of a run.
type remoteRun struct {
	*Remote
	capacity int
	mu       sync.Mutex
	edges    map[edgeOf]*edge
}

// edgeOf names a link in one direction.
type edgeOf struct {
	kind     schedule.Kind
	from, to int
}

// edge is a link in one direction. Its sender and its receiver are in different processes.
type edge struct {
	capacity int                           // as of Open; 0 between stages that are not neighbours
	sent     []*outgoing                   // not known to have arrived
	queued   []schedule.Action             // expected sends, without receives so far
	posted   map[schedule.Action]*incoming // by send, until the parcel is handed over
}

// edge returns the edge of a send.
func (l *remoteRun) edge(send schedule.Action) *edge {
	l.mu.Lock()
	defer l.mu.Unlock()
	of := edgeOf{send.Kind, send.Stage, send.Peer}
	e := l.edges[of]
	if e == nil {
		e = &edge{posted: map[schedule.Action]*incoming{}}
		if of.to == of.from+1 || of.to == of.from-1 {
			e.capacity = l.capacity
		}
		l.edges[of] = e
	}
	return e
}

// full reports whether as many values are on an edge as may wait there.
func (e *edge) full(values int) bool { return e.capacity > 0 && values >= e.capacity }

// Meets is true: a send ends when it is received.
func (l *remoteRun) Meets(schedule.Action) bool { return true }

// Free waits until the parcels that were sent have arrived, or the group has failed, and frees them.
// Receives that are still begun then belong to a run that failed, and so has the group.
func (l *remoteRun) Free() {
	for _, e := range l.edges {
		for _, out := range e.sent {
			wait(out.works) //nolint:errcheck // the run has ended; the group has its error
			out.free(true)
		}
		for _, in := range e.posted {
			wait(in.works) //nolint:errcheck // likewise
			in.drop()
		}
	}
	clear(l.edges)
}
