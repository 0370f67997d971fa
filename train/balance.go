package train

import (
	"context"
	"fmt"

	"penstock/balance"
	"penstock/data"
	"penstock/nn"
	"penstock/pipe"
	"penstock/torch"
)

// BalanceByTime cuts a model, which need not be materialised, into stages that take about the same time, forward and backward, on a micro-batch of the first rows of set.
// It returns the layers of each stage and what each is to take, in seconds. Measurements vary, and so may the cut; what is trained does not depend on it.
func BalanceByTime(ctx context.Context, model *nn.Sequential, set data.Dataset, rows, stages int, o pipe.MeasureOptions) (counts []int, seconds []float64, err error) {
	indices := make([]int, min(rows, set.Len()))
	for i := range indices {
		indices[i] = i
	}
	var sample data.Batch
	if err := set.Fill(&sample, indices); err != nil {
		return nil, nil, err
	}
	c := torch.NewCtx(torch.Options{Device: o.Device})
	defer c.Close()
	var input *torch.Tensor
	if err := torch.Try(func() { input = tensorOf(c, sample.Inputs) }); err != nil {
		return nil, nil, fmt.Errorf("train: timing layers: %w", err)
	}
	costs, err := pipe.Measure(ctx, model, input, o)
	if err != nil {
		return nil, nil, err
	}
	if counts, err = balance.Partition(costs, stages); err != nil {
		return nil, nil, err
	}
	seconds, err = balance.Sums(costs, counts)
	return counts, seconds, err
}
