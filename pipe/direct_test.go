package pipe_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"penstock.example/group"
	"penstock.example/internal/link"
	"penstock.example/internal/linktest"
	"penstock.example/internal/stream"
	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// reached makes devices GPUs, by their names: devices of one name are one GPU, and those without are
// none. asked counts the processes that have ways.
func reached(fabric *linktest.Fabric, name func(torch.Device) string, asked *atomic.Int32) func(*pipe.Pipe, *group.Group) {
	return func(p *pipe.Pipe, g *group.Group) {
		streams := uint64(0)
		p.SetGPUs(name, func() link.Communicators {
			asked.Add(1)
			return fabric.Communicators()
		}, func(torch.Device) stream.Stream {
			streams++
			return linktest.NewStream(uint64(1000*g.Rank()) + streams)
		})
	}
}

// Results are the same to the bit where processes reach each other's devices directly, all of them or
// some.
func TestTransparencyOfDirectWays(t *testing.T) {
	torchtest.Check(t)
	var ways atomic.Int32
	rapid.Check(t, func(t *rapid.T) {
		live := torch.LiveTensors()
		d := drawRun(t, 1)
		processes := rapid.IntRange(1, d.devices()).Draw(t, "processes")
		want := d.problem().apart(t, d.config(), 1)
		q, names := d.problem(), rapid.SliceOfN(rapid.SampledFrom([]string{"", "a", "b", "c", "d"}), 8, 8).Draw(t, "GPUs")
		q.reach = reached(&linktest.Fabric{}, func(d torch.Device) string { return names[d.Index%len(names)] }, &ways)
		if s := want.differs(q.apart(t, d.config(), processes)); s != "" {
			t.Fatalf("%s differs from that of one process", s)
		}
		if n := torch.LiveTensors() - live; n != 0 {
			t.Fatalf("%d tensors were not freed:\n%s", n, strings.Join(torch.Leaks(), "\n"))
		}
	})
	if ways.Load() == 0 {
		t.Error("no process had a way")
	}
}

// Where a send is lost between GPUs, nobody notices but the one that waits. When the group fails, as
// it does when a process is stopped or gone, or somebody gives up, all end with an error that says so.
func TestDirectWaysEndWithTheGroup(t *testing.T) {
	torchtest.Check(t)
	for _, lost := range []bool{true, false} {
		var ways atomic.Int32
		fabric := &linktest.Fabric{}
		if lost {
			fabric.Drop = func(move int) bool { return move > 10 }
		}
		begun := time.Now()
		_, errs := each(2, func(g *group.Group) (struct{}, error) {
			model := tied(true, false)
			defer nn.Free(model)
			p, err := pipe.Open(model, pipe.Config{Balance: []int{2, 3}, Chunks: 4, Group: g, Devices: devices(2)})
			if err != nil {
				return struct{}{}, err
			}
			defer p.Close()
			reached(fabric, torch.Device.String, &ways)(p, g)
			if err := p.Place(); err != nil {
				return struct{}{}, err
			}
			if g.Rank() == 1 && !lost { // gone: it makes no step
				time.AfterFunc(50*time.Millisecond, func() { g.Close() })
				<-g.Failed()
				return struct{}{}, g.Err()
			}
			ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
			defer cancel()
			c := torch.NewCtx(torch.Options{Threads: 1, Device: torch.CPU(20 + g.Rank())})
			defer c.Close()
			for step := 0; err == nil && step < 100; step++ {
				_, err = p.Step(ctx, pipe.Batch{Input: pipe.Rows(classes(7, 6)(c, 0)), Target: pipe.Rows(classes(7, 6)(c, 1)), Step: int64(step)}, nn.CrossEntropy())
			}
			return struct{}{}, err
		})
		for rank, err := range errs {
			var failed *group.FailedError
			var gone *group.LostError
			if err == nil || lost && !errors.Is(err, context.DeadlineExceeded) && !errors.As(err, &failed) || !lost && !errors.As(err, &gone) {
				t.Errorf("lost %v: process %d ended with %v", lost, rank, err)
			}
		}
		if took := time.Since(begun); took > linktest.Patience/2 || ways.Load() != 2 {
			t.Errorf("lost %v: it took %v, and %d processes had ways: %s", lost, took, ways.Load(), fmt.Sprint(errs))
		}
	}
}
