package profile_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"penstock.example/internal/torchtest"
	"penstock.example/models"
	"penstock.example/nn"
	"penstock.example/profile"
	"penstock.example/torch"
)

// others are n devices beside cpu:0, whether or not there are cores for them.
func others(n int) (list []torch.Device) {
	for i := range n {
		list = append(list, torch.CPU(1+i))
	}
	return list
}

// TestOthersWorkWhileALayerIsTimed: the first layer, in most of its runs that count, waits for two of the last
// one, which only another thread can do. So the last one runs on when all of its own are done.
func TestOthersWorkWhileALayerIsTimed(t *testing.T) {
	c := newCtx(t)
	const meetings = 20 // of 30: 6 passes of 5 runs
	met := 0
	begun := make(chan struct{}, 1) // a run of the last layer
	var elsewhere atomic.Bool       // the last layer has run on the other device, and is timed next
	first := one(func(n *nn.Ctx, x *torch.Tensor) *torch.Tensor {
		if elsewhere.Load() && met < meetings {
			select {
			case <-begun:
			default:
			}
			for range 2 {
				select {
				case <-begun:
				case <-time.After(time.Minute):
					t.Error("the last layer does not run while the first one does")
					met = meetings
				}
			}
			met++
		}
		return n.MulScalar(x, 2)
	})
	last := one(func(n *nn.Ctx, x *torch.Tensor) *torch.Tensor {
		if n.Device() == torch.CPU(1) {
			elsewhere.Store(true)
		}
		select {
		case begun <- struct{}{}:
		default:
		}
		return n.MulScalar(x, 2)
	})
	// without chains, for which layers run one at a time
	p := measured(t, nn.NewSequential(first, nn.NewLinear(16, 16), nn.NewLinear(16, 16), last), profile.Config{Beside: others(1), Repeats: 4, Warmup: 2}, vectors(c))
	if met != meetings {
		t.Errorf("the first layer waited %d times, want %d", met, meetings)
	}
	if p.Timing.Devices != 2 {
		t.Errorf("%d devices worked, it says", p.Timing.Devices)
	}
	for _, l := range p.Layers {
		if l.Forward <= 0 {
			t.Errorf("%s takes %v", l.Name, l.Forward)
		}
	}
}

// TestBesideChangesNothing: with other devices at work the bytes are those without, every time is there, and
// the model is as it was, whatever layers share.
func TestBesideChangesNothing(t *testing.T) {
	for _, network := range networks {
		for _, n := range []int{1, 2, 20} {
			t.Run(network.name, func(t *testing.T) {
				c := newCtx(t)
				model := network.build()
				defer nn.Free(model)
				nn.Materialise(c, nn.State(model), 5)
				x := network.input(c)
				before := state(model)
				layers := len(model.Layers())
				config := profile.Config{Repeats: 1, Balance: []int{layers}, Split: true}
				alone := measured(t, model, config, x)
				config.Beside = others(n)
				p := measured(t, model, config, x)
				compare(t, "measuring", before, state(model))
				if want := min(n+1, layers); p.Timing.Devices != want && (layers-1)/(n+1)*(n+1)+want <= layers || p.Timing.Devices < 1 || p.Chains[0].Timing.Devices != p.Timing.Devices {
					t.Errorf("%d and %d devices of %d worked, with %d layers", p.Timing.Devices, p.Chains[0].Timing.Devices, n+1, layers)
				}
				if alone.Timing.Devices != 1 {
					t.Errorf("alone %d devices worked", alone.Timing.Devices)
				}
				for i, l := range p.Layers {
					was := alone.Layers[i]
					was.Forward, was.Backward = l.Forward, l.Backward
					if l != was {
						t.Errorf("layer %d: %+v, alone %+v", i, l, was)
					}
				}
				for _, s := range nn.Shared(model) {
					if s.Replica() != nil {
						t.Errorf("%s keeps a replica", s.Name)
					}
				}
				for _, d := range config.Beside {
					if m := d.Memory(); m.Live != 0 {
						t.Errorf("%v holds %d bytes", d, m.Live)
					}
				}
			})
		}
	}
}

// TestBesideOfTiedLayers: parameters that do not exist are made for the time, and threads that use one add to
// gradients of their own.
func TestBesideOfTiedLayers(t *testing.T) {
	c := newCtx(t)
	model, err := models.New("gpt", models.Options{Depth: 2, Width: 16, Heads: 2, Context: 8, Classes: 11})
	if err != nil {
		t.Fatal(err)
	}
	x := torch.From(c, make([]int64, 2*8), 2, 8)
	p := measured(t, model, profile.Config{Beside: others(3), Repeats: 3, Balance: []int{len(model.Layers())}}, x)
	if p.Timing.Devices != 4 {
		t.Errorf("%d devices worked", p.Timing.Devices)
	}
	for _, s := range nn.State(model) {
		if s.Exists() {
			t.Fatalf("%s exists", s.Name)
		}
	}
}

// user multiplies by a parameter, and tells which tensor that is.
type user struct {
	nn.Base
	weight *nn.Param
	saw    func(d torch.Device, weight *torch.Tensor)
}

func (u *user) Forward(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
	u.saw(c.Device(), u.weight.Tensor())
	return c.Mul(x, u.weight.Tensor())
}

// TestTiesAreApart: what two devices use at once is a leaf of each, so that no two threads add to one gradient.
func TestTiesAreApart(t *testing.T) {
	c := newCtx(t)
	var mu sync.Mutex
	seen := map[torch.Device]map[*torch.Tensor]bool{}
	saw := func(d torch.Device, weight *torch.Tensor) {
		mu.Lock()
		defer mu.Unlock()
		if seen[d] == nil {
			seen[d] = map[*torch.Tensor]bool{}
		}
		seen[d][weight] = true
	}
	first, last := &user{saw: saw}, &user{saw: saw}
	first.weight = first.Param("weight", nn.Ones, 16)
	last.weight = last.Share("weight", first.weight)
	model := nn.NewSequential(first, nn.NewTanh(), nn.NewLinear(16, 16), last)
	defer nn.Free(model)
	nn.Materialise(c, nn.State(model), 5)
	measured(t, model, profile.Config{Beside: others(1), Repeats: 2}, vectors(c))
	for weight := range seen[torch.CPU(1)] {
		if weight == first.weight.Tensor() {
			t.Error("cpu:1 used the tensor of cpu:0")
		}
	}
	if len(seen[torch.CPU(1)]) != 1 || last.weight.Replica() != nil || first.weight.Tensor().HasGrad() {
		t.Errorf("%v, replica %v", seen, last.weight.Replica())
	}
}

// TestBesideUnderALimit: all windows side by side hold what one would. Where a layer takes more it is alone, and
// it is said that no other device worked.
func TestBesideUnderALimit(t *testing.T) {
	c := newCtx(t)
	build := func() *nn.Sequential {
		return nn.NewSequential(nn.NewLinear(16, 64), nn.NewTanh(), nn.NewLinear(64, 64), nn.NewTanh(), nn.NewLinear(64, 16), nn.NewTanh())
	}
	for limit, want := range map[int64]int{64 << 10: 1, 8 << 20: 3} {
		d := torch.CPU(9)
		d.SetLimit(limit)
		p, err := profile.Measure(context.Background(), build(), profile.Config{Device: d, Peer: d, Beside: others(2), Repeats: 1}, vectors(c))
		d.SetLimit(0)
		if err != nil || p.Timing.Devices != want {
			t.Errorf("limit %d: %d devices worked, want %d; %v", limit, p.Timing.Devices, want, err)
		}
	}
}

// TestFailuresBeside: a layer that fails on another device is named, and what it was measured beside stops; a
// layer that ends its goroutine ends that of Measure; nothing stays.
func TestFailuresBeside(t *testing.T) {
	for _, test := range []struct {
		name string
		fail func(cancel func())
		want func(err error) bool
	}{
		{"panic", func(func()) { panic("no") }, func(err error) bool {
			var e *profile.Error
			return errors.As(err, &e) && e.Layer == "last" && strings.Contains(err.Error(), "no")
		}},
		{"end", func(cancel func()) { cancel() }, func(err error) bool { return errors.Is(err, context.Canceled) }},
		{"goexit", func(func()) { runtime.Goexit() }, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := newCtx(t)
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			last := one(func(n *nn.Ctx, x *torch.Tensor) *torch.Tensor {
				if n.Device() == torch.CPU(1) && x.RequiresGrad() { // it is timed
					test.fail(cancel)
				}
				return n.MulScalar(x, 2)
			})
			model := nn.NewSequential(nn.NewLinear(16, 16)).Add("middle", nn.NewLinear(16, 16)).Add("last", last)
			var err error
			returned := false
			done := make(chan bool)
			x := vectors(c)
			go func() {
				defer close(done)
				_, err = profile.Measure(ctx, model, profile.Config{Beside: others(1)}, x)
				returned = true
			}()
			<-done
			if returned != (test.want != nil) || returned && !test.want(err) {
				t.Errorf("returned %v: %v", returned, err)
			}
			for _, s := range nn.State(model) {
				if s.Exists() {
					t.Errorf("%s exists", s.Name)
				}
			}
			if m := torch.CPU(1).Memory(); m.Live != 0 {
				t.Errorf("cpu:1 holds %d bytes", m.Live)
			}
		})
	}
}

// TestBesideIsRefused: devices that cannot work beside the one that measures.
func TestBesideIsRefused(t *testing.T) {
	c := newCtx(t)
	for _, list := range [][]torch.Device{{torch.CPU(0)}, {torch.CPU(1), torch.CPU(1)}, {torch.CPU(torch.MaxCPU)}, {torch.CUDA(0)}} {
		_, err := profile.Measure(context.Background(), nn.NewSequential(nn.NewTanh()), profile.Config{Beside: list}, vectors(c))
		var refused *profile.ConfigError
		if !errors.As(err, &refused) || refused.Field != "Beside" {
			t.Errorf("%v: %v", list, err)
		}
	}
}

// TestOthers: as many as there are cores for.
func TestOthers(t *testing.T) {
	torchtest.Check(t)
	cores := runtime.NumCPU()
	for _, test := range []struct{ devices, threads, want int }{{1, 1, 0}, {2, 1, min(2, cores) - 1}, {2, cores, 0}, {1000, 1, cores - 1}, {0, 1, 0}, {2, 2 * cores, 0}} {
		got := profile.Others(torch.CPU(1), test.devices, test.threads)
		if len(got) != max(test.want, 0) || slices.Contains(got, torch.CPU(1)) {
			t.Errorf("%+v: %v", test, got)
		}
	}
}
