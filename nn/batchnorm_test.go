package nn_test

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"penstock.example/internal/must"
	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/torch"
)

// result is what a forward and backward of a layer gave, as values.
type result struct{ output, gradX, gradWeight, gradBias []float32 }

func runBatchNorm(c *torch.Ctx, b *nn.BatchNorm, o nn.Config) result {
	nn.ZeroGrads(b)
	c.SetSeed(3)
	x := c.Normal_(c.Empty(torch.Float32, 4, 3, 2, 2), 1, 2).SetRequiresGrad(true)
	grad := c.Normal_(c.Empty(torch.Float32, 4, 3, 2, 2), 0, 1)
	y := b.Forward(nn.NewCtx(c, o), x)
	c.Backward([]*torch.Tensor{y}, []*torch.Tensor{grad}, false)
	defer x.SetGradOf(nil)
	return result{torch.Values[float32](y), torch.Values[float32](c.GradOf(x)),
		torch.Values[float32](c.GradOf(b.Weight.Tensor())), torch.Values[float32](c.GradOf(b.Bias.Tensor()))}
}

func (r result) equal(o result) bool {
	return slices.Equal(r.output, o.output) && slices.Equal(r.gradX, o.gradX) && slices.Equal(r.gradWeight, o.gradWeight) && slices.Equal(r.gradBias, o.gradBias)
}

func running(b *nn.BatchNorm) []float32 {
	return slices.Concat(torch.Values[float32](b.RunningMean.Tensor()), torch.Values[float32](b.RunningVar.Tensor()),
		[]float32{float32(torch.Item[int64](b.NumBatchesTracked.Tensor()))})
}

// torchgpipe's first release moved the running statistics of a checkpointed layer twice for each
// micro-batch, in the forward and in the recomputation.
func TestRecomputationRepeatsTheBitsAndMovesNothing(t *testing.T) {
	for _, cumulative := range []bool{false, true} {
		c := torchtest.New(t, torch.Options{Grad: true})
		b := nn.NewBatchNorm2d(3, nn.BatchNormConfig{Cumulative: cumulative})
		nn.Materialise(c, nn.State(b), 1)
		first := runBatchNorm(c, b, nn.Config{Training: true})
		moved := running(b)
		if moved[6] != 1 || moved[0] == 0 || moved[3] == 1 {
			t.Errorf("after one micro-batch the running statistics are %v", moved)
		}
		again := runBatchNorm(c, b, nn.Config{Training: true, Recomputing: true})
		if !first.equal(again) {
			t.Error("the recomputation gave other bits")
		}
		if !slices.Equal(running(b), moved) {
			t.Errorf("the recomputation moved the running statistics from %v to %v", moved, running(b))
		}
		nn.Free(b)
	}
}

// A checkpointed forward keeps no graph, but it is the one that sees the micro-batch first.
func TestCheckpointedForwardMovesTheRunningStatistics(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	plain, checkpointed := nn.NewBatchNorm1d(2, nn.BatchNormConfig{}), nn.NewBatchNorm1d(2, nn.BatchNormConfig{})
	for _, b := range []*nn.BatchNorm{plain, checkpointed} {
		nn.Materialise(c, nn.State(b), 1)
		defer nn.Free(b)
	}
	x := torch.From(c, []float32{1, 2, 3, 5}, 2, 2)
	c.SetGrad(true)
	plain.Forward(nn.NewCtx(c, nn.Config{Training: true}), x)
	c.SetGrad(false)
	checkpointed.Forward(nn.NewCtx(c, nn.Config{Training: true, Checkpointing: true}), x)
	c.SetGrad(true)
	checkpointed.Forward(nn.NewCtx(c, nn.Config{Training: true, Recomputing: true}), x)
	if !slices.Equal(running(plain), running(checkpointed)) {
		t.Errorf("got %v, want %v", running(checkpointed), running(plain))
	}
}

func TestRunningStatisticsMoveOncePerMicroBatch(t *testing.T) {
	for _, row := range []struct {
		reason string
		o      nn.BatchNormConfig
		want   []float64 // running mean after each of three micro-batches with means 1, 4 and 10
	}{
		{"the default momentum is 0.1", nn.BatchNormConfig{}, []float64{0.1, 0.49, 1.441}},
		{"a momentum", nn.BatchNormConfig{Momentum: 0.5}, []float64{0.5, 2.25, 6.125}},
		{"a plain average", nn.BatchNormConfig{Cumulative: true}, []float64{1, 2.5, 5}},
	} {
		c := torchtest.New(t, torch.Options{Grad: true})
		b := nn.NewBatchNorm1d(1, row.o)
		nn.Materialise(c, nn.State(b), 1)
		for i, mean := range []float32{1, 4, 10} {
			b.Forward(nn.NewCtx(c, nn.Config{Training: true, MicroBatch: i, MicroBatches: 3}), torch.From(c, []float32{mean - 1, mean + 1}, 2, 1))
			got := torch.Item[float32](b.RunningMean.Tensor())
			if math.Abs(float64(got)-row.want[i]) > 1e-6 || torch.Item[int64](b.NumBatchesTracked.Tensor()) != int64(i+1) {
				t.Errorf("%s: after micro-batch %d the running mean is %v, want %v", row.reason, i, got, row.want[i])
			}
		}
		if b.RunningMean.Tensor().RequiresGrad() || b.RunningVar.Tensor().RequiresGrad() {
			t.Errorf("%s: a running statistic is part of the graph", row.reason)
		}
		nn.Free(b)
	}
}

// The plain average goes by NumBatchesTracked, whoever has changed it: a failure that restores it, a
// loaded state, an operator, a deferred mini-batch.
func TestPlainAverageFollowsTheCount(t *testing.T) {
	c := torchtest.New(t, torch.Options{Grad: true})
	b := nn.NewBatchNorm1d(1, nn.BatchNormConfig{Cumulative: true})
	nn.Materialise(c, nn.State(b), 1)
	defer nn.Free(b)
	forward := func(deferred *nn.Deferred) {
		b.Forward(nn.NewCtx(c, nn.Config{Training: true, Deferred: deferred}), torch.From(c, []float32{0, 2}, 2, 1))
	}
	for i, row := range []struct {
		change  func()
		batches int64 // after the change
	}{
		{func() {}, 0},
		{func() {}, 1},
		{func() { _ = torch.Try(func() { nn.OrRestore(b, func() { forward(nil); panic(&torch.Error{}) }) }) }, 2},
		{func() {
			must.Do(t, torch.SetBytes(b.NumBatchesTracked.Tensor(), []byte{9, 0, 0, 0, 0, 0, 0, 0}))
		}, 9},
		{func() {
			d := nn.NewDeferred()
			forward(d)
			forward(d)
			d.Commit(nn.NewCtx(c, nn.Config{}))
		}, 11},
		{func() { c.NoGrad(func() { c.AddInt_(b.NumBatchesTracked.Tensor(), 5) }) }, 17},
		{func() { b.NumBatchesTracked.SetTensor(c.Keep(torch.Scalar[int64](c, 3))) }, 3},
	} {
		row.change()
		c.NoGrad(func() { c.Zero_(b.RunningMean.Tensor()) })
		forward(nil)
		if got, want := torch.Item[float32](b.RunningMean.Tensor()), 1/float32(row.batches+1); math.Abs(float64(got-want)) > 1e-6 {
			t.Errorf("%d: a batch of mean 1 after %d moved a running mean of 0 to %v, want %v", i, row.batches, got, want)
		}
	}
}

func TestEvaluationUsesTheRunningStatisticsAndLeavesThem(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	b := nn.NewBatchNorm1d(1, nn.BatchNormConfig{})
	nn.Materialise(c, nn.State(b), 1)
	defer nn.Free(b)
	x := torch.From(c, []float32{3}, 1, 1)
	if got := torch.Item[float32](b.Forward(nn.NewCtx(c, nn.Config{}), x)); math.Abs(float64(got)-3) > 1e-4 {
		t.Errorf("with running mean 0 and variance 1, 3 became %v", got)
	}
	if got := running(b); !slices.Equal(got, []float32{0, 1, 0}) {
		t.Errorf("evaluation moved the running statistics to %v", got)
	}
}

func TestBatchNormRefuses(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	one, two := nn.NewBatchNorm1d(3, nn.BatchNormConfig{}), nn.NewBatchNorm2d(3, nn.BatchNormConfig{})
	stateless := nn.NewBatchNorm1d(3, nn.BatchNormConfig{NoRunningStats: true})
	for _, b := range []*nn.BatchNorm{one, two, stateless} {
		nn.Materialise(c, nn.State(b), 1)
		defer nn.Free(b)
	}
	for _, row := range []struct {
		reason   string
		b        *nn.BatchNorm
		training bool
		shape    []int64
		want     string
	}{
		{"an image where a vector belongs", one, true, []int64{2, 3, 4, 4}, "expected an input with a number of dimensions among [2 3], got 4"},
		{"a vector where an image belongs", two, true, []int64{2, 3}, "expected an input with a number of dimensions among [4], got 2"},
		{"one value has no variance", one, true, []int64{1, 3}, "expected more than 1 value per channel"},
		{"nor has one pixel", two, true, []int64{1, 3, 1, 1}, "use fewer, larger micro-batches"},
		{"nor in evaluation, if that goes by the batch", stateless, false, []int64{1, 3}, "expected more than 1 value per channel"},
		{"other channels", two, false, []int64{2, 5, 4, 4}, "running_mean should contain 5 elements not 3"},
		{"one value in evaluation is fine", one, false, []int64{1, 3}, ""},
		{"two pixels are enough", two, true, []int64{1, 3, 1, 2}, ""},
	} {
		err := torch.Try(func() {
			row.b.Forward(nn.NewCtx(c, nn.Config{Training: row.training}), c.Ones(torch.Float32, row.shape...))
		})
		var e *torch.Error
		if row.want == "" && err == nil || errors.As(err, &e) && row.want != "" && strings.Contains(err.Error(), row.want) {
			continue
		}
		t.Errorf("%s: got %v, want %q", row.reason, err, row.want)
	}
}
