package profile_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock.example/nn"
	"penstock.example/profile"
	"penstock.example/torch"
)

// TestOthersWorkWhileALayerIsTimed: the first layer, in most of its runs that count, waits for two
// of the last one, which only another thread can do. So the last one runs on when all of its own
// are done.
func TestOthersWorkWhileALayerIsTimed(t *testing.T) {
	c := newCtx(t)
	defer profile.SetCores(2)()
	const meetings = 12 // of 18: 6 passes of 3 runs
	met, runs := 0, 0
	begun := make(chan struct{}, 1) // a run of the last layer
	first := one(func(n *nn.Ctx, x *torch.Tensor) *torch.Tensor {
		if runs++; runs > 2 && met < meetings { // it was looked at, and has made the input of the next layer
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
		select {
		case begun <- struct{}{}:
		default:
		}
		return n.MulScalar(x, 2)
	})
	// without chains, for which layers run one at a time
	p := measured(t, nn.NewSequential(first, nn.NewLinear(16, 16), nn.NewLinear(16, 16), last),
		profile.Config{Devices: 2, Repeats: 5}, vectors(c))
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

// TestOtherDevicesChangeNothing: with other devices at work every time is there, and the model is
// as it was, whatever layers share.
func TestOtherDevicesChangeNothing(t *testing.T) {
	defer profile.SetCores(21)()
	for _, network := range networks {
		t.Run(network.name, func(t *testing.T) {
			const n = 3
			c := newCtx(t)
			model := network.build()
			defer nn.Free(model)
			nn.Materialise(c, nn.State(model), 5)
			before := state(model)
			layers := len(model.Layers())
			p := measured(t, model, profile.Config{Repeats: 1, Split: true, Devices: n}, network.input(c))
			compare(t, "measuring", before, state(model))
			if want := min(n, layers); p.Timing.Devices != want && (layers-1)/n*n+want <= layers ||
				p.Timing.Devices < 1 {
				t.Errorf("%d devices of %d worked, with %d layers", p.Timing.Devices, n, layers)
			}
			for _, s := range nn.Shared(model) {
				if s.Replica() != nil {
					t.Errorf("%s keeps a replica", s.Name)
				}
			}
		})
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

// TestTiesAreApart: what two devices use at once is a leaf of each, so that no two threads add to
// one gradient.
func TestTiesAreApart(t *testing.T) {
	c := newCtx(t)
	defer profile.SetCores(2)()
	var mu sync.Mutex
	seen := map[*torch.Tensor]bool{} // elsewhere
	first, last := &user{}, &user{}
	saw := func(d torch.Device, weight *torch.Tensor) {
		mu.Lock()
		defer mu.Unlock()
		if d != torch.CPU(0) {
			seen[weight] = true
		}
	}
	first.saw, last.saw = saw, saw
	first.weight = first.Param("weight", nn.Ones, 16)
	last.weight = last.Share("weight", first.weight)
	model := nn.NewSequential(first, nn.NewTanh(), nn.NewLinear(16, 16), last)
	defer nn.Free(model)
	nn.Materialise(c, nn.State(model), 5)
	measured(t, model, profile.Config{Devices: 2, Repeats: 2}, vectors(c))
	if len(seen) != 1 || seen[first.weight.Tensor()] || last.weight.Replica() != nil ||
		first.weight.Tensor().HasGrad() {
		t.Errorf("%v, replica %v", seen, last.weight.Replica())
	}
}

// TestOtherDevicesUnderALimit: all windows of a row hold what one would. Where a layer takes more
// it is alone, and it is said that no other device worked.
func TestOtherDevicesUnderALimit(t *testing.T) {
	c := newCtx(t)
	defer profile.SetCores(3)()
	for limit, want := range map[int64]int{1 << 20: 1, 8 << 20: 3} {
		model := nn.NewSequential(nn.NewLinear(16, 64), nn.NewTanh(), nn.NewLinear(64, 64), nn.NewTanh(),
			nn.NewLinear(64, 16), nn.NewTanh())
		d := torch.CPU(9)
		d.SetLimit(limit)
		p, err := profile.Measure(context.Background(), model,
			profile.Config{Device: d, Peer: d, Devices: 3, Repeats: 1},
			c.Ones(torch.Float32, 600, 16))
		d.SetLimit(0)
		if err != nil || p.Timing.Devices != want {
			t.Errorf("limit %d: %d devices worked, want %d; %v", limit, p.Timing.Devices, want, err)
		}
	}
}

// TestFailuresElsewhere: a layer that fails on another device is named, and the others stop;
// nothing stays.
func TestFailuresElsewhere(t *testing.T) {
	defer profile.SetCores(2)()
	for _, test := range []struct {
		name string
		fail func(cancel func())
		want func(err error) bool
	}{
		{"panic", func(func()) { panic("no") }, func(err error) bool {
			var e *profile.Error
			return errors.As(err, &e) && e.Layer == "last" && strings.Contains(err.Error(), "no")
		}},
		{"end", func(cancel func()) { cancel() },
			func(err error) bool { return errors.Is(err, context.Canceled) }},
		{"goexit", func(func()) { runtime.Goexit() },
			func(err error) bool { return err != nil && strings.Contains(err.Error(), "runtime.Goexit") }},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := newCtx(t)
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			var other torch.Device
			last := one(func(n *nn.Ctx, x *torch.Tensor) *torch.Tensor {
				if n.Device() != torch.CPU(0) && x.RequiresGrad() { // it is timed
					other = n.Device()
					test.fail(cancel)
				}
				return n.MulScalar(x, 2)
			})
			model := nn.NewSequential(nn.NewLinear(16, 16)).Add("middle", nn.NewLinear(16, 16)).Add("last",
				last)
			if _, err := profile.Measure(ctx, model, profile.Config{Devices: 2},
				vectors(c)); !test.want(err) {
				t.Error(err)
			}
			for _, s := range nn.State(model) {
				if s.Exists() {
					t.Errorf("%s exists", s.Name)
				}
			}
			if m := other.Memory(); m.Live != 0 {
				t.Errorf("%v holds %d bytes", other, m.Live)
			}
		})
	}
}

// TestIdleDevice: nobody gets a device that holds something, has a limit, or is reserved.
func TestIdleDevice(t *testing.T) {
	newCtx(t)
	first, release, err := profile.IdleDevice(1 << 20)
	if err != nil || first.Memory().Limit != 1<<20 {
		t.Fatalf("%v, limit %d: %v", first, first.Memory().Limit, err)
	}
	release()
	if first.Memory().Limit != 0 {
		t.Error("a limit is left")
	}
	first.SetLimit(100)
	defer first.SetLimit(0)
	second, release, err := profile.IdleDevice(0)
	if err != nil || second == first {
		t.Errorf("%v: %v", second, err)
	}
	release()
}
