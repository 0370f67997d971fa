package pipe_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
	"penstock.example/schedule"
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
		if d.Order.Name == "" { // any order: it may receive in another order than it sends
			t.Skip("without a name")
		}
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

// A program that receives in another order than it sends is refused, where values have no names.
func TestDirectWaysKeepTheOrder(t *testing.T) {
	torchtest.Check(t)
	backwards := func(c schedule.Config) (*schedule.Program, error) { // worker 1 receives two activations the wrong way round
		p, err := schedule.GPipe(c)
		if err != nil || len(p.Workers) != 2 {
			return p, err
		}
		list := p.Workers[1]
		first := schedule.Action{Kind: schedule.ReceiveActivation, Stage: 1, MicroBatch: 0, Peer: 0}
		second := schedule.Action{Kind: schedule.ReceiveActivation, Stage: 1, MicroBatch: 1, Peer: 0}
		list = slices.DeleteFunc(slices.Clone(list), func(a schedule.Action) bool { return a == second })
		p.Workers[1] = slices.Insert(list, slices.Index(list, first), second)
		return p, nil
	}
	for _, direct := range []bool{false, true} {
		var ways atomic.Int32
		_, errs := each(2, func(g *group.Group) (struct{}, error) {
			model := tied(true, false)
			defer nn.Free(model)
			p, err := pipe.Open(model, pipe.Config{Balance: []int{2, 3}, Chunks: 4, Group: g, Devices: devices(2), Schedule: backwards})
			if err != nil {
				return struct{}{}, err
			}
			defer p.Close()
			if direct {
				reached(&linktest.Fabric{}, torch.Device.String, &ways)(p, g)
			}
			return struct{}{}, p.Place()
		})
		for rank, err := range errs {
			var refused *pipe.ConfigError
			if direct != errors.As(err, &refused) || direct && !strings.Contains(err.Error(), "values have no names") {
				t.Errorf("direct %v, process %d: %v", direct, rank, err)
			}
		}
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

// startTwo starts two processes with a device each, until the test's end.
func startTwo(t *testing.T) *crew {
	t.Helper()
	if !torch.HasGloo() {
		t.Skip("this build has no Gloo")
	}
	if torchtest.Device(0) == torchtest.Device(1) {
		t.Skip("this needs two devices in PENSTOCK_TEST_DEVICES")
	}
	torchtest.Check(t)
	c := start(t, 2)
	t.Cleanup(func() {
		if err := c.end(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// Two processes, each with a device of its own, give the bits of one, with every schedule: on two GPUs
// by NCCL, elsewhere over Gloo.
func TestTwoProcessesWithEverySchedule(t *testing.T) {
	c := startTwo(t)
	for _, s := range schedule.Schedules() {
		d := drawn{Kinds: []int{1, 4, 18, 19, 20}, Rows: 8, Short: 5, Chunks: 4, Seed: 7, Checkpoint: pipe.ExceptLast}
		d.Order = order{Name: s.Name, Devices: []int{0, 1, 0, 1}}
		if s.Virtual == 1 {
			d.Order.Devices = []int{0, 1}
		}
		n, stages := len(d.problem().model().Layers()), len(d.Order.Devices)
		for i := range stages {
			d.Order.Balance = append(d.Order.Balance, (i+1)*n/stages-i*n/stages)
		}
		want, err := trialOf(t, d)
		if err != nil { // to and fro
			d.Order.Devices = []int{0, 1, 1, 0}
			if want, err = trialOf(t, d); err != nil {
				t.Errorf("%s: %v", s.Name, err)
				continue
			}
		}
		got, _, err := c.run(d)
		if err != nil {
			t.Fatalf("%s: %v", s.Name, err)
		}
		if s := want.differs(got); s != "" {
			t.Errorf("%s: %s differs from that of one process", d.Order.Name, s)
		}
	}
}

// Two processes, each a replica on a device of its own, sum to the bits of two on one device: on two
// GPUs by NCCL, and on one over Gloo.
func TestTwoProcessesSumGradients(t *testing.T) {
	c := startTwo(t)
	d := drawn{Kinds: []int{1, 4, 18, 19, 20}, Rows: 8, Short: 5, Chunks: 2, Seed: 7, Checkpoint: pipe.ExceptLast}
	n := len(d.problem().model().Layers())
	d.Order = order{Name: "gpipe", Balance: []int{n / 2, n - n/2}, Devices: []int{0, 0}}
	var first record
	for _, d.Replicas = range [][]int{{0, 0}, {0, 1}} {
		got, _, err := c.run(d)
		if err != nil {
			t.Fatalf("on devices %v: %v", d.Replicas, err)
		}
		if first.values == nil {
			first = got
		}
		if s := first.differs(got); s != "" {
			t.Errorf("%s differs between one device and two", s)
		}
	}
}

// trialOf is a run in one process.
func trialOf(t *testing.T, d drawn) (record, error) {
	t.Helper()
	records, errs := each(1, func(g *group.Group) (record, error) {
		cfg := d.config()
		cfg.Group = g
		return d.problem().member(cfg, true)
	})
	if errs[0] != nil {
		return record{}, errs[0]
	}
	return merge(records)
}
