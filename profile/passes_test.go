package profile_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"penstock.example/internal/engine"
	"penstock.example/internal/must"
	"penstock.example/nn"
	"penstock.example/profile"
	"penstock.example/torch"
)

// witness hands its input on and tells what it is run for. Its backward takes twice as long where
// the weight has a gradient already.
type witness struct {
	nn.Base
	name   int
	weight *nn.Param
	clock  *fakeClock
	told   *[]string
}

func (w *witness) tell(what string) { *w.told = append(*w.told, fmt.Sprint(what, w.name)) }

func (w *witness) Forward(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
	if !x.RequiresGrad() {
		w.tell("F")
		return c.MulScalar(x, 1)
	}
	w.tell("S")
	var y *torch.Tensor
	c.NoGrad(func() { y = c.MulScalar(x, 1) })
	return engine.Attach(c.Ctx, []*torch.Tensor{x}, []*torch.Tensor{y}, w)[0]
}

func (w *witness) Backward(c *torch.Ctx, a *engine.Arrival) {
	w.tell("B")
	w.clock.now += 10 * time.Millisecond
	if w.weight != nil && w.weight.Tensor().HasGrad() {
		w.clock.now += 10 * time.Millisecond
	}
	a.InputGrads[0] = c.MulScalar(a.Grads[0], 1)
}

func (w *witness) Forget() {}

// TestPasses: units are timed in passes over all of them, as in steps; where a limit does not hold
// so much, in passes over fewer. A first micro-batch makes the gradients of parameters, a later one
// adds to them, and both are timed. In steps of one micro-batch they are run one after the other.
func TestPasses(t *testing.T) {
	const whole = "F0 F1 F2 S0 S1 S2 S0 S1 S2 B2 B1 B0 B2 B1 B0" // two micro-batches at once
	each := func(pass string) string {                           // of one of the three after the other
		var list []string
		for _, i := range []string{"0", "1", "2"} {
			list = append(list, strings.ReplaceAll(strings.Repeat(pass+" ", 3)+"Fi", "i", i))
		}
		return strings.Join(list, " ")
	}
	for _, test := range []struct {
		limit        int64
		microBatches int
		want         string
	}{
		{0, 0, strings.Join([]string{whole, whole, whole}, " ")}, // one to warm up, two that count
		{0, 2, whole},
		{0, 1, "F0 F1 F2 S0 S1 S2 B2 B1 B0 S0 S1 S2 B2 B1 B0"},
		{40 << 10, 0, each("Fi Si Si Bi Bi")},
	} {
		c := newCtx(t)
		var told []string
		clock := &fakeClock{}
		var layers []nn.Layer
		for i := range 3 {
			l := nn.NewLinear(16, 16)
			layers = append(layers, l, &witness{name: i, weight: l.Weight, clock: clock, told: &told},
				nn.NewTanh())
		}
		device := torch.CPU(1)
		device.SetLimit(test.limit)
		defer device.SetLimit(0)
		measured := must.Get(profile.Measure(context.Background(), nn.NewSequential(layers...),
			profile.Config{Device: device, MicroBatches: test.microBatches, Repeats: 2, Clock: clock.read,
				Balance: []int{len(layers)}},
			c.Ones(torch.Float32, 48, 16)))(t)
		chain := measured.Chains[0]
		if len(chain.Layers) != 3 {
			t.Fatalf("%d units: %v", len(chain.Layers), chain.Units)
		}
		if got := strings.Join(told, " "); !strings.Contains(got, " "+test.want+" ") {
			t.Errorf("limit %d: ran\n%s\nwant in it\n%s", test.limit, got, test.want)
		}
		for i := range chain.Layers {
			if l := chain.Layers[i]; !near(l.Backward, 10e3) || !near(l.BackwardLater, 20e3) {
				t.Errorf("limit %d: backward of unit %d takes %v us, and %v us later; want 10 ms and 20 ms",
					test.limit, i, l.Backward, l.BackwardLater)
			}
		}
	}
}

// Passes end by the clock: those that take long are fewer, and none of them is for warming up. So
// many as are asked for are made however long they take.
func TestPassesByTheClock(t *testing.T) {
	c := newCtx(t)
	for _, test := range []struct {
		takes  time.Duration // forward and backward each; a pass has three forwards and two backwards
		config profile.Config
		want   int // passes
	}{
		{time.Millisecond, profile.Config{}, 1 + 5},
		{60 * time.Millisecond, profile.Config{}, 4},
		{time.Minute, profile.Config{}, 2},
		{time.Minute, profile.Config{Repeats: 7}, 7},
	} {
		clock := &fakeClock{}
		slow := &busy{clock: clock, forward: []time.Duration{test.takes},
			backward: []time.Duration{test.takes}}
		test.config.Clock = clock.read
		p := measured(t, nn.NewSequential(nn.NewLinear(16, 16), slow), test.config, vectors(c))
		// it is looked at, and run for what follows
		if got, rest := (slow.forwards-2)/3, (slow.forwards-2)%3; got != test.want || rest != 0 {
			t.Errorf("layers of %v, %+v: %d passes and %d forwards, want %d", test.takes, test.config, got,
				rest, test.want)
		}
		if l := p.Layers[1]; !near(l.Forward, test.takes.Seconds()) ||
			!near(l.Backward, test.takes.Seconds()) {
			t.Errorf("layers of %v take %v and %v s", test.takes, l.Forward, l.Backward)
		}
	}
}
