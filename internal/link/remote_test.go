package link_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock.example/group"
	"penstock.example/internal/draws"
	"penstock.example/internal/engine"
	"penstock.example/internal/link"
	"penstock.example/internal/linktest"
	"penstock.example/internal/must"
	"penstock.example/internal/torchtest"
	"penstock.example/schedule"
	"penstock.example/torch"
	"pgregory.net/rapid"
)

// tensor draws a tensor of any layout that a stage may send: permuted, repeated, a part of another, empty.
func tensor(t *rapid.T, c *torch.Ctx) *torch.Tensor {
	shape := rapid.SliceOfN(rapid.Int64Range(0, 4), 0, 4).Draw(t, "shape")
	x := c.Randn(shape...)
	switch rapid.IntRange(0, 4).Draw(t, "layout") {
	case 1:
		if len(shape) > 1 {
			x = c.Transpose(x, 0, int64(len(shape)-1))
		}
	case 2:
		x = c.Expand(c.Randn(append([]int64{1}, shape...)...), append([]int64{3}, shape...)...)
	case 3:
		if len(shape) > 0 && shape[0] > 1 {
			x = c.Narrow(x, 0, 1, shape[0]-1)
		}
	case 4:
		if n := len(shape) - 1; n >= 0 && shape[n] > 1 {
			x = c.Clone(c.Narrow(x, int64(n), 0, shape[n]-1))
		}
	}
	if rapid.Bool().Draw(t, "ints") {
		x = c.To(x, torch.Int64)
	}
	return c.Keep(x)
}

// parcel draws a parcel, and says what a copy of it on another device would be.
func parcel(t *rapid.T, c *torch.Ctx) (p link.Parcel, want string) {
	p.Device = c.Device()
	for range rapid.IntRange(0, 3).Draw(t, "lists") {
		var list []link.Value
		for i := range rapid.IntRange(0, 3).Draw(t, "values") {
			v := link.Value{Wants: rapid.Bool().Draw(t, "wants")}
			switch rapid.IntRange(0, 5).Draw(t, "value") {
			case 0:
			case 1:
				if i > 0 {
					v.Tensor = list[i-1].Tensor
					break
				}
				fallthrough
			default:
				v.Tensor = tensor(t, c)
			}
			list = append(list, v)
		}
		p.Add(list)
	}
	return p, describe(c, p)
}

// copyOf copies a parcel: what is the same tensor in it stays so.
func copyOf(c *torch.Ctx, p link.Parcel) (out link.Parcel) {
	out.Device = c.Device()
	for _, list := range p.Lists {
		copied := map[*torch.Tensor]*torch.Tensor{}
		values := slices.Clone(list)
		for k, v := range values {
			if v.Tensor == nil {
				continue
			}
			if copied[v.Tensor] == nil {
				copied[v.Tensor] = c.Keep(c.CopyHere(v.Tensor))
			}
			values[k].Tensor = copied[v.Tensor]
		}
		out.Add(values)
	}
	return out
}

func describe(c *torch.Ctx, p link.Parcel) string {
	var b bytes.Buffer
	for _, list := range p.Lists {
		fmt.Fprintf(&b, "list")
		for i, v := range list {
			if v.Tensor == nil {
				fmt.Fprintf(&b, " absent %v", v.Wants)
				continue
			}
			same := slices.IndexFunc(list, func(e link.Value) bool { return e.Tensor == v.Tensor })
			copied := c.CopyHere(v.Tensor)
			fmt.Fprintf(&b, " %d %v %v %v %v %x", i-same, v.Wants, v.Tensor.DType(), copied.Shape(),
				engine.Strides(c, copied), torch.Bytes(copied))
		}
		fmt.Fprintln(&b)
	}
	return b.String()
}

// bounded lets what waits in a group fail before it counts as hanging, unless stop is called.
func bounded(g *group.Group) (stop func() bool) {
	return time.AfterFunc(10*time.Second, func() {
		g.Fail(group.FailedError{Stage: -1, MicroBatch: -1, Message: "nothing comes"})
	}).Stop
}

// A parcel arrives as a copy on another device would: values, strides, what is absent, the same or
// wants a gradient. It does so also where its layout changes from one run to the next.
func TestRemote(t *testing.T) {
	torchtest.Check(t)
	draws.Checks(t, 100, 1000)
	rapid.Check(t, func(t *rapid.T) {
		members := group.Local(2)
		rank := []int{0, 1, 0}
		sends := []schedule.Action{
			{Kind: schedule.SendActivation, Stage: 0, MicroBatch: 0, Peer: 1},
			{Kind: schedule.SendActivation, Stage: 0, MicroBatch: 1, Peer: 1},
			{Kind: schedule.SendActivation, Stage: 0, MicroBatch: 2, Peer: 1},
		}
		capacity := rapid.SampledFrom([]int{schedule.Meet, 0, 1, 2}).Draw(t, "capacity")
		ahead := rapid.IntRange(0, len(sends)).Draw(t, "receives ahead")
		staged := rapid.Bool().Draw(t, "by copies on the host")
		var ends [2]*link.Remote
		for i := range ends {
			ends[i] = link.NewRemote(members[i], rank, 3, link.Tags{First: 7, Count: link.MaxTag - 7})
			ends[i].SetStaged(staged)
		}
		defer bounded(members[0])()
		var before []link.Parcel // copies
		defer func() {
			for i := range before {
				before[i].Free()
			}
		}()
		for range rapid.IntRange(1, 4).Draw(t, "runs") {
			c := torch.NewCtx(torch.Options{})
			var parcels []link.Parcel
			var wants []string
			same := len(before) > 0 && rapid.Bool().Draw(t, "as in the run before")
			for i := range sends {
				if same {
					p := copyOf(c, before[i])
					parcels, wants = append(parcels, p), append(wants, describe(c, p))
					continue
				}
				p, want := parcel(t, c)
				parcels, wants = append(parcels, p), append(wants, want)
			}
			for i := range before {
				before[i].Free()
			}
			before = nil
			for _, p := range parcels {
				before = append(before, copyOf(c, p))
			}
			var both sync.WaitGroup
			both.Go(func() {
				c := torch.NewCtx(torch.Options{})
				defer c.Close()
				l := ends[0].Open(capacity)
				defer l.Free()
				for i, send := range sends {
					if err := l.Send(c, send, parcels[i]); err != nil {
						t.Errorf("%v: %v", send, err)
					}
					c.Close() // as a worker does after each action
				}
			})
			both.Go(func() {
				c := torch.NewCtx(torch.Options{Device: torch.CPU(1)})
				defer c.Close()
				l := ends[1].Open(capacity)
				defer l.Free()
				for i, send := range sends {
					if i < ahead {
						if err := l.Expect(c, send); err != nil {
							t.Error(err)
						}
					}
				}
				for i, send := range sends {
					p, err := l.Receive(c, send)
					if err != nil {
						t.Errorf("the receive of %v: %v", send, err)
						continue
					}
					if got := describe(c, p); got != wants[i] || p.Device != torch.CPU(1) {
						t.Errorf("%v on %v is\n%swant\n%s", send, p.Device, got, wants[i])
					}
					p.Free()
				}
			})
			both.Wait()
			c.Close()
		}
	})
}

// counting counts the messages of a transport that are begun, and changes their works.
type counting struct {
	link.Transport
	sent, received int
	of             func(link.Work, *torch.Tensor) link.Work // or nil
}

func (c *counting) Send(x *torch.Tensor, to, tag int) (link.Work, error) {
	c.sent++
	return c.begun(x)(c.Transport.Send(x, to, tag))
}

func (c *counting) Receive(x *torch.Tensor, from, tag int) (link.Work, error) {
	c.received++
	return c.begun(x)(c.Transport.Receive(x, from, tag))
}

func (c *counting) begun(x *torch.Tensor) func(link.Work, error) (link.Work, error) {
	return func(w link.Work, err error) (link.Work, error) {
		if c.of != nil && err == nil {
			w = c.of(w, x)
		}
		return w, err
	}
}

// counted are two processes with a stage each, and what they send and receive.
func counted(t *testing.T, microBatches int) (ends [2]*link.Remote, counts [2]*counting) {
	t.Helper()
	members := group.Local(2)
	stop := bounded(members[0])
	t.Cleanup(func() { stop() })
	for rank, g := range members {
		counts[rank] = &counting{Transport: g}
		ends[rank] = link.NewRemote(counts[rank], []int{0, 1}, microBatches, link.Tags{Count: link.MaxTag})
	}
	return ends, counts
}

// A parcel with the layout of the one before is a head and a message for each tensor. One with another layout
// has the layout besides, and a byte in place of each tensor of the one before.
func TestMessagesOfAParcel(t *testing.T) {
	torchtest.Check(t)
	for _, row := range []struct {
		first, next []int64 // lengths of tensors; 0 is an absent one
		want        []int
	}{
		{[]int64{64}, []int64{64}, []int{3, 2, 2}},
		{[]int64{64, 2}, []int64{64, 2}, []int{4, 3, 3}},
		{[]int64{0}, []int64{0}, []int{2, 1, 1}},
		{[]int64{64}, []int64{32}, []int{3, 4, 2}},
	} {
		c := torch.NewCtx(torch.Options{})
		ends, counts := counted(t, 1)
		var got []int
		for _, lengths := range [][]int64{row.first, row.next, row.next} {
			tensors := make([]*torch.Tensor, len(lengths))
			for i, n := range lengths {
				if n > 0 {
					tensors[i] = c.Keep(c.Ones(torch.Float32, n))
				}
			}
			var p link.Parcel
			p.Add(link.Values(tensors...))
			want := describe(c, p)
			action := schedule.Action{Kind: schedule.SendActivation, Peer: 1}
			from, to := ends[0].Open(0), ends[1].Open(0)
			counts[0].sent = 0
			must.Do(t, to.Expect(c, action))
			must.Do(t, from.Send(c, action, p))
			arrived := must.Get(to.Receive(c, action))(t)
			if got := describe(c, arrived); got != want {
				t.Errorf("%+v: got\n%swant\n%s", row, got, want)
			}
			arrived.Free()
			from.Free()
			to.Free()
			got = append(got, counts[0].sent)
		}
		if !slices.Equal(got, row.want) {
			t.Errorf("%+v: %v messages", row, got)
		}
		c.Close()
	}
}

// A tensor with gaps is refused: its copy would be in no plan.
func TestRemoteRefusesGaps(t *testing.T) {
	torchtest.Check(t)
	ends := link.NewRemote(group.Local(2)[0], []int{0, 1}, 1, link.Tags{Count: link.MaxTag})
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	wide := c.Randn(2, 3)
	for _, gaps := range []*torch.Tensor{c.Narrow(wide, 1, 0, 2), c.Expand(c.Narrow(wide, 1, 0, 1), 2, 5)} {
		l := ends.Open(0)
		p := link.Parcel{Device: c.Device()}
		p.Add(link.Values(c.Keep(c.Detach(gaps))))
		err := l.Send(c, schedule.Action{Kind: schedule.SendActivation, Stage: 0, MicroBatch: 0, Peer: 1}, p)
		if err == nil || !strings.Contains(err.Error(), "has gaps; want it dense") {
			t.Errorf("%v: %v", gaps, err)
		}
		l.Free()
	}
}

// Of what is expected on an edge, as many parcels are received ahead as have 4 MiB together, at least
// one, and no more than may wait there. The next is begun as soon as one was received, and memory is
// taken for those that are begun.
func TestReceivesAhead(t *testing.T) {
	const kib, parcels = int64(1 << 10), 6
	for _, row := range []struct {
		name            string
		bytes           int64 // of a parcel
		capacity, ahead int
	}{
		{"small", kib, 0, parcels},
		{"four have 4 MiB", 1024 * kib, 0, 4},
		{"three do not", 1600 * kib, 0, 2},
		{"large", 8192 * kib, 0, 1},
		{"one may wait", kib, 1, 1},
		{"three may wait", kib, 3, 3},
	} {
		t.Run(row.name, func(t *testing.T) {
			torchtest.Check(t)
			ends, counts := counted(t, parcels)
			sender, receiver := torch.NewCtx(torch.Options{}),
				torch.NewCtx(torch.Options{Device: torch.CPU(1)})
			defer sender.Close()
			defer receiver.Close()
			live := func() int64 { return torch.CPU(1).Memory().Live }
			before := live()
			for run := range 2 { // sizes are known in the second one
				from, to := ends[0].Open(0), ends[1].Open(row.capacity)
				var sends []schedule.Action
				for i := range parcels {
					sends = append(sends,
						schedule.Action{Kind: schedule.SendActivation, MicroBatch: i, Peer: 1})
				}
				counts[1].received = 0
				for _, send := range sends {
					must.Do(t, to.Expect(receiver, send))
				}
				for i, send := range sends {
					if want := min(i+row.ahead, parcels); run == 1 &&
						(counts[1].received != 2*want || live()-before != int64(want-i)*row.bytes) {
						t.Errorf("%d receives were begun, for which %d bytes were taken, when %d have "+
							"ended; want %d and %d",
							counts[1].received, live()-before, i, 2*want, int64(want-i)*row.bytes)
					}
					x := sender.Keep(sender.MulScalar(sender.Ones(torch.Float32, row.bytes/4), float64(i)))
					var p link.Parcel
					p.Add(link.Values(x))
					must.Do(t, from.Send(sender, send, p))
					got := must.Get(to.Receive(receiver, send))(t)
					values := torch.Values[float32](got.Lists[0][0].Tensor)
					if slices.ContainsFunc(values, func(v float32) bool { return v != float32(i) }) {
						t.Errorf("parcel %d has other values", i)
					}
					got.Free()
				}
				from.Free()
				to.Free()
			}
		})
	}
}

// Where there is no memory for all of what is received ahead, that fails, when it is expected or when the
// parcel before was received. What was begun of it may still arrive, so that its sender does not fail
// first, and nothing is left behind.
func TestReceivesAheadWithoutMemory(t *testing.T) {
	const bytes = 64 << 10 // of two tensors, of which the first has room
	for _, direct := range []bool{false, true} {
		for _, row := range []struct {
			name     string
			capacity int
		}{{"when it is expected", 0}, {"when the parcel before was received", 1}} {
			t.Run(fmt.Sprintf("direct %v, %s", direct, row.name), func(t *testing.T) {
				torchtest.Check(t)
				members := join(t, []int{0, 1}, nil, 2, &linktest.Fabric{})
				defer leave(t, members)
				if !direct {
					members[0].remote.SetDirect(nil, nil)
					members[1].remote.SetDirect(nil, nil)
				}
				sender, receiver := torch.NewCtx(torch.Options{}),
					torch.NewCtx(torch.Options{Device: torch.CPU(1)})
				defer sender.Close()
				defer receiver.Close()
				d := torch.CPU(1)
				defer d.SetLimit(0)
				before := d.Memory().Live
				for run := range 2 { // sizes are known in the second one
					from, to := members[0].remote.Open(0), members[1].remote.Open(row.capacity)
					if run == 1 {
						d.SetLimit(before + bytes + bytes/2)
					}
					short := func(shortage bool, err error) {
						t.Helper()
						if shortage != errors.Is(err, torch.ErrOutOfMemory) ||
							shortage != (err != nil &&
								strings.Contains(err.Error(), "0F1>1, ahead of its receive")) {
							t.Errorf("run %d: %v; want it to be out of memory: %v", run, err, shortage)
						}
					}
					send := func(i int) schedule.Action {
						return schedule.Action{Kind: schedule.SendActivation, MicroBatch: i, Peer: 1}
					}
					short(false, to.Expect(receiver, send(0)))
					short(run == 1 && row.capacity == 0, to.Expect(receiver, send(1)))
					for i := range 2 {
						var p link.Parcel
						p.Add(link.Values(sender.Keep(sender.Zeros(torch.Float32, bytes/8)),
							sender.Keep(sender.Zeros(torch.Float32, bytes/8))))
						must.Do(t, from.Send(sender, send(i), p))
						if run == 1 && i == 1 {
							break // what has failed is not received
						}
						got, err := to.Receive(receiver, send(i))
						got.Free()
						short(run == 1 && row.capacity == 1, err)
					}
					if run == 1 {
						members[1].group.Fail(group.FailedError{Stage: 1, MicroBatch: 1,
							Message: "no memory"})
					}
					from.Free()
					to.Free()
					if live := d.Memory().Live; live != before {
						t.Errorf("run %d leaves %d bytes", run, live-before)
					}
				}
			})
		}
	}
}

// Where there is no memory for all copies of a parcel, on the host to send it or of what has arrived there,
// those that were made are freed, and the parcel.
func TestCopiesOnTheHostWithoutMemory(t *testing.T) {
	for short := range 2 { // the device without memory
		t.Run(torch.CPU(short).String(), func(t *testing.T) {
			torchtest.Check(t)
			const bytes = 64 << 10 // of each of two tensors, of which the first repeats itself
			ends, _ := counted(t, 1)
			ends[short].SetStaged(true)
			sender, receiver := torch.NewCtx(torch.Options{}),
				torch.NewCtx(torch.Options{Device: torch.CPU(1)})
			defer sender.Close()
			defer receiver.Close()
			from, to := ends[0].Open(0), ends[1].Open(0)
			send := schedule.Action{Kind: schedule.SendActivation, Peer: 1}
			var p link.Parcel
			p.Add(link.Values(sender.Keep(sender.Expand(sender.Zeros(torch.Float32, 1, bytes/4), 3,
				bytes/4)), sender.Keep(sender.Zeros(torch.Float32, bytes/4))))
			torch.CPU(short).SetLimit(torch.CPU(short).Memory().Live + bytes + bytes/2)
			defer torch.CPU(short).SetLimit(0)
			err := torch.Try(func() {
				if err := from.Send(sender, send, p); err != nil {
					t.Error(err)
				}
				got, err := to.Receive(receiver, send)
				got.Free()
				t.Errorf("the receive ends with %v", err)
			})
			if !errors.Is(err, torch.ErrOutOfMemory) {
				t.Errorf("it ends with %v", err)
			}
			from.Free()
			to.Free()
		})
	}
}

// failingWork is a work that fails at once.
type failingWork struct{ link.Work }

func (failingWork) Wait() error { return errors.New("the first failure") }

// watched is a work that notes whether it was waited for while its tensor was there.
type watched struct {
	link.Work
	t      *torch.Tensor
	waited *int
}

func (w watched) Wait() error {
	if !w.t.Freed() {
		*w.waited++
	}
	return errors.New("a later failure")
}

// After a failure all works are waited for before anything is freed, and the first failure counts.
func TestAllWorksAreWaitedFor(t *testing.T) {
	for _, sends := range []bool{false, true} {
		t.Run(fmt.Sprintf("sends %v", sends), func(t *testing.T) {
			torchtest.Check(t)
			ends, counts := counted(t, 1)
			sender, receiver := torch.NewCtx(torch.Options{}),
				torch.NewCtx(torch.Options{Device: torch.CPU(1)})
			defer sender.Close()
			defer receiver.Close()
			send := schedule.Action{Kind: schedule.SendActivation, Peer: 1}
			for run := range 2 { // sizes are known in the second one
				from, to := ends[0].Open(0), ends[1].Open(0)
				works, waited := 0, 0
				if run == 1 {
					change := func(w link.Work, t *torch.Tensor) link.Work {
						if works++; works == 1 {
							return failingWork{w}
						}
						return watched{w, t, &waited}
					}
					if sends {
						counts[0].of = change
					} else {
						counts[1].of = change
					}
				}
				must.Do(t, to.Expect(receiver, send))
				var p link.Parcel
				p.Add(link.Values(sender.Keep(sender.Zeros(torch.Float32, 64)),
					sender.Keep(sender.Zeros(torch.Float32, 32)), sender.Keep(sender.Zeros(torch.Float32,
						2))))
				must.Do(t, from.Send(sender, send, p))
				got, err := to.Receive(receiver, send)
				if sends {
					err = from.Settle(send)
				}
				got.Free()
				if run == 1 && (err == nil || err.Error() != "the first failure" || waited != 3) {
					t.Errorf("it ends with %v, and %d of the three other works were waited for", err, waited)
				}
				from.Free()
				to.Free()
			}
		})
	}
}

// slow is a transport on which nothing arrives before somebody waits for it.
type slow struct{ works []*slowWork }

type slowWork struct{ waited bool }

func (w *slowWork) Wait() error { w.waited = true; return nil }

func (s *slow) Send(*torch.Tensor, int, int) (link.Work, error) {
	w := &slowWork{}
	s.works = append(s.works, w)
	return w, nil
}

func (s *slow) Receive(*torch.Tensor, int, int) (link.Work, error) { panic("nobody receives") }

// A send waits for that which is as many sends before it as values may wait, and where none may, for
// itself. Links of skips hold any number.
func TestCapacityOfRemote(t *testing.T) {
	for _, row := range []struct {
		name     string
		capacity int
		peer     int
		want     []int // after each of four sends, how many were waited for
		live     int   // tensors of parcels that are still there after them
	}{
		{"any number", 0, 1, []int{0, 0, 0, 0}, 4},
		{"none", schedule.Meet, 1, []int{1, 2, 3, 4}, 0},
		{"one", 1, 1, []int{0, 1, 2, 3}, 1},
		{"two", 2, 1, []int{0, 0, 1, 2}, 2},
		{"a skip", 1, 2, []int{0, 0, 0, 0}, 4},
		{"a skip where none may wait", schedule.Meet, 2, []int{0, 0, 0, 0}, 4},
	} {
		t.Run(row.name, func(t *testing.T) {
			torchtest.Check(t)
			c := torch.NewCtx(torch.Options{})
			defer c.Close()
			transport := &slow{}
			remote := link.NewRemote(transport, []int{0, 1, 2}, 4, link.Tags{Count: 1 << 20})
			l := remote.Open(row.capacity)
			defer l.Free()
			var got []int
			var sent []*torch.Tensor
			const messages = 3 // of each parcel: head, layout, tensor
			for i := range 4 {
				var p link.Parcel
				x := c.Keep(c.Ones(torch.Float32, 2))
				sent = append(sent, x)
				p.Add(link.Values(x))
				must.Do(t, l.Send(c, schedule.Action{Kind: schedule.SendActivation, MicroBatch: i,
					Peer: row.peer}, p))
				waited := 0
				for k := 0; k < len(transport.works); k += messages {
					if !slices.ContainsFunc(transport.works[k:k+messages],
						func(w *slowWork) bool { return !w.waited }) {
						waited++
					}
				}
				got = append(got, waited)
			}
			live := 0
			for _, x := range sent {
				if !x.Freed() {
					live++
				}
			}
			if !slices.Equal(got, row.want) || live != row.live {
				t.Errorf("waited for %v sends and kept %d tensors, want %v and %d", got, live, row.want,
					row.live)
			}
		})
	}
}

// A parcel is handed over as it was sent, list by list.
func TestMemory(t *testing.T) {
	torchtest.Check(t)
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	x, y := c.Keep(c.Ones(torch.Float32, 2)), c.Keep(c.Ones(torch.Float32, 3))
	var l link.Memory
	sent := link.Parcel{Device: torch.CPU(1)}
	sent.Add([]link.Value{{Tensor: x, Wants: true}, {}})
	sent.Add(nil)
	sent.Add(link.Values(y))
	send := schedule.Action{Kind: schedule.SendActivation, Stage: 0, MicroBatch: 2, Peer: 1}
	must.Do(t, l.Send(c, send, sent))
	got := must.Get(l.Receive(c, send))(t)
	if list := got.Take(); got.Device != torch.CPU(1) || len(list) != 2 ||
		list[0] != (link.Value{Tensor: x, Wants: true}) ||
		list[1] != (link.Value{}) {
		t.Errorf("the first list is %v from %v", list, got.Device)
	}
	if list := got.Take(); len(list) != 0 {
		t.Errorf("the second list is %v, want an empty one", list)
	}
	got.Free()
	if !y.Freed() || x.Freed() {
		t.Errorf("a parcel frees what was not taken: %v, and what was taken: %v", y.Freed(), x.Freed())
	}
	x.Free()
	if _, err := l.Receive(c, send); err == nil || !strings.Contains(err.Error(), "0F2>1 was not sent") {
		t.Errorf("a second receive: %v", err)
	}
}
