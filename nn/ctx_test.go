package nn_test

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/torch"
)

func TestRandomNumbersFollowSeedMicroBatchAndName(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	x := c.Ones(torch.Float32, 256)
	run := func(o nn.Config, l nn.NamedLayer) []float32 {
		o.Training = true
		return torch.Values[float32](nn.NewCtx(c, o).RunNamed(l, []*torch.Tensor{x})[0])
	}
	named := func(name string) nn.NamedLayer { return nn.NamedLayer{Name: name, Layer: nn.NewDropout(0.5)} }
	want := run(nn.Config{Seed: 1, MicroBatch: 2, MicroBatches: 4}, named("a.b.c"))

	nested := nn.NewSequential().Add("b", nn.NewSequential().Add("c", nn.NewDropout(0.5)))
	for _, row := range []struct {
		reason string
		got    []float32
		same   bool
	}{
		{"the same again", run(nn.Config{Seed: 1, MicroBatch: 2, MicroBatches: 4}, named("a.b.c")), true},
		{"a recomputation", run(nn.Config{Seed: 1, MicroBatch: 2, MicroBatches: 4, Recomputing: true}, named("a.b.c")), true},
		{"nested in Sequentials", run(nn.Config{Seed: 1, MicroBatch: 2, MicroBatches: 4}, nn.NamedLayer{Name: "a", Layer: nested}), true},
		{"flattened by a partition", run(nn.Config{Seed: 1, MicroBatch: 2, MicroBatches: 4}, nn.NewSequential().Add("a",
			nn.NewSequential().Add("b", nn.NewSequential().Add("c", nn.NewDropout(0.5)))).Layers()[0]), true},
		{"another micro-batch", run(nn.Config{Seed: 1, MicroBatch: 3, MicroBatches: 4}, named("a.b.c")), false},
		{"another seed", run(nn.Config{Seed: 2, MicroBatch: 2, MicroBatches: 4}, named("a.b.c")), false},
		{"another name", run(nn.Config{Seed: 1, MicroBatch: 2, MicroBatches: 4}, named("a.b.d")), false},
		{"the dots count", run(nn.Config{Seed: 1, MicroBatch: 2, MicroBatches: 4}, named("a.bc")), false},
	} {
		if slices.Equal(row.got, want) != row.same {
			t.Errorf("%s: the same bits: %v, want %v", row.reason, !row.same, row.same)
		}
	}
}

// noisy draws before and after its child, if it has one.
type noisy struct {
	nn.Base
	child         nn.Layer
	before, after []float32
}

func (n *noisy) Forward(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
	n.before = torch.Values[float32](c.Dropout(x, 0.5))
	if n.child != nil {
		c.Run(x, n.child)
	}
	n.after = torch.Values[float32](c.Dropout(x, 0.5))
	return x
}

func TestChildrenDoNotDisturbTheirParentsDraws(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	x := c.Ones(torch.Float32, 256)
	alone, parent := &noisy{}, &noisy{child: &noisy{}}
	parent.Child("child", parent.child)
	for _, l := range []*noisy{alone, parent} {
		nn.NewCtx(c, nn.Config{Seed: 1}).RunNamed(nn.NamedLayer{Name: "l", Layer: l}, []*torch.Tensor{x})
	}
	if !slices.Equal(alone.before, parent.before) || !slices.Equal(alone.after, parent.after) {
		t.Error("a child changed what its parent drew")
	}
	if slices.Equal(parent.before, parent.after) || slices.Equal(parent.before, parent.child.(*noisy).before) {
		t.Error("two draws are the same")
	}
}

func TestPathIsWhereItPanicked(t *testing.T) {
	c := nn.NewCtx(torchtest.New(t, torch.Options{}), nn.Config{})
	s := nn.NewSequential().Add("a", nn.NewTanh()).Add("b", nn.NewSequential(nn.NewTanh(), nn.NewFlatten(0, 7)))
	err := torch.Try(func() { c.RunNamed(nn.NamedLayer{Name: "net", Layer: s}, []*torch.Tensor{c.Ones(torch.Float32, 2)}) })
	if err == nil || c.Path() != "net.b.1" {
		t.Errorf("got %v at %q, want a failure at net.b.1", err, c.Path())
	}
	fine := nn.NewCtx(c.Ctx, nn.Config{})
	fine.RunNamed(nn.NamedLayer{Name: "a", Layer: nn.NewTanh()}, []*torch.Tensor{c.Ones(torch.Float32, 2)})
	if fine.Path() != "" {
		t.Errorf("after a run that went well the path is %q", fine.Path())
	}
}

func TestSpansNestAndNameTheInnermostLayer(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	base := torchtest.New(t, torch.Options{Grad: true})
	c := nn.NewCtx(base, nn.Config{Spans: true})
	s := nn.NewSequential().Add("a", nn.NewTanh()).Add("b", nn.NewSequential(nn.NewSigmoid(), nn.NewTanh())).Add("none", nn.NewIdentity())
	x := c.Ones(torch.Float32, 2).SetRequiresGrad(true)
	start := torch.Sequence()
	s.Forward(c, x)
	var got []string
	for _, span := range c.Spans() {
		got = append(got, fmt.Sprintf("%s %d-%d", span.Layer, span.From-start, span.To-start))
	}
	if want := "a 0-1, b.0 1-2, b.1 2-3, b 1-3, none 3-3"; strings.Join(got, ", ") != want {
		t.Errorf("got  %s\nwant %s", strings.Join(got, ", "), want)
	}
	for i, want := range []string{"a", "b.0", "b.1", ""} {
		if layer := nn.LayerOf(c.Spans(), start+uint64(i)); layer != want {
			t.Errorf("node %d is of %q, want %q", i, layer, want)
		}
	}
	silent := nn.NewCtx(base, nn.Config{})
	s.Forward(silent, x)
	if len(silent.Spans()) != 0 {
		t.Error("spans were recorded unasked")
	}
}

// Backward is given less memory than it needs, a little more each time: the layers that fail are
// all of them, from the last to the first.
func TestFailuresInBackwardAreTracedToTheirLayers(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	torchtest.Check(t)
	device := torch.CPU(7)
	owner := torch.NewCtx(torch.Options{Device: device, Threads: 1})
	defer owner.Close()
	s := nn.NewSequential().Add("up", nn.NewLinear(64, 600)).Add("mid", nn.NewSequential(nn.NewTanh())).Add("down", nn.NewLinear(600, 2))
	nn.Materialise(owner, nn.State(s), 1)
	defer nn.Free(s)

	if got := failuresInBackward(t, s, device, 64, 4096); got != "down mid.0 up" {
		t.Errorf("as memory grew the failures were in %s", got)
	}
}

// failuresInBackward gives a backward on 3 rows of so many numbers more and more memory until it
// has enough, and lists the layers that fail. A failure leaves nothing.
func failuresInBackward(t *testing.T, s *nn.Sequential, device torch.Device, width, step int64) string {
	live := device.Memory().Live
	var failed []string
	for extra := int64(8); ; extra += step {
		err, layer := backwardWithin(s, device, width, extra)
		if now := device.Memory().Live; now != live {
			t.Fatalf("%d bytes are left", now-live)
		}
		if err == nil {
			return strings.Join(failed, " ")
		}
		if !errors.Is(err, torch.ErrOutOfMemory) {
			t.Fatal(err)
		}
		if len(failed) == 0 || failed[len(failed)-1] != layer {
			failed = append(failed, layer)
		}
	}
}

func backwardWithin(s *nn.Sequential, device torch.Device, width, extra int64) (err error, layer string) {
	base := torch.NewCtx(torch.Options{Device: device, Grad: true, Threads: 1})
	defer base.Close()
	defer nn.ZeroGrads(s)
	c := nn.NewCtx(base, nn.Config{Spans: true})
	y := s.Forward(c, c.Ones(torch.Float32, 3, width))
	grad := c.OnesLike(y)
	device.SetLimit(device.Memory().Live + extra)
	defer device.SetLimit(0)
	err = torch.Try(func() { c.Backward([]*torch.Tensor{y}, []*torch.Tensor{grad}, false) })
	if layer = c.Path(); layer != "" { // a second run failed
		return err, layer
	}
	var e *torch.Error
	if errors.As(err, &e) {
		layer = nn.LayerOf(c.Spans(), e.Sequence)
	}
	return err, layer
}

// Modules hold nothing of a run: several goroutines with contexts of their own compute what one
// does.
func TestOneModelRunsInSeveralGoroutines(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	s := nn.NewSequential(nn.NewTransformerBlock(8, 2, nn.TransformerConfig{Dropout: 0.5}), nn.NewTransformerBlock(8, 2, nn.TransformerConfig{Dropout: 0.5}))
	nn.Materialise(c, nn.State(s), 1)
	defer nn.Free(s)
	x := c.Keep(c.Normal_(c.Empty(torch.Float32, 2, 5, 8), 0, 1))
	defer x.Free()
	run := func(microBatch int) []float32 {
		own := torch.NewCtx(torch.Options{Device: c.Device(), Threads: 1})
		defer own.Close()
		return torch.Values[float32](s.Forward(nn.NewCtx(own, nn.Config{Training: true, Seed: 1, MicroBatch: microBatch}), x))
	}
	var want, got [8][]float32
	for i := range want {
		want[i] = run(i)
	}
	var wg sync.WaitGroup
	for i := range got {
		wg.Go(func() { got[i] = run(i) })
	}
	wg.Wait()
	for i := range want {
		if !slices.Equal(got[i], want[i]) {
			t.Errorf("micro-batch %d differs", i)
		}
	}
}
