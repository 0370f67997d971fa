package link_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"penstock.example/group"
	"penstock.example/internal/engine"
	"penstock.example/internal/link"
	"penstock.example/internal/linktest"
	"penstock.example/internal/must"
	streams "penstock.example/internal/stream"
	"penstock.example/internal/torchtest"
	"penstock.example/schedule"
	"penstock.example/torch"
	"pgregory.net/rapid"
)

// member is a process with one worker, whose rank is the worker's number.
type member struct {
	group   *group.Group
	remote  *link.Remote
	direct  *link.Direct
	connect func() error
}

// meet gathers the ids of all members of a group, or of one process.
func meet(g *group.Group) func([]link.NamedID, error) ([][]link.NamedID, error) {
	return func(own []link.NamedID, failed error) ([][]link.NamedID, error) {
		return group.Meet(context.Background(), g, "ids", own, failed)
	}
}

// join makes the processes of stages on the given workers, with ways between all that are neighbours
// or among skips.
func join(t rapid.TB, worker []int, skips []schedule.Edge, chunks int, fabric *linktest.Fabric) []*member {
	n := slices.Max(worker) + 1
	var edges []schedule.Edge
	pairs := slices.Clone(skips)
	for s := range len(worker) - 1 {
		pairs = append(pairs, schedule.Edge{From: s, To: s + 1})
	}
	for _, p := range pairs {
		if a, b := worker[p.From], worker[p.To]; a != b {
			edges = append(edges, schedule.Edge{From: a, To: b}, schedule.Edge{From: b, To: a})
		}
	}
	members := make([]*member, n)
	for rank, g := range group.Local(n) {
		m := &member{group: g, remote: link.NewRemote(g, worker, chunks, link.Tags{Count: link.MaxTag})}
		copies := 0
		end := link.End{Device: torch.CPU(rank),
			Copies: func() streams.Stream { copies++; return linktest.NewStream(uint64(100*rank + copies)) }}
		m.connect = func() (err error) {
			m.direct, err = link.Connect(fabric.Communicators(), edges, map[int]link.End{rank: end},
				g.Failed(),
				func(err error) {
					g.Fail(group.FailedError{Stage: -1, MicroBatch: -1, Message: err.Error()})
				}, meet(g))
			m.remote.SetDirect(m.direct, worker)
			return err
		}
		members[rank] = m
	}
	together(t, members, func(m *member) error { return m.connect() })
	return members
}

// together runs f for all members at once.
func together(t rapid.TB, members []*member, f func(m *member) error) {
	var all sync.WaitGroup
	for rank, m := range members {
		all.Go(func() {
			if err := f(m); err != nil {
				t.Errorf("process %d: %v", rank, err)
			}
		})
	}
	all.Wait()
}

func leave(t rapid.TB, members []*member) {
	together(t, members, func(m *member) error { m.direct.Close(); return nil })
}

// Parcels of any schedule, each worker a process with ways to others, arrive as they were sent, whose
// layouts change, with any number of receives that were expected.
func TestDirect(t *testing.T) {
	torchtest.Check(t)
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.SampledFrom([]string{"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"}).Draw(t,
			"schedule")
		s := must.Get(schedule.Named(name))(t)
		devices, virtual := rapid.IntRange(2, 4).Draw(t, "devices"), s.Virtual
		if virtual == 0 {
			virtual = rapid.IntRange(1, 2).Draw(t, "virtual")
		}
		var skips []schedule.Edge
		if n := devices * virtual; n > 2 && rapid.Bool().Draw(t, "skip") {
			skips = append(skips, schedule.Edge{From: 0, To: n - 1})
		}
		p, err := s.Program(devices, virtual,
			schedule.Config{MicroBatches: rapid.IntRange(1, 4).Draw(t, "micro-batches"),
				Capacity: rapid.IntRange(schedule.Meet, 2).Draw(t, "capacity"), Skips: skips})
		if err != nil {
			t.Skip(err)
		}
		ahead := rapid.IntRange(0, 4).Draw(t, "receives ahead") // of a worker
		members := join(t, p.Placement(), skips, p.MicroBatches, &linktest.Fabric{})
		defer func() { leave(t, members) }()
		graph := p.Graph()
		for range 2 {
			c := torch.NewCtx(torch.Options{})
			parcels, wants := map[schedule.Action]link.Parcel{}, map[schedule.Action]string{}
			for id, a := range graph.Actions {
				if !a.Kind.Send() {
					continue
				}
				if at, _ := graph.IndexOf(a.Matching()); graph.Worker[at] != graph.Worker[id] {
					parcels[a], wants[a] = parcel(t, c)
					wants[a] += "end"
				}
			}
			var all sync.WaitGroup
			for w, actions := range p.Workers {
				all.Go(func() {
					c := torch.NewCtx(torch.Options{Device: torch.CPU(w)})
					defer c.Close()
					l := members[w].remote.Open(p.Capacity)
					defer l.Free()
					failed := func(err error) {
						t.Errorf("%v (%v)", err, members[w].group.Err())
						members[w].group.Fail(group.FailedError{Stage: -1, Message: err.Error()})
					}
					// the action that is looked at, and receives that were expected and are to come
					next, expected := 0, 0
					for i, a := range actions {
						for next = max(next, i); expected < ahead && next < len(actions); next++ {
							if send := actions[next].Matching(); actions[next].Kind.Receive() &&
								wants[send] != "" {
								expected++
								if err := l.Expect(c, send); err != nil {
									failed(err)
								}
							}
						}
						switch of, is := parcels[a]; {
						case is:
							if err := l.Send(c, a, of); err != nil {
								failed(err)
							}
						case a.Kind.Receive() && wants[a.Matching()] != "":
							p, err := l.Receive(c, a.Matching())
							expected = max(expected-1, 0)
							if err != nil {
								failed(err)
								continue
							}
							if got := describe(c, p) + "end"; got != wants[a.Matching()] ||
								p.Device != torch.CPU(w) {
								t.Errorf("%v on %v is\n%swant\n%s", a, p.Device, got, wants[a.Matching()])
							}
							p.Free()
						}
						c.Close()
					}
				})
			}
			all.Wait()
			c.Close()
		}
	})
}

// A parcel in another order, or of a layout that is not known, is an error on the side of the receiver.
func TestDirectRefuses(t *testing.T) {
	for _, row := range []struct {
		sends, receives []int // micro-batches
		fresh           bool  // the receiver forgets
		want            string
	}{
		{[]int{0, 1}, []int{1}, false, "0F1>1 is parcel 1 of its sender, its layout is known: true"},
		{[]int{0, 0}, []int{0, 0}, true, " is parcel 1 of its sender, its layout is known: false"},
	} {
		torchtest.Check(t)
		members := join(t, []int{0, 1}, nil, 2, &linktest.Fabric{})
		together(t, members, func(m *member) error {
			c := torch.NewCtx(torch.Options{Device: torch.CPU(m.group.Rank())})
			defer c.Close()
			send := func(i int) schedule.Action {
				return schedule.Action{Kind: schedule.SendActivation, MicroBatch: i, Peer: 1}
			}
			if m.group.Rank() == 0 {
				l := m.remote.Open(0)
				defer l.Free()
				for _, i := range row.sends {
					var p link.Parcel
					p.Add(link.Values(c.Keep(c.Ones(torch.Float32, 64))))
					if err := l.Send(c, send(i), p); err != nil {
						return err
					}
				}
				<-m.group.Failed()
				return nil
			}
			for k, i := range row.receives {
				if row.fresh && k == 1 {
					m.remote = link.NewRemote(m.group, []int{0, 1}, 2, link.Tags{Count: link.MaxTag})
					m.remote.SetDirect(m.direct, []int{0, 1})
				}
				l := m.remote.Open(0)
				defer l.Free()
				p, err := l.Receive(c, send(i))
				p.Free()
				if last := k == len(row.receives)-1; last != (err != nil) ||
					last && !strings.Contains(err.Error(), row.want) {
					t.Errorf("got %v, want %s", err, row.want)
				}
			}
			m.group.Fail(group.FailedError{Stage: 1, Message: "enough"})
			return nil
		})
		leave(t, members)
	}
}

// A failure ends whatever waits: a receive of what nobody sends, one whose send was lost, and the
// opening of a way that the other end does not open. A communicator that fails is a failure of all.
func TestDirectEndsWithTheGroup(t *testing.T) {
	torchtest.Check(t)
	failure := group.FailedError{Stage: 3, MicroBatch: 4, Action: "forward", Message: "a layer has failed"}
	send := schedule.Action{Kind: schedule.SendActivation, Peer: 1}
	for name, fabric := range map[string]*linktest.Fabric{
		"nothing is sent": {},
		"a send is lost":  {Drop: func(move int) bool { return move > 2 }}, // after the moves of Open
	} {
		t.Run(name, func(t *testing.T) {
			members := join(t, []int{0, 1}, nil, 1, fabric)
			defer leave(t, members)
			begun := time.Now()
			together(t, members, func(m *member) error {
				c := torch.NewCtx(torch.Options{Device: torch.CPU(m.group.Rank())})
				defer c.Close()
				l := m.remote.Open(0)
				defer l.Free()
				if m.group.Rank() == 0 {
					if fabric.Drop != nil {
						var p link.Parcel
						p.Add(link.Values(c.Keep(c.Ones(torch.Float32, 64))))
						if err := l.Send(c, send, p); err != nil {
							return err
						}
					}
					// from another thread
					time.AfterFunc(20*time.Millisecond, func() { m.group.Fail(failure) })
					<-m.group.Failed()
					return nil
				}
				p, err := l.Receive(c, send) // its values are not there
				p.Free()
				var failed *group.FailedError
				if first := m.group.Err(); !errors.As(first, &failed) || failed.Stage != 3 || err != nil &&
					err.Error() != first.Error() {
					t.Errorf("the receive ended with %v, and the group with %v", err, first)
				}
				return nil
			})
			if took := time.Since(begun); took >= linktest.Patience {
				t.Errorf("it took %v", took)
			}
		})
	}
	t.Run("a way is not opened", func(t *testing.T) {
		g, edges := group.Local(2), []schedule.Edge{{From: 0, To: 1}}
		end := link.End{Device: torch.CPU(0), Copies: func() streams.Stream { return linktest.NewStream(1) }}
		time.AfterFunc(20*time.Millisecond, func() { g[1].Fail(failure) })
		d, err := link.Connect((&linktest.Fabric{}).Communicators(), edges, map[int]link.End{0: end},
			g[0].Failed(), nil, meet(nil))
		defer d.Close()
		if !errors.Is(err, linktest.ErrClosed) {
			t.Errorf("opening ended with %v", err)
		}
	})
	t.Run("a communicator fails", func(t *testing.T) {
		g := group.Local(2)
		d := must.Get(link.Connect(&failing{}, []schedule.Edge{{From: 0, To: 1}}, nil, g[0].Failed(),
			func(err error) {
				g[0].Fail(group.FailedError{Stage: -1, MicroBatch: -1, Message: err.Error()})
			}, meet(nil)))(t)
		defer d.Close()
		select {
		case <-g[1].Failed():
			if err := g[1].Err(); !strings.Contains(err.Error(),
				"between GPUs of different processes: the connection broke") {
				t.Errorf("the group has failed with %v", err)
			}
		case <-time.After(linktest.Patience):
			t.Error("nobody was told")
		}
	})
}

// Where opening a way fails, the move that was queued has ended when it returns, with its tensor. It is
// aborted, as its other end may never come.
func TestOpeningWaitsForItsMove(t *testing.T) {
	for name, comms := range map[string]*stuck{
		"queueing fails":            {transfer: errors.New("half of it was queued")},
		"a communicator has failed": {late: errors.New("the connection broke")},
	} {
		t.Run(name, func(t *testing.T) {
			torchtest.Check(t)
			comms.t, comms.aborted = t, make(chan struct{})
			end := link.End{Device: torch.CPU(0),
				Copies: func() streams.Stream { return linktest.NewStream(1) }}
			d, err := link.Connect(comms, []schedule.Edge{{From: 0, To: 1}}, map[int]link.End{0: end}, nil,
				func(error) {}, meet(nil))
			defer d.Close()
			if !errors.Is(err, cmp.Or(comms.transfer, comms.late)) {
				t.Errorf("opening ended with %v", err)
			}
			if comms.ended.Load() != 1 {
				t.Error("the move has not ended")
			}
		})
	}
}

// stuck are communicators that fail when moves are queued, or when the first has ended. The others end
// when they are aborted, and look at their tensors then.
type stuck struct {
	linktest.Communicators
	t              *testing.T
	transfer, late error
	aborted        chan struct{}
	once           sync.Once
	ended          atomic.Int32
}

func (*stuck) ID() ([]byte, error)                          { return nil, nil }
func (*stuck) Open([]byte, torch.Device, bool) (int, error) { return 0, nil }
func (s *stuck) Err() error                                 { return s.late }
func (s *stuck) Abort()                                     { s.once.Do(func() { close(s.aborted) }) }
func (*stuck) Close()                                       {}

func (s *stuck) Transfer(_ int, on streams.Stream, tensors []*torch.Tensor) error {
	on.Wait(stuckMove{s, tensors[0], s.late != nil}, streams.Produced)
	return s.transfer
}

type stuckMove struct {
	of    *stuck
	on    *torch.Tensor
	quick bool
}

func (m stuckMove) Synchronize() {
	if !m.quick {
		<-m.of.aborted
		time.Sleep(10 * time.Millisecond)
	}
	if m.on.Freed() {
		m.of.t.Error("a move under way has lost its tensor")
	}
	m.of.ended.Add(1)
}

func (stuckMove) Free() {}

// failing are communicators that have failed.
type failing struct{ linktest.Communicators }

func (*failing) Err() error { return errors.New("the connection broke") }
func (*failing) Abort()     {}
func (*failing) Close()     {}

// clock is a stream as a vector clock: how much was queued on it, and how much of each stream is known
// to have ended before what is queued next begins.
type clock struct {
	without streams.Reason
	queued  int
	ended   int // how much the host knows to have ended
	knows   map[*clock]int
}

type instant struct {
	of    *clock
	knows map[*clock]int
}

func (e instant) Synchronize() {
	if e.of.without != streams.Ended {
		e.of.ended = max(e.of.ended, e.knows[e.of])
	}
}

func (instant) Free() {}

func newClock(without streams.Reason) *clock {
	return &clock{without: without, knows: map[*clock]int{}}
}

func (s *clock) work() {
	s.queued++
	s.knows[s] = s.queued
}

func (s *clock) Record() streams.Event { return instant{s, maps.Clone(s.knows)} }

func (s *clock) Wait(e streams.Event, why streams.Reason) {
	if why != s.without {
		for of, n := range e.(instant).knows {
			s.knows[of] = max(s.knows[of], n)
		}
	}
}

// noted are communicators whose moves are work of the clocks that they are queued on. What a move
// needs is looked at when it is queued.
type noted struct {
	own    [2]*clock // of the sender and the receiver
	values *[][]byte // on their way
	sends  map[int]bool
	needs  *[2]int // work of the sender, and of the receiver, that has to have ended
	faults *[]string
}

func (n *noted) ID() ([]byte, error) { return []byte{0}, nil }

func (n *noted) Open(_ []byte, d torch.Device, sends bool) (int, error) {
	n.sends[len(n.sends)] = sends
	return len(n.sends) - 1, nil
}

func (n *noted) Transfer(over int, at streams.Stream, tensors []*torch.Tensor) error {
	for _, t := range tensors {
		on, h := at.(*clock), torch.NewCtx(torch.Options{})
		end, what := 1, "received into memory that is still used"
		if n.sends[over] {
			end, what = 0, "sent before it is there"
		}
		if on.knows[n.own[end]] < n.needs[end] {
			*n.faults = append(*n.faults, "a value is "+what)
		}
		if on.work(); n.sends[over] {
			*n.values = append(*n.values, torch.Bytes(engine.InMemoryOrder(h, t)))
		} else if len(*n.values) > 0 {
			if err := torch.SetBytes(engine.InMemoryOrder(h, t), (*n.values)[0]); err != nil {
				return err
			}
			*n.values = (*n.values)[1:]
		}
		h.Close()
	}
	return nil
}

func (*noted) Err() error { return nil }
func (*noted) Abort()     {}
func (*noted) Close()     {}

// waitsOf sends values over a way, and returns what was used before it was known to be there. A value
// that the sender does not settle is freed for the next one, or at the end of the run. So many are
// expected before they are received.
func waitsOf(t *testing.T, without streams.Reason, capacity int, settles bool, ahead int) (faults []string) {
	t.Helper()
	own, copies := [2]*clock{newClock(without), newClock(without)},
		[2]*clock{newClock(without), newClock(without)}
	var links [2]link.Link
	var values [][]byte
	var needs [2]int
	for rank, g := range group.Local(2) {
		remote := link.NewRemote(g, []int{0, 1}, 4, link.Tags{Count: link.MaxTag})
		end := link.End{Device: torch.CPU(rank), Copies: func() streams.Stream { return copies[rank] }}
		comms := &noted{own: own, values: &values, sends: map[int]bool{}, needs: &needs, faults: &faults}
		ways := []schedule.Edge{{From: 0, To: 1}}
		d := must.Get(link.Connect(comms, ways, map[int]link.End{rank: end}, g.Failed(), nil, meet(nil)))(t)
		defer d.Close()
		remote.SetDirect(d, []int{0, 1})
		links[rank] = remote.Open(capacity)
	}
	faults = nil
	c := [2]*torch.Ctx{torch.NewCtx(torch.Options{}), torch.NewCtx(torch.Options{Device: torch.CPU(1)})}
	c[0].SetStream(own[0])
	c[1].SetStream(own[1])
	defer c[0].Close()
	defer c[1].Close()
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	sent := []*torch.Tensor{}
	freed := func() {
		for i, x := range sent { // before the end of the run
			if x.Freed() && own[0].knows[copies[0]] < i+1+1 { // a move was a test
				fault("value %d is freed before it has left", i)
			}
		}
	}
	const parcels = 6
	var rooms []int // by parcel: what had used the memory that it is received in
	later := max(ahead-1, 0)
	for i := range parcels + later {
		own[0].work()
		own[1].work()
		send := schedule.Action{Kind: schedule.SendActivation, MicroBatch: i % 2, Peer: 1}
		if i < parcels {
			if rooms = append(rooms, own[1].queued); ahead > 0 {
				must.Do(t, links[1].Expect(c[1], send))
				own[1].work() // beside which the value may arrive, if its layout is known
			}
			x := c[0].Keep(c[0].Ones(torch.Float32, 16))
			sent = append(sent, x)
			p := link.Parcel{Ready: own[0].Record()}
			p.Add(link.Values(x))
			needs[0] = own[0].queued
			must.Do(t, links[0].Send(c[0], send, p))
			freed()
		}
		k := i - later
		if k < 0 {
			continue
		}
		send.MicroBatch, needs[1] = k%2, rooms[k]
		got := must.Get(links[1].Receive(c[1], send))(t)
		if own[1].knows[copies[1]] < copies[1].queued {
			fault("what follows the receive begins before value %d has arrived", k)
		}
		if ahead > 0 && k > ahead && without != streams.Vacant && copies[1].knows[own[1]] > rooms[k] {
			fault("a receive that was expected waits for later work")
		}
		got.Free()
		if settles {
			must.Do(t, links[0].Settle(send))
			freed()
		}
		c[0].Close()
		c[1].Close()
	}
	links[0].Free()
	links[1].Free()
	if own[0].knows[copies[0]] < copies[0].queued && copies[0].ended < copies[0].queued {
		fault("the caller goes on before all values have left")
	}
	return faults
}

// A link of a way waits for all that it must wait for, whenever a value is freed, and no wait can be
// left out. Values are settled or not, and up to two expected before they are received.
func TestWaitsOfAWay(t *testing.T) {
	torchtest.Check(t)
	for ahead := range 3 {
		for _, capacity := range []int{0, max(ahead, 1)} {
			for _, settles := range []bool{false, true} {
				if faults := waitsOf(t, streams.Reasons, capacity, settles, ahead); len(faults) > 0 {
					t.Errorf("capacity %d, settles %v, %d ahead: %v", capacity, settles, ahead, faults)
				}
				for _, without := range []streams.Reason{streams.Produced, streams.Vacant, streams.Arrived,
					streams.Copied, streams.Ended} {
					if without == streams.Copied && !settles && capacity == 0 || without == streams.Ended &&
						settles {
						continue // nothing is freed before the end of the run, or nothing at the end
					}
					if faults := waitsOf(t, without, capacity, settles, ahead); len(faults) == 0 {
						t.Errorf("capacity %d, settles %v, %d ahead: nothing went wrong without the "+
							"wait %q", capacity, settles, ahead, without)
					}
				}
			}
		}
	}
}
