package link_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"penstock.example/group"
	"penstock.example/internal/engine"
	"penstock.example/internal/link"
	"penstock.example/internal/must"
	"penstock.example/internal/proctest"
	streams "penstock.example/internal/stream"
	"penstock.example/schedule"
	"penstock.example/torch"
)

// peerVariable has a process of this test be the other one of a scene.
const peerVariable = "PENSTOCK_LINK_PEER"

// peerSettings say which scene it is, and how the process joins.
type peerSettings struct {
	Scene string
	Group group.Config
}

func TestMain(m *testing.M) {
	text := os.Getenv(peerVariable)
	if text == "" {
		os.Exit(m.Run())
	}
	var s peerSettings
	err := json.Unmarshal([]byte(text), &s)
	if err == nil {
		err = act(s)
	}
	if err != nil {
		fmt.Fprint(os.Stderr, err)
		os.Exit(1)
	}
}

// act plays a scene: on two GPUs, one for each process, over NCCL, where there are two; otherwise on
// CPUs over Gloo.
func act(s peerSettings) error {
	g, err := group.Join(context.Background(), s.Group)
	if err != nil {
		return err
	}
	defer g.Close()
	rank := g.Rank()
	a := &actor{group: g, other: 1 - rank, device: torch.CPU(rank)}
	remote := link.NewRemote(g, []int{0, 1}, 8, link.Tags{Count: link.MaxTag})
	if torch.CUDADevices() > 1 {
		a.device = torch.CUDA(rank)
	}
	a.own = engine.NewStream(a.device)
	if a.device.Kind == torch.KindCUDA {
		ways := []schedule.Edge{{From: 0, To: 1}, {From: 1, To: 0}}
		end := link.End{Device: a.device, Copies: func() streams.Stream { return engine.NewStream(a.device) }}
		direct, err := link.Connect(&link.NCCL{}, ways, map[int]link.End{rank: end}, g.Failed(),
			func(err error) {
				g.Fail(group.FailedError{Stage: -1, MicroBatch: -1, Message: err.Error()})
			}, meet(g))
		defer direct.Close()
		if err != nil {
			return err
		}
		remote.SetDirect(direct, []int{0, 1})
	}
	a.c = torch.NewCtx(torch.Options{Device: a.device})
	defer a.c.Close()
	a.c.SetStream(a.own)
	a.link = remote.Open(0)
	err = scenes[s.Scene].play(a, rank)
	a.link.Free()
	streams.End(streams.Host{}, a.own) // nothing waits any more
	if err == nil {
		_, err = group.Meet(context.Background(), g, "the end", 0, nil)
	}
	return err
}

// actor is a process in a scene.
type actor struct {
	group  *group.Group
	other  int
	device torch.Device
	own    streams.Stream
	c      *torch.Ctx
	link   link.Link
}

func (a *actor) action(from, i int) schedule.Action {
	kind := schedule.SendActivation
	if from == 1 {
		kind = schedule.SendGradient
	}
	return schedule.Action{Kind: kind, Stage: from, MicroBatch: i, Peer: 1 - from}
}

// send sends so many numbers that are all alike.
func (a *actor) send(i int, n int64, value float64) error {
	p := link.Parcel{Device: a.device}
	p.Add(link.Values(a.c.Keep(a.c.Fill_(a.c.Empty(torch.Float32, n), value))))
	p.Ready = a.own.Record()
	return a.link.Send(a.c, a.action(a.group.Rank(), i), p)
}

// receive receives them and checks them.
func (a *actor) receive(i int, n int64, value float64) error {
	p, err := a.link.Receive(a.c, a.action(a.other, i))
	if err != nil {
		return err
	}
	defer p.Free()
	a.c.Synchronize()
	if err := a.group.Err(); err != nil { // what came may be a part
		return err
	}
	got := torch.Values[float32](p.Lists[0][0].Tensor)
	if int64(len(got)) != n || slices.Min(got) != float32(value) || slices.Max(got) != float32(value) {
		return fmt.Errorf("%d numbers from %v to %v came; want %d of %v", len(got), slices.Min(got),
			slices.Max(got), n, value)
	}
	return nil
}

const large = 2 << 20 // elements, more than anything on the way keeps

// lengths are numbers of elements, those around powers of two among them, up to 256 MB on GPUs.
func (a *actor) lengths() (list []int64) {
	most := int64(large)
	if a.device.Kind == torch.KindCUDA {
		most = 64 << 20
	}
	for n := int64(1); n <= most; n *= 4 {
		if list = append(list, n); n < most {
			list = append(list, n+1, 2*n-1)
		}
	}
	return list
}

// lost, failed and fine are how the first process ends a scene.
func lost(err error) bool {
	var e *group.LostError
	return errors.As(err, &e) && e.Rank == 1
}

func failed(err error) bool {
	var e *group.FailedError
	return errors.As(err, &e) && e.Message == "given up"
}

func fine(err error) bool { return err == nil }

var scenes = map[string]struct {
	play  func(a *actor, rank int) error
	ended func(err error) bool
	gone  bool // the other process is
}{
	"lengths from 4 bytes to the longest": {func(a *actor, rank int) error {
		for i, n := range a.lengths() {
			value := float64(10*i + rank)
			if err := errors.Join(a.send(i%8, n, value),
				a.receive(i%8, n, value+float64(1-2*rank))); err != nil {
				return fmt.Errorf("%d bytes: %w", 4*n, err)
			}
			// it has arrived: the other end has sent its own next
			if err := a.link.Settle(a.action(rank, i%8)); err != nil {
				return err
			}
		}
		return nil
	}, fine, false},
	"both ways at once": {func(a *actor, rank int) error {
		for i := range 3 {
			if err := errors.Join(a.send(i, large, float64(rank)),
				a.receive(i, large, float64(1-rank))); err != nil {
				return err
			}
		}
		return nil
	}, fine, false},
	"killed while it is sent to": {func(a *actor, rank int) error {
		if rank == 1 {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
		return cmp.Or(a.send(0, large, 1), waitFor(a))
	}, lost, true},
	"killed while it is received from": {func(a *actor, rank int) error {
		if rank == 1 {
			if err := a.receive(0, 10, 1); err != nil {
				return err
			}
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
		return cmp.Or(a.send(0, 10, 1), a.receive(0, large, 1))
	}, lost, true},
	"stopped": {func(a *actor, rank int) error {
		if rank == 1 {
			_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
			return waitFor(a)
		}
		return cmp.Or(a.send(0, large, 1), a.receive(0, large, 1))
	}, lost, true},
	"a dropped send, and an abort from another thread": {func(a *actor, rank int) error {
		if rank == 0 { // sends nothing
			time.AfterFunc(200*time.Millisecond,
				func() { a.group.Fail(group.FailedError{Stage: 0, MicroBatch: 0, Message: "given up"}) })
			return waitFor(a)
		}
		return a.receive(0, large, 1)
	}, failed, false},
}

// waitFor waits until the group has failed.
func waitFor(a *actor) error {
	<-a.group.Failed()
	return a.group.Err()
}

// Two processes keep the order, send each other much at once, and end with the error of the one that
// was killed, stopped or gave up, whatever waits. On two GPUs this is what NCCL does; elsewhere Gloo.
func TestTwoProcesses(t *testing.T) {
	for _, name := range slices.Sorted(maps.Keys(scenes)) {
		t.Run(name, func(t *testing.T) {
			scene, address := scenes[name], proctest.Address(t)
			config := group.Config{Size: 2, Address: address, Silence: time.Minute}
			if name == "stopped" {
				config.Silence = 2 * time.Second
			}
			other := peerSettings{name, config}
			other.Group.Rank = 1
			text := must.Get(json.Marshal(other))(t)
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), peerVariable+"="+string(text))
			var said bytes.Buffer
			cmd.Stderr = &said
			must.Do(t, cmd.Start())
			defer proctest.Watch(t, cmd, proctest.Limit)()
			begun := time.Now()
			if err := act(peerSettings{name, config}); !scene.ended(err) {
				t.Errorf("it ended with %v", err)
			}
			if took := time.Since(begun); name != "stopped" && took >= config.Silence {
				t.Errorf("it took %v: a silence was waited for", took)
			}
			if scene.gone {
				_ = cmd.Process.Kill()
				_ = cmd.Wait()
				return
			}
			if err := cmd.Wait(); (err == nil) != scene.ended(nil) || err != nil &&
				!strings.Contains(said.String(), "given up") {
				t.Errorf("the other process ended with %v: %s", err, said.String())
			}
		})
	}
}
