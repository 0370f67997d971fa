package group_test

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"penstock/group"
	"penstock/torch"
)

// transport is what moves tensors between two processes: a group, or c10d without one.
type transport interface {
	send(t *torch.Tensor, to, tag int) (wait func() error)
	receive(t *torch.Tensor, from, tag int) (wait func() error)
}

type overGroup struct{ g *group.Group }

func (o overGroup) send(t *torch.Tensor, to, tag int) func() error {
	w, err := o.g.Send(t, to, tag)
	return func() error { return waited(w, err) }
}

func (o overGroup) receive(t *torch.Tensor, from, tag int) func() error {
	w, err := o.g.Receive(t, from, tag)
	return func() error { return waited(w, err) }
}

type overC10d struct{ g *torch.Gloo }

func (o overC10d) send(t *torch.Tensor, to, tag int) func() error {
	return ended(o.g.Send(t, to, tag))
}

func (o overC10d) receive(t *torch.Tensor, from, tag int) func() error {
	return ended(o.g.Receive(t, from, tag))
}

func ended(t *torch.Transfer, err error) func() error {
	return func() error {
		if err != nil {
			return err
		}
		defer t.Free()
		_, err := t.Wait()
		return err
	}
}

// transports are two members of each kind, over loopback.
func transports(b *testing.B) map[string][2]transport {
	cfg := config(b, 2)
	all := inProcess(b, cfg)
	b.Cleanup(func() { each(all, func(g *group.Group) error { return g.Close() }) })
	_, text, _ := net.SplitHostPort(config(b, 2).Address)
	port, _ := strconv.Atoi(text)
	s, err := torch.OpenStore("localhost", port, true, time.Second)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(s.Close)
	var raw [2]transport
	var wg sync.WaitGroup
	for rank := range raw {
		wg.Go(func() {
			g, err := torch.OpenGloo(s, "bench", rank, 2, "127.0.0.1", time.Minute)
			if err != nil {
				panic(err)
			}
			b.Cleanup(g.Close)
			raw[rank] = overC10d{g}
		})
	}
	wg.Wait()
	return map[string][2]transport{"group": {overGroup{all[0]}, overGroup{all[1]}}, "c10d": raw}
}

// cpu reports the processor time of both sides for each iteration, which a busy machine changes less
// than the time on the clock. It is used by defer cpu(b)().
func cpu(b *testing.B) func() {
	used := func() time.Duration {
		var r syscall.Rusage
		_ = syscall.Getrusage(syscall.RUSAGE_SELF, &r)
		return time.Duration(r.Utime.Nano() + r.Stime.Nano())
	}
	before := used()
	return func() { b.ReportMetric(float64(used()-before)/float64(b.N), "cpu-ns/op") }
}

func must(b *testing.B, err error) {
	if err != nil {
		b.Error(err)
	}
}

// BenchmarkRoundTrip sends 4 KB there and back.
func BenchmarkRoundTrip(b *testing.B) {
	for name, pair := range transports(b) {
		b.Run(name, func(b *testing.B) {
			c := torch.NewCtx(torch.Options{})
			defer c.Close()
			defer cpu(b)()
			x, y := c.Zeros(torch.Float32, 1024), c.Zeros(torch.Float32, 1024)
			var wg sync.WaitGroup
			wg.Go(func() {
				for range b.N {
					must(b, pair[1].receive(y, 0, 1)())
					must(b, pair[1].send(y, 0, 2)())
				}
			})
			for range b.N {
				must(b, pair[0].send(x, 1, 1)())
				must(b, pair[0].receive(x, 1, 2)())
			}
			wg.Wait()
		})
	}
}

// BenchmarkSend sends 4 MB one after the other, the next already received.
func BenchmarkSend(b *testing.B) {
	for name, pair := range transports(b) {
		b.Run(name, func(b *testing.B) {
			c := torch.NewCtx(torch.Options{})
			defer c.Close()
			defer cpu(b)()
			const size = 1 << 20
			x, y := c.Zeros(torch.Float32, size), [2]*torch.Tensor{c.Zeros(torch.Float32, size), c.Zeros(torch.Float32, size)}
			b.SetBytes(4 * size)
			var wg sync.WaitGroup
			wg.Go(func() {
				next := pair[1].receive(y[0], 0, 1)
				for i := range b.N {
					this := next
					if i+1 < b.N {
						next = pair[1].receive(y[(i+1)%2], 0, 1)
					}
					must(b, this())
				}
			})
			for range b.N {
				must(b, pair[0].send(x, 1, 1)())
			}
			wg.Wait()
		})
	}
}

// BenchmarkGather gathers a MiB of each of three members over the control connections.
func BenchmarkGather(b *testing.B) {
	all := inProcess(b, config(b, 3))
	defer each(all, func(g *group.Group) error { return g.Close() })
	mine := make([]byte, 1<<20)
	b.SetBytes(3 << 20)
	for i := range b.N {
		for rank, err := range each(all, func(g *group.Group) error {
			_, err := g.Gather(context.Background(), fmt.Sprint(i), mine)
			return err
		}) {
			if err != nil {
				b.Fatalf("rank %d: %v", rank, err)
			}
		}
	}
}
