package profile_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"penstock.example/internal/engine"
	"penstock.example/nn"
	"penstock.example/profile"
	"penstock.example/remat"
	"penstock.example/torch"
)

// fakeClock is a clock that goes on by a tick whenever it is read, and by what layers add to it.
type fakeClock struct{ now, tick time.Duration }

func (k *fakeClock) read() time.Duration {
	k.now += k.tick
	return k.now
}

// busy is a layer that takes its time on a fake clock: forward and backward by run, in turn. It
// gives twice its input.
type busy struct {
	nn.Base
	clock             *fakeClock
	forward, backward []time.Duration
	forwards, returns int
}

func (b *busy) Forward(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
	b.clock.now += b.forward[b.forwards%len(b.forward)]
	b.forwards++
	var y *torch.Tensor
	c.NoGrad(func() { y = c.MulScalar(x, 2) })
	return engine.Attach(c.Ctx, []*torch.Tensor{x}, []*torch.Tensor{y}, b)[0]
}

// Backward doubles the gradient.
func (b *busy) Backward(c *torch.Ctx, a *engine.Arrival) {
	b.clock.now += b.backward[b.returns%len(b.backward)]
	b.returns++
	a.InputGrads[0] = c.MulScalar(a.Grads[0], 2)
}

func (b *busy) Forget() {}

func millis(list ...int) (out []time.Duration) {
	for _, n := range list {
		out = append(out, time.Duration(n)*time.Millisecond)
	}
	return out
}

func near(got, want float64) bool { return math.Abs(got-want) <= 1e-9*math.Abs(want) }

// TestTimes: of the timed runs the lower quartile counts, forward and backward, and a transfer
// takes what the clock says by the bytes that it moved.
func TestTimes(t *testing.T) {
	c := newCtx(t)
	clock := &fakeClock{tick: time.Millisecond} // between the two readings around a run there is one tick
	slow := &busy{clock: clock, forward: millis(900, 30, 50, 40, 60), backward: millis(700, 80, 70, 60, 90)}
	model := nn.NewSequential(nn.NewLinear(16, 16), slow, nn.NewLinear(16, 4))
	config := profile.Config{Repeats: 20, Clock: clock.read}
	p := measured(t, model, config, vectors(c))
	for i, want := range []struct{ forward, backward float64 }{{0.001, 0.001}, {0.041, 0.071},
		{0.001, 0.001}} {
		if l := p.Layers[i]; !near(l.Forward, want.forward) || !near(l.Backward, want.backward) {
			t.Errorf("layer %d takes %v s forward and %v backward, want %+v", i, l.Forward, l.Backward, want)
		}
	}
	// One tick for each of the three outputs.
	const bytes = 6*16*4 + 6*16*4 + 6*4*4
	if want := 3 * 0.001 / bytes; !near(p.SecondsPerByte, want) {
		t.Errorf("transfers take %v s per byte, want %v", p.SecondsPerByte, want)
	}

	config.Balance = []int{3}
	chains := measured(t, model, config, vectors(c)).Chains
	var all remat.Layer // in microseconds
	for _, l := range chains[0].Layers {
		all.ForwardNoGrad, all.Forward, all.Backward = all.ForwardNoGrad+l.ForwardNoGrad, all.Forward+
			l.Forward, all.Backward+l.Backward
	}
	ticks := 1e3 * float64(len(p.Layers))
	if !near(all.ForwardNoGrad, 40e3+ticks) || !near(all.Forward, 40e3+ticks) ||
		!near(all.Backward, 70e3+ticks) {
		t.Errorf("%d units take %v us without gradients, %v forward and %v backward", len(chains[0].Layers),
			all.ForwardNoGrad, all.Forward, all.Backward)
	}
}

// TestSpread: how much longer the median run takes than the lower quartile is told, of each unit
// and of all, and a warning names it where it is large.
func TestSpread(t *testing.T) {
	c := newCtx(t)
	for _, test := range []struct {
		times   []time.Duration
		want    float64
		warning string
	}{
		{millis(100), 0, ""},
		{millis(100, 100, 104, 104, 104), 0.04, ""},
		{millis(100, 100, 150, 150, 150), 0.5, "the median run took 50 % longer than the lower quartile"},
		{millis(100, 100, 100, 100, 9000), 0, ""}, // one that was interrupted
	} {
		clock := &fakeClock{}
		slow := &busy{clock: clock, forward: test.times, backward: test.times}
		model := nn.NewSequential(nn.NewLinear(16, 16), slow)
		config := profile.Config{Repeats: 15, Clock: clock.read}
		config.Balance = []int{2}
		p := measured(t, model, config, vectors(c))
		chains := p.Chains
		for _, timing := range []profile.Timing{p.Timing, chains[0].Timing} {
			if !near(timing.Spread, test.want) && timing.Spread != test.want {
				t.Errorf("%v: a spread of %v, want %v", test.times, timing.Spread, test.want)
			}
			if got := timing.Warning(); got != test.warning {
				t.Errorf("%v: the warning %q, want %q", test.times, got, test.warning)
			}
		}
	}
}

// TestClocks: with one thread its own processor time counts, in which nobody sleeps; with several
// it is the time of day, as others work for it.
func TestClocks(t *testing.T) {
	c := newCtx(t)
	const long = 50 * time.Millisecond
	for _, threads := range []int{0, 1, 2} {
		t.Run(fmt.Sprint(threads, " threads"), func(t *testing.T) {
			p := measured(t, nn.NewSequential(asleep(long)), profile.Config{Repeats: 1, Threads: threads},
				vectors(c))
			if got := p.Layers[0].Forward; got <= 0 || (got < long.Seconds()/2) != (threads < 2) {
				t.Errorf("a layer that sleeps %v takes %v s", long, got)
			}
		})
	}
}

// TestQueuedPasses: a pass whose runs are queued, as on a GPU, gives each run its own time, and the
// first one does not count, however long it takes.
func TestQueuedPasses(t *testing.T) {
	defer profile.QueuePasses()()
	c := newCtx(t)
	const long = 90 * time.Millisecond
	forwards := 0
	slow := one(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
		forwards++
		time.Sleep(long)
		return c.MulScalar(x, 2)
	})
	p := measured(t, nn.NewSequential(nn.NewReLU(), slow, nn.NewLinear(16, 16)), profile.Config{Repeats: 1},
		vectors(c))
	// it is looked at, and run for what follows
	if passes, rest := (forwards-2)/3, (forwards-2)%3; passes != 2 || rest != 0 {
		t.Errorf("%d forwards, %d passes; want one that counts after one that does not", forwards, passes)
	}
	for i, layer := range p.Layers {
		if slept := layer.Forward >= long.Seconds(); slept != (i == 1) || layer.Forward <= 0 ||
			(layer.Backward > 0) != (i == 2) {
			t.Errorf("layer %d takes %v s forward and %v s backward", i, layer.Forward, layer.Backward)
		}
	}
}

// TestLayersAddUpToPasses: where one layer is slow whenever another is quick, the sum of their best
// times is no time that any pass took. The layers' times are what whole passes take.
func TestLayersAddUpToPasses(t *testing.T) {
	c := newCtx(t)
	clock := &fakeClock{}
	model := nn.NewSequential(nn.NewLinear(16, 16),
		&busy{clock: clock, forward: millis(10, 90), backward: millis(30, 70)}, &busy{clock: clock,
			forward: millis(90, 10), backward: millis(70, 30)})
	p := measured(t, model, profile.Config{Repeats: 8, Clock: clock.read, Balance: []int{3}}, vectors(c))
	var forward, backward float64
	for _, l := range p.Layers {
		forward, backward = forward+l.Forward, backward+l.Backward
	}
	if !near(forward, 0.1) || !near(backward, 0.1) {
		t.Errorf("layers take %v s forward and %v s backward; every pass takes 0.1", forward, backward)
	}
	var units float64
	for _, l := range p.Chains[0].Layers {
		units += l.Forward
	}
	if !near(units, 0.1e6) {
		t.Errorf("units take %v us forward; every pass takes 0.1 s", units)
	}
}
