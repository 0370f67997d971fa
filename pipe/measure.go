package pipe

import (
	"context"
	"runtime"
	"slices"
	"time"

	"penstock/nn"
	"penstock/torch"
)

// MeasureOptions says how layers are timed. Zero values are defaults.
type MeasureOptions struct {
	Device  torch.Device
	Threads int // intra-op threads; 0 is 1
	Repeats int // timed runs of each layer after one warm-up; 0 is 5
	Seed    uint64
}

// Measure times each of the model's flattened layers, forward plus backward in seconds, on its true input: what the layers before make of sample. It is the median
// of several runs after a warm-up. Parameters that do not exist are made for the time their layer is measured, so the whole model need
// not fit. Running statistics of existing layers do not move, because the measured forwards are marked as recomputations.
func Measure(ctx context.Context, model *nn.Sequential, sample *torch.Tensor, o MeasureOptions) (seconds []float64, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	c := torch.NewCtx(torch.Options{Device: o.Device, Threads: max(o.Threads, 1)})
	defer c.Close()
	x := c.Keep(c.Detach(sample))
	defer func() { x.Free() }()
	repeats := o.Repeats
	if repeats == 0 {
		repeats = 5
	}
	for i, l := range model.Layers() {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		var y *torch.Tensor
		var t float64
		err := measured(l, func() { y, t = measure(c, l, x, i > 0, repeats, o.Seed) })
		c.Close()
		if err != nil {
			return nil, err
		}
		x.Free()
		x, seconds = y, append(seconds, t)
	}
	return seconds, nil
}

// measured gives a failure its layer.
func measured(l nn.NamedLayer, f func()) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = &MeasureError{Layer: l.Name, Err: cause(r)}
		}
	}()
	f()
	return nil
}

// MeasureError is a layer's failure while it was timed.
type MeasureError struct {
	Layer string
	Err   error
}

// Error names the layer and the cause.
func (e *MeasureError) Error() string {
	return "pipe: measuring layer " + e.Layer + ": " + e.Err.Error()
}

// Unwrap is the cause.
func (e *MeasureError) Unwrap() error { return e.Err }

func measure(c *torch.Ctx, l nn.NamedLayer, x *torch.Tensor, inputGrad bool, repeats int, seed uint64) (*torch.Tensor, float64) {
	var made []nn.NamedParam
	for _, s := range l.State() {
		if !s.Exists() {
			made = append(made, s)
		}
	}
	defer func() {
		for _, s := range made {
			s.Param.Free()
		}
	}()
	nn.Materialise(c, made, seed)
	params := nn.Params(l.Layer)
	before := make([]*torch.Tensor, len(params))
	for i, p := range params {
		before[i] = c.Keep(c.GradOf(p.Tensor()))
		p.Tensor().SetGradOf(nil)
	}
	defer func() {
		for i, p := range params {
			p.Tensor().SetGradOf(before[i])
			before[i].Free()
		}
	}()
	var times []float64
	var kept *torch.Tensor
	for k := 0; k <= repeats; k++ {
		c.SetGrad(true)
		leaf := c.Detach(x)
		if inputGrad && leaf.DType().IsFloat() {
			leaf.SetRequiresGrad(true)
		}
		in := leaf
		if f, ok := l.Layer.(nn.InPlace); ok && f.OverwritesInput() {
			in = c.Clone(leaf)
		}
		n := nn.NewCtx(c, nn.Config{Training: true, Recomputing: true, Seed: seed})
		start := time.Now()
		y := n.RunNamed(l, []*torch.Tensor{in})[0]
		forward := time.Since(start)
		var backward time.Duration
		if y.RequiresGrad() {
			g := c.OnesLike(y)
			start = time.Now()
			c.Backward([]*torch.Tensor{y}, []*torch.Tensor{g}, false)
			backward = time.Since(start)
		}
		if k == repeats {
			kept = c.Keep(c.Detach(y))
		}
		if k > 0 {
			times = append(times, (forward + backward).Seconds())
		}
		leaf.SetGradOf(nil)
		c.Close()
	}
	c.SetGrad(false)
	slices.Sort(times)
	return kept, times[len(times)/2]
}
