package profile_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"penstock.example/nn"
	"penstock.example/profile"
	"penstock.example/torch"
)

func asleep(d time.Duration) nn.Layer {
	return one(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
		time.Sleep(d)
		return c.MulScalar(x, 2)
	})
}

// TestSeconds: whatever runs takes time, and nothing else does.
func TestSeconds(t *testing.T) {
	c := deviceCtx(t)
	model := nn.NewSequential(nn.NewReLU(), nn.NewLinear(16, 16), nn.NewReLU(), nn.NewLinear(16, 16))
	p := measured(t, model, profile.Config{Device: c.Device(), Repeats: 3, Peer: torch.CPU(1)}, vectors(c))
	for i, l := range p.Layers {
		if l.Forward <= 0 || (l.Backward > 0) != (i > 0) { // nothing before layer 1 is trained
			t.Errorf("layer %d takes %v s forward and %v backward", i, l.Forward, l.Backward)
		}
	}
	if p.SecondsPerByte <= 0 {
		t.Errorf("transfers take %v s per byte", p.SecondsPerByte)
	}
	p = measured(t, model, profile.Config{Device: c.Device(), BytesOnly: true}, vectors(c))
	for i, l := range p.Layers {
		if l.Forward != 0 || l.Backward != 0 || p.SecondsPerByte != 0 {
			t.Errorf("layer %d was timed: %+v", i, l)
		}
	}
}

// TestLeavesNoTrace: neither values nor gradients nor running statistics change, nor does what is
// missing come into being; not even by a layer that counts its forwards whatever it is told.
func TestLeavesNoTrace(t *testing.T) {
	for _, network := range append(slices.Clone(networks), struct {
		name  string
		build func() *nn.Sequential
		input func(c *torch.Ctx) *torch.Tensor
	}{"counting", func() *nn.Sequential {
		return nn.NewSequential(nn.NewLinear(16, 4), newCounting(), nn.NewLinear(4, 4))
	}, vectors}) {
		t.Run(network.name, func(t *testing.T) {
			c := deviceCtx(t)
			x, model := network.input(c), network.build()
			input := torch.Bytes(x)
			measured(t, model, profile.Config{Device: c.Device(), Repeats: 1}, x)
			for _, s := range nn.State(model) {
				if s.Exists() {
					t.Errorf("%s was left after", s.Name)
				}
			}
			if t.Failed() {
				return
			}
			nn.Materialise(c, nn.State(model), 1)
			defer nn.Free(model)
			c.SetGrad(true)
			y := nn.NewCtx(c, nn.Config{Training: true}).Run(x, model)
			c.Backward([]*torch.Tensor{y}, []*torch.Tensor{c.Op("aten::ones_like", y)}, false)
			c.SetGrad(false)
			before := state(model)
			measured(t, model, profile.Config{Device: c.Device(), Repeats: 2}, x)
			compare(t, "measuring", before, state(model))
			if string(torch.Bytes(x)) != string(input) {
				t.Error("measuring changed the sample")
			}
			// And where a layer fails midway.
			failing := nn.NewSequential(model,
				one(func(*nn.Ctx, *torch.Tensor) *torch.Tensor { panic("enough") }))
			if _, err := profile.Measure(context.Background(), failing,
				profile.Config{Device: c.Device(), Repeats: 1}, x); err == nil {
				t.Error("the failing layer did not fail")
			}
			compare(t, "a failed measurement", before, state(model))
		})
	}
}

// counting counts its forwards in a buffer.
type counting struct {
	nn.Base
	count *nn.Param
}

func newCounting() *counting {
	l := &counting{}
	l.count = l.Buffer("count", torch.Int64, nn.Zeros)
	return l
}

func (l *counting) Forward(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
	c.NoGrad(func() { c.AddInt_(l.count.Tensor(), 1) })
	return c.MulScalar(x, 2)
}

func TestProgress(t *testing.T) {
	c := newCtx(t)
	var seen []int
	measured(t, nn.NewSequential(nn.NewReLU(), nn.NewReLU()),
		profile.Config{BytesOnly: true, Progress: func(done, layers int) {
			seen = append(seen, done, layers)
		}}, vectors(c))
	if want := []int{0, 2, 1, 2, 2, 2}; !slices.Equal(seen, want) {
		t.Errorf("progress %v, want %v", seen, want)
	}
	// Times, forwards and backwards: it goes on through all of them, and ends with them.
	for _, config := range []profile.Config{{Repeats: 1, Balance: []int{40}, Split: true},
		{BytesOnly: true, Balance: []int{20, 20}}, {Repeats: 1, Balance: []int{40}, Devices: 2}} {
		seen = nil
		config.Progress = func(done, layers int) {
			if layers != 40 {
				t.Errorf("%d of %d layers", done, layers)
			}
			seen = append(seen, done)
		}
		var layers []nn.Layer
		for range 20 {
			layers = append(layers, nn.NewLinear(16, 16), nn.NewReLU())
		}
		measured(t, nn.NewSequential(layers...), config, vectors(c))
		if distinct := len(slices.Compact(slices.Clone(seen))); !slices.IsSorted(seen) ||
			seen[len(seen)-1] != 40 || distinct < 10 {
			t.Errorf("%+v: progress %v", config, seen)
		}
	}
}

// TestMeasuringUnderALimit: where a limit has no room it is lifted if that is wanted. Under a limit
// of a part of the inputs as little as possible is held. Progress takes nothing back.
func TestMeasuringUnderALimit(t *testing.T) {
	c := newCtx(t)
	var layers []nn.Layer
	for range 20 {
		layers = append(layers, nn.NewLinear(16, 16), nn.NewReLU())
	}
	model, x, d := nn.NewSequential(layers...), c.Ones(torch.Float32, 256, 16), torch.CPU(1)
	defer d.SetLimit(0)
	var seen []int
	config := profile.Config{Device: d, Repeats: 1, Balance: []int{40}, Split: true,
		Progress: func(done, _ int) { seen = append(seen, done) }}
	d.SetLimit(1)
	if _, err := profile.Measure(context.Background(), model, config, x); !errors.Is(err,
		torch.ErrOutOfMemory) {
		t.Errorf("under a limit of a byte: %v", err)
	}
	config.LiftLimit = true
	for n := range int64(10) { // whatever did not fit, each layer is there once
		d.SetLimit(1 + n*256*16*4)
		if p := measured(t, model, config, x); len(p.Layers) != 40 || p.Input != 256*16*4 {
			t.Errorf("under %d inputs there are %d layers, and an input of %d bytes", n, len(p.Layers),
				p.Input)
		}
	}
	config.LiftLimit, seen = false, nil
	d.SetLimit(12 * 256 * 16 * 4)
	measured(t, model, config, x)
	if !slices.IsSorted(seen) || seen[len(seen)-1] != 40 {
		t.Errorf("progress %v", seen)
	}
}

func TestFailures(t *testing.T) {
	boom := errors.New("boom")
	broken := func(f func()) *nn.Sequential {
		return nn.NewSequential(nn.NewLinear(16, 4),
			nn.NewSequential(nn.NewReLU(),
				one(func(_ *nn.Ctx, x *torch.Tensor) *torch.Tensor { f(); return x })))
	}
	tests := []struct {
		reason string
		model  *nn.Sequential
		layer  string
		want   []string
		is     error
	}{
		{"shapes that do not fit", nn.NewSequential(nn.NewReLU(), nn.NewLinear(15, 4)), "1",
			[]string{`profile: measuring layer "1": penstock::linear(float32[6,16]`}, nil},
		{"a panic with an error", broken(func() { panic(boom) }), "1.1", []string{"panic: boom"}, boom},
		{"no room for parameters", nn.NewSequential(nn.NewLinear(16, 1<<20)), "0",
			[]string{`layer "0"`, "out of memory on cpu:1: limit 1048576 bytes"}, torch.ErrOutOfMemory},
		{"no room for activations", nn.NewSequential(one(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
			return c.Zeros(torch.Float32, 1<<20)
		})), "0", []string{"aten::zeros", "cpu:1"}, torch.ErrOutOfMemory},
		{"a failing backward", nn.NewSequential(nn.NewLinear(16, 4),
			one(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
				y := c.Mul(x, x)
				c.NoGrad(func() { c.Zero_(x) }) // what backward needs
				return y
			})), "1", []string{`layer "1"`, "MulBackward0", "modified by an inplace operation"}, nil},
		{"a stash that nothing pops", nn.NewSequential(stasher("lost")), "",
			[]string{"profile: nn: the model's skip connections do not match", `"lost"`}, nil},
		{"a panic after a stash", nn.NewSequential(func() nn.Layer {
			l := &layer{forward: func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
				c.Stash("s", xs[0])
				panic("too late")
			}}
			l.Stashes("s")
			return nn.Tuple(l, l.ForwardTuple)
		}(), popper("s", mul)), "0", []string{"too late"}, nil},
		{"no layers", nn.NewSequential(), "", []string{"profile: the model has no layers"}, nil},
	}
	for _, test := range tests {
		t.Run(test.reason, func(t *testing.T) {
			c := newCtx(t)
			torch.CPU(1).SetLimit(1 << 20)
			defer torch.CPU(1).SetLimit(0)
			p, err := profile.Measure(context.Background(), test.model,
				profile.Config{Device: torch.CPU(1)}, vectors(c))
			if err == nil || p.Layers != nil {
				t.Fatalf("got %+v, %v", p, err)
			}
			for _, part := range test.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("no %q in: %v", part, err)
				}
			}
			var located *profile.Error
			if errors.As(err, &located) != (test.layer != "") || located != nil &&
				located.Layer != test.layer {
				t.Errorf("the error is of layer %+v, want %q", located, test.layer)
			}
			if test.is != nil && !errors.Is(err, test.is) {
				t.Errorf("%v is not %v", err, test.is)
			}
		})
	}
}

// Whatever allocation fails while layers of tuples are measured, nothing stays allocated.
func TestMeasuringThatDoesNotFitLeavesNothing(t *testing.T) {
	c := newCtx(t)
	x, device := vectors(c), torch.CPU(1)
	passed := false
	for limit := int64(64); !passed; limit += 64 {
		func() {
			tensors, bytes := torch.LiveTensors(), device.Memory().Live
			device.SetLimit(limit)
			defer device.SetLimit(0)
			model := nn.NewSequential(nn.NewLinear(16, 4),
				do(func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
					wide := c.Cat(slices.Repeat(xs, 20), 1)
					return []*torch.Tensor{xs[0], c.Op("aten::tanh", wide), c.Argmax(wide, 1),
						c.Op("aten::tanh", wide)}
				}), do(func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
					return []*torch.Tensor{c.Mul(xs[1], xs[3])}
				}))
			_, err := profile.Measure(context.Background(), model,
				profile.Config{Device: device, Repeats: 1, Balance: []int{3}}, x)
			passed = err == nil
			nn.Free(model)
			if left := device.Memory().Live - bytes; torch.LiveTensors() != tensors || left != 0 {
				t.Fatalf("under %d bytes %d tensors of %d bytes are left: %v", limit,
					torch.LiveTensors()-tensors, left, err)
			}
		}()
	}
}

// TestStops: between two runs of a layer, and with the context's own error.
func TestStops(t *testing.T) {
	c := newCtx(t)
	ctx, cancel := context.WithCancelCause(context.Background())
	runs := 0
	model := nn.NewSequential(nn.NewReLU(), one(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
		if runs++; runs == 3 {
			cancel(nil)
		}
		if !c.Training {
			t.Error("it is not run as in training")
		}
		return c.MulScalar(x, 2)
	}))
	if _, err := profile.Measure(ctx, model, profile.Config{Repeats: 100}, vectors(c)); !errors.Is(err,
		context.Canceled) || runs != 3 {
		t.Errorf("after %d runs: %v", runs, err)
	}
}
