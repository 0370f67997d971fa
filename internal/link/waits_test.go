package link_test

import (
	"fmt"
	"maps"
	"testing"

	"penstock.example/group"
	"penstock.example/internal/link"
	streams "penstock.example/internal/stream"
	"penstock.example/internal/torchtest"
	"penstock.example/schedule"
	"penstock.example/torch"
)

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

func (n *noted) Transfer(moves []torch.Move) error {
	for _, m := range moves {
		on, h := m.On.(*clock), torch.NewCtx(torch.Options{})
		end, what := 1, "received into memory that is still used"
		if n.sends[m.Over] {
			end, what = 0, "sent before it is there"
		}
		if on.knows[n.own[end]] < n.needs[end] {
			*n.faults = append(*n.faults, "a value is "+what)
		}
		if on.work(); n.sends[m.Over] {
			*n.values = append(*n.values, torch.Bytes(h.InMemoryOrder(m.Tensor)))
		} else if len(*n.values) > 0 {
			if err := torch.SetBytes(h.InMemoryOrder(m.Tensor), (*n.values)[0]); err != nil {
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
	own, copies := [2]*clock{newClock(without), newClock(without)}, [2]*clock{newClock(without), newClock(without)}
	var links [2]link.Link
	var values [][]byte
	var needs [2]int
	for rank, g := range group.Local(2) {
		remote, err := link.NewRemote(g, []int{0, 1}, 4, link.Tags{Count: group.MaxTag})
		if err != nil {
			t.Fatal(err)
		}
		end := link.End{Device: torch.CPU(rank), Copies: func() streams.Stream { return copies[rank] }}
		comms := &noted{own: own, values: &values, sends: map[int]bool{}, needs: &needs, faults: &faults}
		ways := []schedule.Edge{{From: 0, To: 1}}
		d, err := link.NewDirect(comms, ways, map[int]link.End{rank: end}, g.Failed(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		ids := map[schedule.Edge][]byte{ways[0]: {0}}
		if rank == 1 { // so that what is exercised is what came
			values = append([][]byte{values[0]}, values[1])
		}
		if err := d.Open(ids); err != nil {
			t.Fatal(err)
		}
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
			if x.Freed() && own[0].knows[copies[0]] < i+2+1 { // two moves were exercises
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
				if err := links[1].Expect(c[1], send); err != nil {
					t.Fatal(err)
				}
				own[1].work() // beside which the value may arrive, if its layout is known
			}
			x := c[0].Keep(c[0].Ones(torch.Float32, 16))
			sent = append(sent, x)
			p := link.Parcel{Ready: own[0].Record()}
			p.Add(link.Values(x))
			needs[0] = own[0].queued
			if err := links[0].Send(c[0], send, p); err != nil {
				t.Fatal(err)
			}
			freed()
		}
		k := i - later
		if k < 0 {
			continue
		}
		send.MicroBatch, needs[1] = k%2, rooms[k]
		got, err := links[1].Receive(c[1], send)
		if err != nil {
			t.Fatal(err)
		}
		if own[1].knows[copies[1]] < copies[1].queued {
			fault("what follows the receive begins before value %d has arrived", k)
		}
		if ahead > 0 && k > ahead && without != streams.Vacant && copies[1].knows[own[1]] > rooms[k] {
			fault("a receive that was expected waits for later work")
		}
		got.Free()
		if settles {
			if err := links[0].Settle(send); err != nil {
				t.Fatal(err)
			}
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
				for _, without := range []streams.Reason{streams.Produced, streams.Vacant, streams.Arrived, streams.Copied, streams.Ended} {
					if without == streams.Copied && !settles && capacity == 0 || without == streams.Ended && settles {
						continue // nothing is freed before the end of the run, or nothing at the end
					}
					if faults := waitsOf(t, without, capacity, settles, ahead); len(faults) == 0 {
						t.Errorf("capacity %d, settles %v, %d ahead: nothing went wrong without the wait %q", capacity, settles, ahead, without)
					}
				}
			}
		}
	}
}
