package link_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"penstock.example/group"
	"penstock.example/internal/link"
	"penstock.example/internal/linktest"
	"penstock.example/internal/torchtest"
	"penstock.example/schedule"
	"penstock.example/torch"
)

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
			ends, counts := counted(t, parcels)
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
				counts[1].received = 0
				for _, send := range sends {
					if err := to.Expect(receiver, send); err != nil {
						t.Fatal(err)
					}
				}
				for i, send := range sends {
					if want := min(i+row.ahead, parcels); run == 1 && (counts[1].received != 2*want || live()-before != int64(want-i)*row.bytes) {
						t.Errorf("%d receives were begun, for which %d bytes were taken, when %d have ended; want %d and %d",
							counts[1].received, live()-before, i, 2*want, int64(want-i)*row.bytes)
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
				members := join(t, []int{0, 1}, nil, 2, &linktest.Fabric{}, nil)
				defer leave(t, members)
				if !direct {
					members[0].remote.SetDirect(nil, nil)
					members[1].remote.SetDirect(nil, nil)
				}
				sender, receiver := torch.NewCtx(torch.Options{}), torch.NewCtx(torch.Options{Device: torch.CPU(1)})
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
						if shortage != errors.Is(err, torch.ErrOutOfMemory) || shortage != (err != nil && strings.Contains(err.Error(), "0F1>1, ahead of its receive")) {
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
						p.Add(link.Values(sender.Keep(sender.Zeros(torch.Float32, bytes/8)), sender.Keep(sender.Zeros(torch.Float32, bytes/8))))
						if err := from.Send(sender, send(i), p); err != nil {
							t.Fatal(err)
						}
						if run == 1 && i == 1 {
							break // what has failed is not received
						}
						got, err := to.Receive(receiver, send(i))
						got.Free()
						short(run == 1 && row.capacity == 1, err)
					}
					if run == 1 {
						members[1].group.Fail(group.Failure{Stage: 1, MicroBatch: 1, Message: "no memory"})
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
			sender, receiver := torch.NewCtx(torch.Options{}), torch.NewCtx(torch.Options{Device: torch.CPU(1)})
			defer sender.Close()
			defer receiver.Close()
			from, to := ends[0].Open(0), ends[1].Open(0)
			send := schedule.Action{Kind: schedule.SendActivation, Peer: 1}
			var p link.Parcel
			p.Add(link.Values(sender.Keep(sender.Expand(sender.Zeros(torch.Float32, 1, bytes/4), 3, bytes/4)), sender.Keep(sender.Zeros(torch.Float32, bytes/4))))
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
			sender, receiver := torch.NewCtx(torch.Options{}), torch.NewCtx(torch.Options{Device: torch.CPU(1)})
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
				if err := to.Expect(receiver, send); err != nil {
					t.Fatal(err)
				}
				var p link.Parcel
				p.Add(link.Values(sender.Keep(sender.Zeros(torch.Float32, 64)), sender.Keep(sender.Zeros(torch.Float32, 32)), sender.Keep(sender.Zeros(torch.Float32, 2))))
				if err := from.Send(sender, send, p); err != nil {
					t.Fatal(err)
				}
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
