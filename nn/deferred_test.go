package nn_test

import (
	"errors"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/torch"
)

const channels = 3

// batchNorm makes the layer for inputs of so many dimensions.
func batchNorm(c *torch.Ctx, dims int, o nn.BatchNormConfig) *nn.BatchNorm {
	b := nn.NewBatchNorm1d(channels, o)
	if dims == 4 {
		b = nn.NewBatchNorm2d(channels, o)
	}
	nn.Materialise(c, nn.State(b), 1)
	return b
}

// inParts runs a mini-batch in micro-batches of so many rows each, and commits.
func inParts(c *torch.Ctx, d *nn.Deferred, b *nn.BatchNorm, x *torch.Tensor, rows []int64) {
	from := int64(0)
	for i, n := range rows {
		ctx := nn.NewCtx(c, nn.Config{Training: true, MicroBatch: i, MicroBatches: len(rows), Deferred: d})
		b.Forward(ctx, c.Narrow(x, 0, from, n))
		from += n
	}
	if from != x.Size(0) {
		panic("the micro-batches are not the mini-batch")
	}
	d.Commit(nn.NewCtx(c, nn.Config{Training: true}))
}

// twoPass gives the mean and the unbiased variance of each channel, in float64.
func twoPass(x *torch.Tensor) (mean, variance []float64) {
	shape, v := x.Shape(), torch.Values[float32](x)
	inner := 1
	for _, n := range shape[2:] {
		inner *= int(n)
	}
	mean, variance = make([]float64, shape[1]), make([]float64, shape[1])
	each := func(f func(channel int, v float64)) {
		for i := range v {
			f(i/inner%int(shape[1]), float64(v[i]))
		}
	}
	count := float64(len(v)) / float64(shape[1])
	each(func(i int, v float64) { mean[i] += v / count })
	each(func(i int, v float64) { variance[i] += (v - mean[i]) * (v - mean[i]) / (count - 1) })
	return mean, variance
}

// near reports whether running statistics are those wanted, each to 1e-6 of itself.
func near(got []float32, want []float64) bool { return nearSums(got, want, 0) }

// nearSums is near for sums of values of about the given size. If the values cancel, a sum has the
// rounding errors of the values.
func nearSums(got []float32, want []float64, size float64) bool {
	return slices.EqualFunc(got, want, func(g float32, w float64) bool {
		return math.Abs(float64(g)-w) <= 1e-6*math.Abs(w)+1e-7*size
	})
}

// With a momentum of 1 the running statistics are the batch's. A mean far from 0 beside a small
// variance is where sums of squares cancel.
func TestDeferredStatisticsAreExact(t *testing.T) {
	torchtest.Check(t)
	rapid.Check(t, func(t *rapid.T) {
		c := torch.NewCtx(torch.Options{Threads: 1})
		defer c.Close()
		dims := rapid.IntRange(2, 4).Draw(t, "dimensions")
		rows := rapid.SliceOfN(rapid.Int64Range(2, 5), 1, 6).Draw(t, "rows")
		shape := []int64{0, channels}
		for _, n := range rows {
			shape[0] += n
		}
		for range dims - 2 {
			shape = append(shape, rapid.Int64Range(1, 4).Draw(t, "size"))
		}
		mean, std := rapid.SampledFrom([]float64{1000, -3, 30, 1e5}).Draw(t, "mean"),
			rapid.SampledFrom([]float64{0.1, 1, 100}).Draw(t, "standard deviation")
		c.SetSeed(rapid.Uint64().Draw(t, "seed"))
		x := c.Normal_(c.Empty(torch.Float32, shape...), mean, std)
		b := batchNorm(c, dims, nn.BatchNormConfig{Momentum: 1})
		defer nn.Free(b)
		inParts(c, new(nn.Deferred), b, x, rows)
		wantMean, wantVariance := twoPass(x)
		if got := torch.Values[float32](b.RunningMean.Tensor()); !near(got, wantMean) {
			t.Errorf("mean %v, want %v", got, wantMean)
		}
		if got := torch.Values[float32](b.RunningVar.Tensor()); !near(got, wantVariance) {
			t.Errorf("variance %v, want %v", got, wantVariance)
		}
	})
}

func TestDeferredMovesOnceAndOnlyInTraining(t *testing.T) {
	initial := []float32{0, 0, 0, 1, 1, 1, 0}
	training := nn.Config{Training: true}
	again := nn.Config{Training: true, Recomputing: true}
	for _, row := range []struct {
		reason string
		passes []nn.Config // of one micro-batch, then Commit
		moves  bool
	}{
		{"a forward", []nn.Config{training}, true},
		{"a forward and its recomputation", []nn.Config{{Training: true, Checkpointing: true}, again,
			again}, true},
		{"a recomputation alone", []nn.Config{again}, false},
		{"evaluation", []nn.Config{{}, {}}, false},
		{"nothing", nil, false},
	} {
		t.Run(row.reason, func(t *testing.T) {
			c := torchtest.New(t, torch.Options{Grad: true})
			b, plain := batchNorm(c, 2, nn.BatchNormConfig{}), batchNorm(c, 2, nn.BatchNormConfig{})
			defer nn.Free(b)
			defer nn.Free(plain)
			x := c.Normal_(c.Empty(torch.Float32, 8, channels), 1, 2)
			plain.Forward(nn.NewCtx(c, training), x)
			var d nn.Deferred // the zero value is ready
			for _, o := range row.passes {
				o.Deferred = &d
				b.Forward(nn.NewCtx(c, o), x)
			}
			for range 2 { // the second has nothing to move
				d.Commit(nn.NewCtx(c, training))
			}
			want := initial
			if row.moves {
				want = running(plain)
			}
			if got := running(b); !slices.EqualFunc(got, want, func(a, b float32) bool {
				return math.Abs(float64(a-b)) <= 1e-6*math.Abs(float64(b))
			}) {
				t.Errorf("got %v, want %v", got, want)
			}
		})
	}
}

// A mini-batch that fails is as if it had not been.
func TestDeferredForgetsAFailedMiniBatch(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	b, untouched := batchNorm(c, 2, nn.BatchNormConfig{}), batchNorm(c, 2, nn.BatchNormConfig{})
	defer nn.Free(b)
	defer nn.Free(untouched)
	x := c.Normal_(c.Empty(torch.Float32, 8, channels), 1, 2)
	d := new(nn.Deferred)
	ctx := nn.NewCtx(c, nn.Config{Training: true, Deferred: d})
	b.Forward(ctx, c.Narrow(x, 0, 0, 4))
	if err := torch.Try(func() { b.Forward(ctx, c.Narrow(x, 0, 4, 1)) }); err == nil {
		t.Fatal("one row has no variance")
	}
	d.Free()
	if !slices.Equal(running(b), running(untouched)) {
		t.Errorf("the running statistics moved to %v", running(b))
	}
	inParts(c, d, b, x, []int64{4, 4})
	inParts(c, new(nn.Deferred), untouched, x, []int64{4, 4})
	if !slices.Equal(running(b), running(untouched)) {
		t.Errorf("the next mini-batch gave %v, want %v", running(b), running(untouched))
	}
}

func TestCommitWithoutMemoryMovesNothing(t *testing.T) {
	a := newAccount(t, false)
	first, second := batchNorm(a.Ctx, 2, nn.BatchNormConfig{}), batchNorm(a.Ctx, 2, nn.BatchNormConfig{})
	defer nn.Free(first)
	defer nn.Free(second)
	d := new(nn.Deferred)
	ctx := nn.NewCtx(a.Ctx, nn.Config{Training: true, Deferred: d})
	x := a.Normal_(a.Empty(torch.Float32, 8, channels), 1, 2)
	first.Forward(ctx, x)
	second.Forward(ctx, x)
	before := slices.Concat(running(first), running(second))
	failures := 0
	a.start()
	for room := int64(4); ; room += 4 {
		a.Device().SetLimit(a.Device().Memory().Live + room)
		err := torch.Try(func() { d.Commit(ctx) })
		a.Device().SetLimit(0)
		if err == nil {
			break
		}
		if failures++; !errors.Is(err, torch.ErrOutOfMemory) ||
			!slices.Equal(slices.Concat(running(first), running(second)), before) {
			t.Fatalf("with %d bytes to spare: %v, and the running statistics are %v", room, err,
				slices.Concat(running(first), running(second)))
		}
		if a.used() != 0 {
			t.Fatalf("%d bytes are left", a.used())
		}
	}
	if failures < 4 {
		t.Errorf("Commit failed %d times only", failures)
	}
	if !slices.Equal(running(first), running(second)) || slices.Equal(running(first),
		before[:len(before)/2]) {
		t.Errorf("in the end the running statistics are %v and %v", running(first), running(second))
	}
}
