package pipe_test

import (
	"context"
	"math"
	"strings"
	"testing"

	"penstock.example/group"
	"penstock.example/internal/must"
	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// transposed turns [N, T, classes] into [N, classes, T].
type transposed struct{ nn.Base }

func (*transposed) Forward(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.Transpose(x, 1, 2) }

// table has the elements ((columns i + j) k mod 7 - 3) / 4.
func table(c *torch.Ctx, k int, shape ...int64) *torch.Tensor {
	n := int64(1)
	for _, s := range shape {
		n *= s
	}
	data := make([]float32, n)
	for i := range data {
		data[i] = float32(i*k%7-3) / 4
	}
	return torch.From(c, data, shape...)
}

// ownLoss is a loss of one's own: the mean over the labelled rows.
type ownLoss struct{ nn.Loss }

func (ownLoss) Weight(c *torch.Ctx, targets []*torch.Tensor) float64 {
	labelled := 0.0
	for _, label := range torch.Values[int64](targets[0]) {
		if label >= 0 {
			labelled++
		}
	}
	return labelled
}

// The mean over the targets that count, each with its class's weight, is the whole batch's, however
// the batch is split: also where a micro-batch or a replica has no such target. The numbers are from
// PyTorch 2.13 on the whole batch: the loss, and its gradient for the first weights.
func TestLossOfTheWholeBatch(t *testing.T) {
	torchtest.Check(t)
	weights, one := []float32{0.5, 2, 1.25}, int64(1)
	labels := []int64{0, 2, -100, -100, 1, 1, 0, 2} // the second of four micro-batches has none
	for name, row := range map[string]struct {
		loss   nn.Loss
		labels []int64
		shape  []int64 // of the target
		want   []float64
	}{
		"ignored": {nn.CrossEntropy(), labels, []int64{8},
			[]float64{1.00546885, 0.0423118174, -0.155960619, 0.0680757463, 0.0198596045}},
		"of one's own": {ownLoss{nn.CrossEntropy()}, labels, []int64{8},
			[]float64{1.00546885, 0.0423118174, -0.155960619, 0.0680757463, 0.0198596045}},
		"ignored positions": {nn.CrossEntropy(), labels, []int64{4, 2},
			[]float64{1.00546885, 0.0423118174, -0.155960619, 0.0680757463, 0.0198596045}},
		"weighted": {nn.CrossEntropy(nn.LossConfig{Weight: weights}), labels, []int64{8},
			[]float64{1.0578835, -0.032975547, -0.149879634, 0.139620289, -0.00648378208}},
		"smoothed": {nn.CrossEntropy(nn.LossConfig{LabelSmoothing: 0.1}), labels, []int64{8},
			[]float64{1.02456605, 0.0298118088, -0.139293954, 0.0652979687, 0.0170818232}},
		"weighted and smoothed": {nn.CrossEntropy(nn.LossConfig{LabelSmoothing: 0.1, Weight: weights}),
			labels,
			[]int64{8}, []float64{1.07840598, -0.0429468155, -0.131321043, 0.133854732, -0.0124605596}},
		"ignored class 1": {nn.CrossEntropy(nn.LossConfig{IgnoreIndex: &one}),
			[]int64{1, 1, 0, 1, 2, 1, 0, 2},
			[]int64{8}, []float64{1.40950835, -0.135600433, -0.0940183699, 0.159779519, -0.161711797}},
		"NLL": {nn.NLL(nn.LossConfig{Weight: weights}), labels, []int64{8},
			[]float64{-0.254166663, 0.0833333433, -0.0833333358, -0.0166666675, 0.0500000045}},
	} {
		// step has the loss, and the gradient in the process of the first stage
		step := func(g *group.Group, cfg pipe.Config, batches int64) (got []float64, err error) {
			c := torch.NewCtx(torch.Options{Device: aside})
			defer c.Close()
			last, input := nn.NewIdentity(), []int64{8, 4}
			if len(row.shape) > 1 {
				last, input = &transposed{}, []int64{4, 2, 4}
			}
			linear := nn.NewLinear(4, 3)
			model := nn.NewSequential(linear, last)
			defer nn.Free(model)
			cfg.Group, cfg.Balance = g, []int{1, 1}
			cfg.Devices = cpus(2 + 2*g.Rank())[2*g.Rank():]
			p, err := pipe.New(model, cfg)
			if err != nil {
				return nil, err
			}
			defer p.Close()
			if linear.Weight.Exists() {
				c.Copy_(linear.Weight.Tensor(), table(c, 3, 3, 4))
				c.Zero_(linear.Bias.Tensor())
			}
			x, y := table(c, 5, input...), torch.From(c, row.labels, row.shape...)
			n, loss := row.shape[0]/batches, 0.0
			b := pipe.Batch{}
			for i := range batches {
				if batches > 1 {
					b.TotalWeight = nn.LossWeight(c, row.loss, row.shape[0], []*torch.Tensor{y})
				}
				b.Input, b.Target = pipe.Rows(c.Narrow(x, 0, i*n, n)), pipe.Rows(c.Narrow(y, 0, i*n, n))
				b.Accumulate = i < batches-1
				result, err := p.Step(context.Background(), b, row.loss)
				if err != nil {
					return nil, err
				}
				b.FirstMicroBatch += p.MicroBatches(n)
				loss += result.Loss
			}
			got = []float64{loss}
			if linear.Weight.Exists() {
				for _, v := range torch.Values[float32](c.GradOf(linear.Weight.Tensor()))[:4] {
					got = append(got, float64(v))
				}
			}
			return got, nil
		}
		for _, policy := range []pipe.Checkpoint{pipe.ExceptLast, pipe.Optimal} {
			for chunks := 1; chunks <= int(row.shape[0]); chunks++ {
				for _, split := range []struct {
					processes, replicas int
					batches             int64
				}{{1, 1, 1}, {1, 1, 2}, {2, 2, 1}, {2, 1, 1}} {
					if policy == pipe.Optimal && (chunks != 4 || split.processes+int(split.batches) > 2) {
						continue
					}
					all, errs := each(split.processes, func(g *group.Group) ([]float64, error) {
						return step(g, pipe.Config{Chunks: chunks, Replicas: split.replicas,
							Checkpoint: policy},
							split.batches)
					})
					for rank, got := range all {
						if errs[rank] != nil {
							t.Fatal(errs[rank])
						}
						for i, v := range got {
							if !(math.Abs(v-row.want[i]) < 1e-6) {
								t.Fatalf("%s, %d chunks, %v, %+v: got %v, want %v", name, chunks, policy,
									split, got, row.want)
							}
						}
					}
				}
			}
		}
	}
}

func TestBatchWithoutATargetThatCounts(t *testing.T) {
	torchtest.Check(t)
	p := started(t, nn.NewSequential(nn.NewLinear(4, 3)), pipe.Config{Chunks: 2})
	c := torchtest.New(t, torch.Options{})
	b := pipe.Batch{Input: pipe.Rows(c.Ones(torch.Float32, 4, 4)),
		Target: pipe.Rows(torch.From(c, []int64{-100, -100, -100, -100}, 4))}
	_, err := p.Step(context.Background(), b, nn.CrossEntropy())
	if err == nil || !strings.Contains(err.Error(), "no target of the batch counts") {
		t.Errorf("got %v", err)
	}
	_ = must.Get(p.PlanFor(context.Background(), b, nn.CrossEntropy()))(t)
}
