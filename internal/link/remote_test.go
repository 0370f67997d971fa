package link_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"penstock.example/group"
	"penstock.example/internal/draws"
	"penstock.example/internal/link"
	"penstock.example/internal/torchtest"
	"penstock.example/schedule"
	"penstock.example/torch"
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
	for _, list := range p.Lists() {
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
	for _, list := range p.Lists() {
		fmt.Fprintf(&b, "list")
		for i, v := range list {
			if v.Tensor == nil {
				fmt.Fprintf(&b, " absent %v", v.Wants)
				continue
			}
			same := slices.IndexFunc(list, func(e link.Value) bool { return e.Tensor == v.Tensor })
			copied := c.CopyHere(v.Tensor)
			fmt.Fprintf(&b, " %d %v %v %v %v %x", i-same, v.Wants, v.Tensor.DType(), copied.Shape(), c.Strides(copied), torch.Bytes(copied))
		}
		fmt.Fprintln(&b)
	}
	return b.String()
}

// bounded lets what waits in a group fail before it counts as hanging, unless stop is called.
func bounded(g *group.Group) (stop func() bool) {
	return time.AfterFunc(10*time.Second, func() {
		g.Fail(group.Failure{Stage: -1, MicroBatch: -1, Message: "nothing comes"})
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
			var err error
			if ends[i], err = link.NewRemote(members[i], rank, 3, link.Tags{First: 7, Count: group.MaxTag - 7}); err != nil {
				t.Fatal(err)
			}
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
	instead        *torch.Tensor                            // of the next message that is sent; or nil
}

func (c *counting) Send(x *torch.Tensor, to, tag int) (link.Work, error) {
	if c.sent++; c.instead != nil {
		x, c.instead = c.instead, nil
	}
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
		var err error
		if ends[rank], err = link.NewRemote(counts[rank], []int{0, 1}, microBatches, link.Tags{Count: group.MaxTag}); err != nil {
			t.Fatal(err)
		}
	}
	return ends, counts
}

// A parcel with the layout of the one before is a head and a message for each tensor. One with another layout
// has the layout besides, and a byte in place of each tensor of the one before.
func TestMessagesOfAParcel(t *testing.T) {
	torchtest.Check(t)
	ones := func(c *torch.Ctx, n int64) []*torch.Tensor { return []*torch.Tensor{c.Ones(torch.Float32, n)} }
	for _, row := range []struct {
		name  string
		first func(c *torch.Ctx) []*torch.Tensor
		next  func(c *torch.Ctx) []*torch.Tensor
		want  []int
	}{
		{"the same", func(c *torch.Ctx) []*torch.Tensor { return ones(c, 64) }, func(c *torch.Ctx) []*torch.Tensor { return ones(c, 64) }, []int{3, 2, 2}},
		{"two", func(c *torch.Ctx) []*torch.Tensor { return append(ones(c, 64), ones(c, 2)...) },
			func(c *torch.Ctx) []*torch.Tensor { return append(ones(c, 64), ones(c, 2)...) }, []int{4, 3, 3}},
		{"small", func(c *torch.Ctx) []*torch.Tensor { return ones(c, 2) }, func(c *torch.Ctx) []*torch.Tensor { return ones(c, 2) }, []int{3, 2, 2}},
		{"nothing", func(*torch.Ctx) []*torch.Tensor { return []*torch.Tensor{nil} }, func(*torch.Ctx) []*torch.Tensor { return []*torch.Tensor{nil} }, []int{2, 1, 1}},
		{"other rows", func(c *torch.Ctx) []*torch.Tensor { return ones(c, 64) }, func(c *torch.Ctx) []*torch.Tensor { return ones(c, 32) }, []int{3, 4, 2}},
	} {
		c := torch.NewCtx(torch.Options{})
		ends, counts := counted(t, 1)
		var got []int
		for run := range 3 {
			make := row.first
			if run > 0 {
				make = row.next
			}
			tensors := make(c)
			for _, x := range tensors {
				if x != nil {
					c.Keep(x)
				}
			}
			var p link.Parcel
			p.Add(link.Values(tensors...))
			want := describe(c, p)
			action := schedule.Action{Kind: schedule.SendActivation, Peer: 1}
			from, to := ends[0].Open(0), ends[1].Open(0)
			counts[0].sent = 0
			if err := to.Expect(c, action); err != nil {
				t.Fatal(err)
			}
			if err := from.Send(c, action, p); err != nil {
				t.Fatal(err)
			}
			arrived, err := to.Receive(c, action)
			if err != nil {
				t.Fatal(err)
			}
			if got := describe(c, arrived); got != want {
				t.Errorf("%s, run %d: got\n%swant\n%s", row.name, run, got, want)
			}
			arrived.Free()
			from.Free()
			to.Free()
			got = append(got, counts[0].sent)
		}
		if !slices.Equal(got, row.want) {
			t.Errorf("%s: %v messages, want %v", row.name, got, row.want)
		}
		c.Close()
	}
}

// Layouts may change with each parcel.
func TestLayoutsThatAlternate(t *testing.T) {
	torchtest.Check(t)
	ends, _ := counted(t, 1)
	from, to := ends[0].Open(0), ends[1].Open(0)
	send := schedule.Action{Kind: schedule.SendActivation, Peer: 1}
	for i := range 1000 {
		c := torch.NewCtx(torch.Options{})
		if err := to.Expect(c, send); err != nil {
			t.Fatal(err)
		}
		var p link.Parcel
		for k := range i % 3 {
			p.Add(link.Values(c.Keep(c.MulScalar(c.Ones(torch.Float32, int64(1+i%2)), float64(i+k)))))
		}
		want := describe(c, p)
		if err := from.Send(c, send, p); err != nil {
			t.Fatal(err)
		}
		got, err := to.Receive(c, send)
		if err != nil {
			t.Fatal(err)
		}
		if text := describe(c, got); text != want {
			t.Fatalf("parcel %d is\n%swant\n%s", i, text, want)
		}
		if got.Free(); from.Settle(send) != nil {
			t.Fatal("it has not arrived")
		}
		c.Close()
	}
	from.Free()
	to.Free()
}

// A head that is cut short, or says other sizes, is refused.
func TestHeadsThatAreWrong(t *testing.T) {
	for _, head := range [][]byte{{0, 0, 0, 0, 0, 0, 0, 0}, append(make([]byte, 8), 1, 0, 0, 0, 0, 0, 0, 0), make([]byte, 24)} {
		torchtest.Check(t)
		ends, counts := counted(t, 1)
		from, to := ends[0].Open(0), ends[1].Open(0)
		send := schedule.Action{Kind: schedule.SendActivation, Peer: 1}
		c := torch.NewCtx(torch.Options{})
		for run := range 2 {
			var p link.Parcel
			p.Add(link.Values(c.Keep(c.Ones(torch.Float32, 64))))
			if run == 1 {
				counts[0].instead = torch.From(c, head)
			}
			if err := from.Send(c, send, p); err != nil {
				t.Fatal(err)
			}
			got, err := to.Receive(c, send)
			if refused := err != nil && strings.Contains(err.Error(), "bytes, and the receiver has room for 256"); refused != (run == 1) {
				t.Errorf("run %d: %v", run, err)
			}
			got.Free()
		}
		from.Free()
		to.Free()
		c.Close()
	}
}

// A tensor with gaps is refused: its copy would be in no plan.
func TestRemoteRefusesGaps(t *testing.T) {
	torchtest.Check(t)
	ends, err := link.NewRemote(group.Local(2)[0], []int{0, 1}, 1, link.Tags{First: 7, Count: group.MaxTag - 7})
	if err != nil {
		t.Fatal(err)
	}
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
