package link_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"penstock.example/group"
	"penstock.example/internal/link"
	"penstock.example/internal/proctest"
	"penstock.example/schedule"
	"penstock.example/torch"
)

// These benchmarks move tensors between two members over loopback in three ways: c10d's Gloo as it
// is; a group's sends and receives, which end when the group fails; and a Remote over a group, whose
// parcels say what they hold and are allocated on arrival.

// end is what one of two members does with one tensor at a time. At most two sends are on their way.
type end struct {
	send    func() error // begins to send, once no more than one other is on its way
	expect  func() error // begins the next receive
	receive func() error // ends it
	flush   func() error // ends all sends
}

// overC10d is a link.Transport of c10d alone.
type overC10d struct{ g *torch.Gloo }

type c10dWork struct{ *torch.Transfer }

func (w c10dWork) Wait() error {
	_, err := w.Transfer.Wait()
	w.Transfer.Free()
	return err
}

func (o overC10d) Send(t *torch.Tensor, to, tag int) (link.Work, error) {
	w, err := o.g.Send(t, to, tag)
	return c10dWork{w}, err
}

func (o overC10d) Receive(t *torch.Tensor, from, tag int) (link.Work, error) {
	w, err := o.g.Receive(t, from, tag)
	return c10dWork{w}, err
}

// rawEnd sends and receives the same memory again and again.
func rawEnd(b *testing.B, t link.Transport, rank int, elements int64) end {
	c := torch.NewCtx(torch.Options{})
	b.Cleanup(c.Close)
	out, in := c.Zeros(torch.Float32, elements), c.Zeros(torch.Float32, elements)
	var sends []link.Work
	var next link.Work
	ended := func(most int) error {
		for len(sends) > most {
			if err := sends[0].Wait(); err != nil {
				return err
			}
			sends = sends[1:]
		}
		return nil
	}
	return end{
		send: func() error {
			if err := ended(1); err != nil {
				return err
			}
			w, err := t.Send(out, 1-rank, rank)
			sends = append(sends, w)
			return err
		},
		expect:  func() (err error) { next, err = t.Receive(in, 1-rank, 1-rank); return err },
		receive: func() error { return next.Wait() },
		flush:   func() error { return ended(0) },
	}
}

// linkEnd sends parcels of one tensor and frees those that it receives.
func linkEnd(b *testing.B, g *group.Group, elements int64) end {
	const chunks = 4 // more than are on their way
	rank := g.Rank()
	remote, err := link.NewRemote(g, []int{0, 1}, chunks, link.Tags{Count: group.MaxTag})
	if err != nil {
		b.Fatal(err)
	}
	l := remote.Open(2)
	data, c := torch.NewCtx(torch.Options{}), torch.NewCtx(torch.Options{Device: torch.CPU(rank)})
	b.Cleanup(data.Close)
	b.Cleanup(c.Close)
	out := data.Zeros(torch.Float32, elements)
	action := func(from, i int) schedule.Action {
		kind := schedule.SendActivation
		if from == 1 {
			kind = schedule.SendGradient
		}
		return schedule.Action{Kind: kind, Stage: from, MicroBatch: i % chunks, Peer: 1 - from}
	}
	sent, expected, received := 0, 0, 0
	return end{
		send: func() error {
			defer c.Close() // as a worker does after each action
			p := link.Parcel{Device: c.Device()}
			p.Add(link.Values(c.Keep(c.Detach(out))))
			sent++
			return l.Send(c, action(rank, sent-1), p)
		},
		expect: func() error {
			expected++
			return l.Expect(c, action(1-rank, expected-1))
		},
		receive: func() error {
			defer c.Close()
			p, err := l.Receive(c, action(1-rank, received))
			received++
			p.Free()
			return err
		},
		flush: func() error { l.Free(); return nil },
	}
}

// both calls f for ranks 0 and 1 at the same time.
func both(b *testing.B, f func(rank int) error) {
	b.Helper()
	var wg sync.WaitGroup
	for rank := range 2 {
		wg.Go(func() {
			if err := f(rank); err != nil {
				b.Errorf("rank %d: %v", rank, err)
			}
		})
	}
	wg.Wait()
	if b.Failed() {
		b.FailNow()
	}
}

// inThreeWays runs a benchmark with the ends of two members.
func inThreeWays(b *testing.B, elements int64, f func(b *testing.B, ends [2]end)) {
	var raw [2]*torch.Gloo
	boards := [2]*torch.Board{torch.NewBoard(), torch.NewBoard()}
	for rank, board := range boards {
		go func() {
			for key, value, ok := board.Take(); ok; key, value, ok = board.Take() {
				boards[1-rank].Put(key, value)
			}
		}()
	}
	both(b, func(rank int) (err error) {
		raw[rank], err = torch.OpenGloo(boards[rank], rank, 2, "127.0.0.1", time.Minute)
		return err
	})
	for _, board := range boards {
		board.Close()
	}
	var groups [2]*group.Group
	address := proctest.Address(b)
	both(b, func(rank int) (err error) {
		groups[rank], err = group.Join(context.Background(), group.Config{Rank: rank, Size: 2, Address: address})
		return err
	})
	defer both(b, func(rank int) error {
		raw[rank].Close()
		return groups[rank].Close()
	})
	for _, way := range []struct {
		name string
		end  func(b *testing.B, rank int) end
	}{
		{"c10d", func(b *testing.B, rank int) end { return rawEnd(b, overC10d{raw[rank]}, rank, elements) }},
		{"group", func(b *testing.B, rank int) end { return rawEnd(b, groups[rank], rank, elements) }},
		{"link", func(b *testing.B, rank int) end { return linkEnd(b, groups[rank], elements) }},
	} {
		b.Run(way.name, func(b *testing.B) { f(b, [2]end{way.end(b, 0), way.end(b, 1)}) })
	}
}

func first(errs ...func() error) error {
	for _, f := range errs {
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

// BenchmarkRoundTrip sends 4 KB there and back.
func BenchmarkRoundTrip(b *testing.B) {
	inThreeWays(b, 4<<10/4, func(b *testing.B, ends [2]end) {
		b.ResetTimer()
		both(b, func(rank int) error {
			e := ends[rank]
			for range b.N {
				steps := []func() error{e.expect, e.send, e.receive}
				if rank == 1 {
					steps = []func() error{e.expect, e.receive, e.send}
				}
				if err := first(steps...); err != nil {
					return err
				}
			}
			return e.flush()
		})
	})
}

// stream sends n tensors from member 0 to member 1, with work between the sends.
func stream(b *testing.B, ends [2]end, n int, work func()) {
	both(b, func(rank int) error {
		e := ends[rank]
		for range n {
			if rank == 1 {
				if err := first(e.expect, e.receive); err != nil {
					return err
				}
				continue
			}
			if err := e.send(); err != nil {
				return err
			}
			work()
		}
		return e.flush()
	})
}

const streamed = 4 << 20 // bytes of a tensor

// BenchmarkStream sends 4 MB one after the other.
func BenchmarkStream(b *testing.B) {
	inThreeWays(b, streamed/4, func(b *testing.B, ends [2]end) {
		b.SetBytes(streamed)
		b.ResetTimer()
		stream(b, ends, b.N, func() {})
	})
}

// BenchmarkOverlap computes while 4 MB are sent. What it reports is how much of the shorter of the
// two was hidden behind the other: 100 % where both together take as long as the longer one alone.
func BenchmarkOverlap(b *testing.B) {
	inThreeWays(b, streamed/4, func(b *testing.B, ends [2]end) {
		c := torch.NewCtx(torch.Options{Threads: 1})
		defer c.Close()
		x := c.Zeros(torch.Float32, 512, 512)
		work := func() {
			mark := c.Mark()
			c.Matmul(x, x)
			c.Release(mark)
		}
		timed := func(f func()) time.Duration {
			start := time.Now()
			f()
			return time.Since(start)
		}
		b.ResetTimer()
		var transfer, compute, together time.Duration
		for left := b.N; left > 0; left -= 8 {
			n := min(left, 8)
			transfer += timed(func() { stream(b, ends, n, func() {}) })
			compute += timed(func() {
				for range n {
					work()
				}
			})
			together += timed(func() { stream(b, ends, n, work) })
		}
		hidden := transfer + compute - together
		b.ReportMetric(100*float64(hidden)/float64(min(transfer, compute)), "%hidden")
		b.ReportMetric(float64(transfer.Microseconds())/float64(b.N), "us/transfer")
		b.ReportMetric(float64(compute.Microseconds())/float64(b.N), "us/compute")
	})
}
