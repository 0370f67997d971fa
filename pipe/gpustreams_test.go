package pipe_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"penstock.example/internal/engine"
	"penstock.example/internal/must"
	"penstock.example/internal/stream"
	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/schedule"
	"penstock.example/torch"
)

// leaky is a stream of a GPU on which the waits for one reason are left out.
type leaky struct {
	engine.Stream
	without stream.Reason // stream.Reasons for none
}

// leak wraps a stream of a GPU. That of a CPU stays.
func leak(s stream.Stream, without stream.Reason) stream.Stream {
	if gpu, ok := s.(engine.Stream); ok {
		return leaky{gpu, without}
	}
	return s
}

func (s leaky) Record() stream.Event { return leakyEvent{s.Stream.Record(), s.without} }

func (s leaky) Wait(e stream.Event, why stream.Reason) {
	if own, ok := e.(leakyEvent); ok {
		e = own.Event
	}
	if why != s.without {
		s.Stream.Wait(e, why)
	}
}

type leakyEvent struct {
	stream.Event
	without stream.Reason
}

func (e leakyEvent) Synchronize() {
	if e.without != stream.Ended {
		e.Event.Synchronize()
	}
}

// spinner keeps one thread of a GPU busy, so that a stream is late and others can go on. On a CPU
// it sleeps.
type spinner struct {
	mu         sync.Mutex
	c          *torch.Ctx
	from, into *torch.Tensor
	random     *rand.Rand
}

// spinTime is how long it spins: longer than the work of a step takes a GPU.
const spinTime = 2 * time.Millisecond

// newSpinner measures how much there is to do in spinTime: the sums over long columns, of which one
// thread makes each.
func newSpinner(d torch.Device, seed uint64) *spinner {
	s := &spinner{c: torch.NewCtx(torch.Options{Device: d}), random: rand.New(rand.NewPCG(seed, 0))}
	if d.Kind == torch.KindCPU {
		return s
	}
	for rows := int64(1000); ; rows *= 2 {
		s.c.Close()
		s.from, s.into = s.c.Zeros(torch.Int64, rows, 2), s.c.Zeros(torch.Int64, rows, 2)
		s.spin(nil)
		s.c.Synchronize() // the first time the kernel is loaded
		begun := engine.Now(s.c)
		s.spin(nil)
		ended := engine.Now(s.c)
		s.c.Synchronize()
		took := ended.Since(begun)
		begun.Free()
		ended.Free()
		if took > spinTime {
			return s
		}
	}
}

// spin has a stream be late. Nil is the default stream.
func (s *spinner) spin(on stream.Stream) {
	if s.from == nil {
		time.Sleep(20 * time.Microsecond)
		return
	}
	if on == nil {
		on = engine.DefaultStream(s.c.Device())
	}
	s.c.SetStream(on)
	s.c.Call("aten::cumsum.out", s.from, 0, nil, s.into)
	s.c.SetStream(engine.DefaultStream(s.c.Device()))
}

// delay has the streams of a pipe be late before some of the actions, and the batch before each
// step, with the waits for one reason left out.
func (s *spinner) delay(p *pipe.Pipe, without stream.Reason) delays {
	d := s.c.Device()
	var own, all []stream.Stream
	undo := p.WrapStreams(func(of stream.Stream) stream.Stream {
		s.mu.Lock()
		defer s.mu.Unlock()
		w := leak(of, without)
		if all = append(all, w); len(own) < len(p.Devices()) { // workers' come first
			own = append(own, w)
		}
		return w
	}, leak(engine.DefaultStream(d), without))
	p.Hold(func(worker, _ int) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.random.IntN(3) == 0 {
			s.spin(own[worker])
		}
		if s.random.IntN(6) == 0 {
			s.spin(all[s.random.IntN(len(all))])
		}
	})
	return delays{
		give: func(b pipe.Batch) {
			x := b.Input[0].Tensor
			c := torch.NewCtx(torch.Options{Device: d})
			defer c.Close()
			value := c.Clone(x)
			c.Fill_(x, 0)
			c.Synchronize()
			s.mu.Lock()
			s.spin(nil)
			s.mu.Unlock()
			c.Copy_(x, value)
		},
		end: func() {
			p.Hold(nil)
			undo()
		},
	}
}

// Stages with streams of their own on one device give the bits of the plain loop, however late the
// work of each stream is. On a GPU no wait can be left out: some delay then gives other bits.
func TestStreamsOfOneDevice(t *testing.T) {
	torchtest.Check(t)
	const rows, chunks, seed = 24, 4, 3
	q := problem{
		model: func() *nn.Sequential {
			m := nn.NewSequential()
			for i := range 4 {
				m.Add(fmt.Sprint(i), nn.NewSequential(nn.NewLinear(64, 64), nn.NewTanh(),
					nn.NewLayerNorm([]int64{64}, nn.NormConfig{}), nn.NewDropout(0.1)))
			}
			return m.Add("head", nn.NewLinear(64, 5))
		},
		// no classes: a kernel that reads others than there are ends the use of the GPU
		loss: nn.MSE(), input: normal(rows, 64), target: normal(rows, 5), rows: rows, steps: 3,
	}
	layers := len(q.model().Layers())
	want := q.plain(chunks, seed)
	d := torchtest.Device(0)
	run := func(name string, stages int, policy pipe.Checkpoint, without stream.Reason, seed uint64) string {
		s := must.Get(schedule.Named(name))(t)
		cfg := pipe.Config{Chunks: chunks, Checkpoint: policy, Seed: 3, Schedule: s.Generate}
		var lanes []int
		for i := range stages {
			cfg.Balance = append(cfg.Balance, (i+1)*layers/stages-i*layers/stages)
			cfg.Devices, lanes = append(cfg.Devices, d), append(lanes, i)
			if name == "interleaved" {
				lanes[i] = i % 2
			}
		}
		spins := newSpinner(d, seed)
		defer spins.c.Close()
		q := q
		q.delay = func(p *pipe.Pipe) delays { return spins.delay(p, without) }
		return want.differs(q.pipedAs(t, cfg.Apart(lanes...)))
	}
	for _, name := range []string{"gpipe", "1f1b", "interleaved"} {
		for _, policy := range []pipe.Checkpoint{pipe.Never, pipe.Always} {
			for _, stages := range []int{2, 4} {
				if name == "interleaved" && stages == 2 {
					continue
				}
				for seed := range uint64(2) {
					if wrong := run(name, stages, policy, stream.Reasons, seed); wrong != "" {
						t.Errorf("%s, %v, %d stages, delays %d: %s differs from the plain loop", name,
							policy, stages, seed, wrong)
					}
				}
			}
		}
	}
	if d.Kind == torch.KindCPU || t.Failed() {
		return
	}
	for without := range stream.Reasons {
		const most = 30
		seed := uint64(0)
		for seed < most && run("1f1b", 4, pipe.Always, without, seed) == "" {
			seed++
		}
		if seed == most {
			t.Errorf("nothing went wrong in %d steps without the wait %q", most*q.steps, without)
		}
	}
}
