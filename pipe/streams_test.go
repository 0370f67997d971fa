package pipe_test

import (
	"context"
	"strings"
	"testing"

	"penstock.example/internal/must"
	"penstock.example/internal/stream"
	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/schedule"
	"penstock.example/torch"
)

// watchedStep is a step of a pipe whose workers have streams that are watched. It returns what was
// used before it was known to be there.
func watchedStep(t *testing.T, cfg pipe.Config, without stream.Reason) (faults []string, left record) {
	t.Helper()
	model := tied(true, false)
	p := started(t, model, cfg)
	w := &clocks{without: without}
	own, copies := map[int]*clocked{}, map[[2]int]*clocked{}
	caller := w.stream()
	stages := p.Stages()
	worker := p.Config().Workers()
	p.SetStreams(func(i int) stream.Stream {
		own[i] = w.stream()
		return own[i]
	}, caller, func(from, to int) stream.Stream {
		s, into, copying := w.stream(), own[to], false
		s.waits = func(why stream.Reason) { copying = copying || why == stream.Vacant }
		s.records = func() {
			if !copying { // otherwise the copy was queued
				return
			}
			copying = false
			if s.work(); !s.knowsAll(into) {
				w.fault("a copy is written before what used its memory has ended")
			}
		}
		w.mu.Lock()
		copies[[2]int{from, to}] = s
		w.mu.Unlock()
		return s
	})
	c := torch.NewCtx(torch.Options{Threads: 1, Device: aside})
	defer c.Close()
	program := must.Get(p.Program(cfg.Chunks))(t)
	graph := program.Graph()
	queuedAt := map[schedule.Action]int{}
	caller.work()
	p.Hold(func(i, id int) {
		w.mu.Lock()
		defer w.mu.Unlock()
		s := own[i]
		if !s.knowsAll(caller) {
			w.fault("%d of worker %d begins before the batch is there", id-graph.First[i], i)
		}
		if id > graph.First[i] {
			a := graph.Actions[id-1]
			// parameters move once
			empty := a.Kind == schedule.ReceiveActivation && a.MicroBatch > 0 && a.Peer != a.Stage-1
			if a.Kind.Receive() && worker[a.Peer] != i && !empty {
				from := worker[a.Peer]
				if s.knows[own[from]] < queuedAt[a.Matching()] {
					w.fault("what comes after %v begins before the value was made", a)
				}
				by := copies[[2]int{from, i}]
				if !own[from].knowsAll(by) {
					w.fault("the memory of %v is used again before it was copied", a.Matching())
				}
				if !s.knowsAll(by) {
					w.fault("what comes after %v begins before the copy has ended", a)
				}
			}
		}
		if id < graph.First[i+1] {
			s.work()
			queuedAt[graph.Actions[id]] = s.queued
		}
	})
	result := must.Get(p.Step(context.Background(),
		pipe.Batch{Input: pipe.Rows(classes(7, 6)(c, 0)),
			Target: pipe.Rows(classes(7, 6)(c, 1))}, nn.CrossEntropy()))(t)
	for i, s := range own {
		if s.ended < s.queued {
			w.fault("the caller goes on before worker %d has ended", i)
		}
	}
	if len(stages) > 1 && len(copies) == 0 {
		t.Error("no copy went over a stream")
	}
	return w.faults, snapshot(model, []float64{result.Loss}, gradient)
}

// The streams of a pipe wait for all that they must wait for, with activations and tied parameters; no
// wait can be left out; and results are those without streams.
func TestStreamsOfAPipe(t *testing.T) {
	torchtest.Check(t)
	for _, name := range []string{"gpipe", "1f1b", "zb-h1", "interleaved", "gpipe on one device"} {
		name, shared := strings.CutSuffix(name, " on one device")
		for _, policy := range []pipe.Checkpoint{pipe.Never, pipe.Always} {
			s := must.Get(schedule.Named(name))(t)
			cfg := pipe.Config{Balance: []int{1, 1, 1, 2}, Chunks: 4, Checkpoint: policy, Seed: 3,
				Schedule: s.Generate, Devices: cpus(4)}
			if name == "interleaved" {
				cfg.Devices = []torch.Device{torch.CPU(0), torch.CPU(1), torch.CPU(0), torch.CPU(1)}
			}
			if shared {
				cfg.Devices = make([]torch.Device, 4)
				cfg = cfg.Apart(0, 1, 2, 3)
			}
			faults, got := watchedStep(t, cfg, stream.Reasons)
			if len(faults) > 0 {
				t.Errorf("%s, %s: %s", name, policy, strings.Join(faults, "\n"))
			}
			model := tied(true, false)
			p := started(t, model, cfg)
			c := torch.NewCtx(torch.Options{Threads: 1, Device: aside})
			result := must.Get(p.Step(context.Background(),
				pipe.Batch{Input: pipe.Rows(classes(7, 6)(c, 0)),
					Target: pipe.Rows(classes(7, 6)(c, 1))}, nn.CrossEntropy()))(t)
			if d := got.differs(snapshot(model, []float64{result.Loss}, gradient)); d != "" {
				t.Errorf("%s, %s: with streams another %s", name, policy, d)
			}
			nn.ZeroGrads(model)
			c.Close()
			for without := range stream.Reasons {
				if faults, _ := watchedStep(t, cfg, without); len(faults) == 0 {
					t.Errorf("%s, %s: nothing went wrong without the wait %q", name, policy, without)
				}
			}
		}
	}
}
