package link_test

import (
	"errors"
	"slices"
	"testing"

	"penstock.example/group"
	"penstock.example/internal/link"
	"penstock.example/internal/torchtest"
	"penstock.example/schedule"
	"penstock.example/torch"
)

// posting counts the receives that were begun.
type posting struct {
	link.Transport
	begun *int
}

func (p posting) Receive(t *torch.Tensor, from, tag int) (link.Work, error) {
	*p.begun++
	return p.Transport.Receive(t, from, tag)
}

// Of what is expected on an edge, as many parcels are received ahead as have 4 MiB together, at least one, and
// no more than may wait there. The next is begun as soon as one was received, and memory is taken for
// those that are begun.
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
			members, begun := group.Local(2), 0
			var ends [2]*link.Remote
			for i := range ends {
				var err error
				if ends[i], err = link.NewRemote(posting{members[i], &begun}, []int{0, 1}, parcels, link.Tags{Count: group.MaxTag}); err != nil {
					t.Fatal(err)
				}
			}
			sender, receiver := torch.NewCtx(torch.Options{}), torch.NewCtx(torch.Options{Device: torch.CPU(1)})
			defer sender.Close()
			defer receiver.Close()
			live := func() int64 { return torch.CPU(1).Memory().Live }
			before := live()
			for run := range 2 { // sizes are known in the second one
				from, to := ends[0].Open(0), ends[1].Open(row.capacity)
				var sends []schedule.Action
				for i := range parcels {
					sends = append(sends, schedule.Action{Kind: schedule.SendActivation, MicroBatch: i, Peer: 1})
				}
				begun = 0
				for _, send := range sends {
					if err := to.Expect(receiver, send); err != nil {
						t.Fatal(err)
					}
				}
				for i, send := range sends {
					if want := min(i+row.ahead, parcels); run == 1 && (begun != want || live()-before != int64(want-i)*row.bytes) {
						t.Errorf("%d receives were begun, for which %d bytes were taken, when %d have ended; want %d and %d",
							begun, live()-before, i, want, int64(want-i)*row.bytes)
					}
					x := sender.Keep(sender.MulScalar(sender.Ones(torch.Float32, row.bytes/4), float64(i)))
					var p link.Parcel
					p.Add(link.Values(x))
					if err := from.Send(sender, send, p); err != nil {
						t.Fatal(err)
					}
					got, err := to.Receive(receiver, send)
					if err != nil {
						t.Fatal(err)
					}
					values := torch.Values[float32](got.Lists()[0][0].Tensor)
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

// Where there is no memory for what is received ahead, that fails, when it is expected or when the
// parcel before was received, and leaves nothing behind.
func TestReceivesAheadWithoutMemory(t *testing.T) {
	torchtest.Check(t)
	const bytes = 64 << 10
	var ends [2]*link.Remote
	for i, member := range group.Local(2) {
		var err error
		if ends[i], err = link.NewRemote(member, []int{0, 1}, 2, link.Tags{Count: group.MaxTag}); err != nil {
			t.Fatal(err)
		}
	}
	sender, receiver := torch.NewCtx(torch.Options{}), torch.NewCtx(torch.Options{Device: torch.CPU(1)})
	defer sender.Close()
	defer receiver.Close()
	d := torch.CPU(1)
	defer d.SetLimit(0)
	before := d.Memory().Live
	for run := range 2 {
		from, to := ends[0].Open(0), ends[1].Open(0)
		if run == 1 {
			d.SetLimit(before + bytes + bytes/2) // one tensor of the second has room
		}
		short := func(f func() error) {
			t.Helper()
			var failed error
			err := torch.Try(func() { failed = f() })
			if failed != nil || run == 0 && err != nil || run == 1 && !errors.Is(err, torch.ErrOutOfMemory) {
				t.Errorf("run %d fails with %v, %v; want the second to be out of memory", run, failed, err)
			}
		}
		send := func(i int) schedule.Action {
			return schedule.Action{Kind: schedule.SendActivation, MicroBatch: i, Peer: 1}
		}
		if err := to.Expect(receiver, send(0)); err != nil {
			t.Fatal(err)
		}
		short(func() error { return to.Expect(receiver, send(1)) })
		for i := range 2 - run {
			var p link.Parcel
			p.Add(link.Values(sender.Keep(sender.Zeros(torch.Float32, bytes/8)), sender.Keep(sender.Zeros(torch.Float32, bytes/8))))
			if err := from.Send(sender, send(i), p); err != nil {
				t.Fatal(err)
			}
			short(func() error {
				p, err := to.Receive(receiver, send(i))
				if run == 1 {
					t.Error("a parcel is received, and not what is expected next")
				}
				p.Free()
				return err
			})
		}
		from.Free()
		to.Free()
		if live := d.Memory().Live; live != before {
			t.Errorf("run %d leaves %d bytes", run, live-before)
		}
	}
}
