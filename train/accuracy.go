package train

import (
	"cmp"
	"context"
	"fmt"
	"io"

	"penstock/data"
	"penstock/group"
	"penstock/internal/arg"
	"penstock/pipe"
	"penstock/torch"
)

// Accuracy is the share of a set's targets, from 0 to 1, that the pipe's model finds most likely:
// of labels for outputs [n, classes], of every position for [n, classes, positions]. The model runs
// in evaluation mode on batches of so many samples; it does not change. If ctx ends first the error
// is ctx's.
func Accuracy(ctx context.Context, p *pipe.Pipe, set data.Dataset, batch int) (float64, error) {
	right := func(c *torch.Ctx, output, target *torch.Tensor) float64 {
		return float64(torch.Item[int64](c.Sum(c.Eq(c.Argmax(output, 1), target))))
	}
	return meanOf(ctx, "Accuracy", p, set, batch, right)
}

// MeanSquaredError is the mean of (output - target)^2 over all numbers of a set's targets, which are
// Float32 and shaped as the model's outputs (data.Regression). It runs the model as Accuracy does.
func MeanSquaredError(ctx context.Context, p *pipe.Pipe, set data.Dataset, batch int) (float64, error) {
	squares := func(c *torch.Ctx, output, target *torch.Tensor) float64 {
		return float64(torch.Item[float32](c.MSE(output, target, torch.ReduceSum)))
	}
	return meanOf(ctx, "MeanSquaredError", p, set, batch, squares)
}

// meanOf is the mean over a set's targets of what sum adds up for a batch.
func meanOf(ctx context.Context, name string, p *pipe.Pipe, set data.Dataset, batch int, sum func(c *torch.Ctx, output, target *torch.Tensor) float64) (float64, error) {
	if err := cmp.Or(arg.Context(ctx, "train"), arg.Given(p, "train: "+name+": the pipe", "one of pipe.New"),
		arg.Given(set, "train: "+name+": the data set", "a data.Dataset")); err != nil {
		return 0, err
	}
	loader, err := data.NewLoader(set, data.LoaderConfig{BatchSize: batch, Prefetch: 1})
	if err != nil {
		return 0, err
	}
	defer loader.Close()
	var all float64
	for {
		b, err := loader.Next(ctx)
		if err == io.EOF {
			break
		}
		if err != nil {
			return 0, err
		}
		x, err := sumOf(ctx, p, b, sum)
		if err != nil {
			return 0, fmt.Errorf("train: evaluating: %w", err)
		}
		all += x
	}
	sums, err := group.Meet(ctx, p.Config().Group, "train: "+name, all, nil)
	if err != nil {
		return 0, fmt.Errorf("train: evaluating: %w", err)
	}
	all = 0
	for _, x := range sums[:len(sums)/max(p.Config().Replicas, 1)] { // each replica has evaluated the whole set
		all += x
	}
	return all / float64(set.Len()*set.Info().Target.Size()), nil
}

// sumOf is the sum for a batch, in the process of the last stage, and 0 in others.
func sumOf(ctx context.Context, p *pipe.Pipe, b data.Batch, sum func(c *torch.Ctx, output, target *torch.Tensor) float64) (x float64, err error) {
	stages := p.Stages()
	first := torch.NewCtx(torch.Options{Device: stages[0].Device, Threads: p.Config().Threads})
	defer first.Close()
	last := torch.NewCtx(torch.Options{Device: stages[len(stages)-1].Device, Threads: p.Config().Threads})
	defer last.Close()
	var input *torch.Tensor
	if err := torch.Try(func() { input = tensorOf(first, b.Input) }); err != nil {
		return 0, err
	}
	result, err := p.Infer(ctx, pipe.Batch{Input: pipe.Rows(input)})
	if err != nil {
		return 0, err
	}
	if !stages[len(stages)-1].Here {
		return 0, nil
	}
	for _, y := range result.Output {
		last.Adopt(y)
	}
	if n := len(result.Output); n != 1 {
		return 0, fmt.Errorf("the model gives a tuple of %d; what is tested is one tensor", n)
	}
	err = torch.Try(func() {
		x = sum(last, result.Output[0], tensorOf(last, b.Target))
	})
	return x, err
}
