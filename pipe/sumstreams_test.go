package pipe_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"penstock.example/group"
	"penstock.example/internal/engine"
	"penstock.example/internal/link"
	"penstock.example/internal/linktest"
	"penstock.example/internal/stream"
	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/schedule"
	"penstock.example/torch"
)

// replica is the process of one: its communicators, one for each direction, and its streams.
type replica struct {
	on              *clocks
	wires           map[string]chan []byte // of both replicas, by ID
	rank            int
	own, sums       *clocked
	sends, receives *clocked
	directions      []bool // of the communicators: whether it sends
	wire            []chan []byte
	summed          []int // how much was queued on own when the gradients of each sum were there
	sum             int   // how many have begun
	sent            []int // of the sum: when on sends each value was sent
	back            int   // of the sum, on the first replica: how many gradients have come back
	opened          bool
}

// checkSum comes after work of a sum, which uses what was received, and may overwrite what was sent when
// the sum of it has come back.
func (r *replica) checkSum() {
	r.sums.work()
	if r.receives != nil && !r.sums.knowsAll(r.receives) {
		r.on.fault("replica %d uses a value before it has arrived", r.rank)
	}
	if r.back > 0 && r.sums.knows[r.sends] < r.sent[r.back-1] {
		r.on.fault("replica %d overwrites gradient %d before it has left", r.rank, r.back-1)
	}
}

func (r *replica) waited(why stream.Reason) {
	r.sums.work()
	if why == stream.Produced { // another sum begins
		r.sum, r.sent, r.back = r.sum+1, nil, 0
	}
}

func (r *replica) ID() ([]byte, error) {
	r.on.mu.Lock()
	defer r.on.mu.Unlock()
	id := fmt.Sprint(len(r.wires))
	r.wires[id] = make(chan []byte, 1000)
	return []byte(id), nil
}

func (r *replica) Open(id []byte, _ torch.Device, sends bool) (int, error) {
	r.on.mu.Lock()
	defer r.on.mu.Unlock()
	r.directions, r.wire = append(r.directions, sends), append(r.wire, r.wires[string(id)])
	return len(r.wire) - 1, nil
}

func (r *replica) Transfer(over int, on stream.Stream, tensors []*torch.Tensor) error {
	h := torch.NewCtx(torch.Options{})
	defer h.Close()
	for _, t := range tensors {
		sends, memory := r.directions[over], engine.InMemoryOrder(h, t)
		if r.queue(on.(*clocked), sends); sends {
			r.wire[over] <- torch.Bytes(memory)
			continue
		}
		select {
		case b := <-r.wire[over]:
			if err := torch.SetBytes(memory, b); err != nil {
				return err
			}
		case <-time.After(linktest.Patience):
			return errors.New("nothing was sent")
		}
	}
	return nil
}

// queue notes a move on a stream, and what was not known to have ended before it.
func (r *replica) queue(s *clocked, sends bool) {
	r.on.mu.Lock()
	defer r.on.mu.Unlock()
	s.work()
	switch {
	case !r.opened:
	case sends:
		if !s.knowsAll(r.sums) || s.knows[r.own] < r.summed[r.sum-1] {
			r.on.fault("replica %d sends a value before it is there", r.rank)
		}
		r.sends, r.sent = s, append(r.sent, s.queued)
	default:
		if !s.knowsAll(r.sums) {
			r.on.fault("replica %d receives into memory that is still used", r.rank)
		}
		if r.receives = s; r.rank == 0 {
			r.back++
		}
	}
}

func (*replica) Err() error { return nil }
func (*replica) Abort()     {}
func (*replica) Close()     {}

// summed is a problem whose stages are summed in two sums, one beside the worker.
var summed = problem{model: func() *nn.Sequential {
	return nn.NewSequential(nn.NewLinear(6, 7), nn.NewTanh(), nn.NewBatchNorm1d(7, nn.BatchNormConfig{}),
		nn.NewLinear(7, 3))
}, rows: 8, steps: 1, loss: nn.CrossEntropy(), input: normal(8, 6), target: classes(8, 3)}

// Streams of sums between GPUs wait for all that they must wait for, and no wait can be left out. Bits
// are those of a loop.
func TestStreamsOfSums(t *testing.T) {
	torchtest.Check(t)
	want := summed.plainReplicas(torch.CPU(0), 2, 2, 5)
	for without := range stream.Reasons + 1 {
		if without == stream.Given { // of a pipe's workers, not of sums
			continue
		}
		w, wires := &clocks{without: without}, map[string]chan []byte{}
		_, errs := each(2, func(g *group.Group) (struct{}, error) {
			r := &replica{on: w, wires: wires, rank: g.Rank(), own: w.stream(), sums: w.stream()}
			r.sums.records, r.sums.waits = r.checkSum, r.waited
			model := summed.model()
			defer nn.Free(model)
			p, err := openReplica(model, g)
			if err != nil {
				return struct{}{}, err
			}
			defer p.Close()
			p.SetStreams(func(int) stream.Stream { return r.own }, stream.Host{}, nil)
			p.SetSums(func(int) stream.Stream { return r.sums })
			p.SetGPUs(torch.Device.String, func() link.Communicators { return r },
				func(torch.Device) stream.Stream { return w.stream() })
			if err := p.Place(); err != nil {
				return struct{}{}, err
			}
			program, err := p.Program(2)
			if err != nil {
				return struct{}{}, err
			}
			graph := program.Graph()
			p.Hold(func(_, id int) {
				w.mu.Lock()
				defer w.mu.Unlock()
				if id < len(graph.Actions) && graph.Actions[id].Kind == schedule.Reduce {
					r.summed = append(r.summed, r.own.queued)
				}
				r.own.work()
			})
			r.opened = true
			c := torch.NewCtx(torch.Options{Threads: 1})
			defer c.Close()
			if _, err := p.Step(context.Background(),
				pipe.Batch{Input: pipe.Rows(summed.input(c, 0)),
					Target: pipe.Rows(summed.target(c, 0))}, summed.loss); err != nil {
				return struct{}{}, err
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			if r.sum != 2 || r.sends == nil {
				return struct{}{}, fmt.Errorf("%d sums, and sends: %v", r.sum, r.sends != nil)
			}
			if r.sums.ended < r.sums.queued || r.sends.ended < r.sends.queued {
				w.fault("the caller goes on before replica %d has summed", r.rank)
			}
			for _, s := range nn.Params(model) {
				if string(gradient(s)) != string(want.values["gradient of "+s.Name]) {
					return struct{}{}, fmt.Errorf("%s has another gradient than the plain loop", s.Name)
				}
			}
			return struct{}{}, nil
		})
		if err := errors.Join(errs...); err != nil {
			t.Error(err)
		}
		if without == stream.Reasons && len(w.faults) > 0 {
			t.Error(strings.Join(w.faults, "\n"))
		} else if without < stream.Reasons && len(w.faults) == 0 {
			t.Errorf("nothing went wrong without the wait %q", without)
		}
	}
}

// openReplica opens a replica's pipe of two stages, on a device of its own.
func openReplica(model *nn.Sequential, g *group.Group) (*pipe.Pipe, error) {
	d := torch.CPU(10 + g.Rank())
	return pipe.Open(model, pipe.Config{Balance: []int{2, 2}, Devices: []torch.Device{d, d}, Chunks: 2,
		Seed: 5, Group: g, Replicas: 2})
}
