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
	if err := cmp.Or(arg.Context(ctx, "train"), arg.Given(p, "train: Accuracy: the pipe", "one of pipe.New"),
		arg.Given(set, "train: Accuracy: the data set", "a data.Dataset")); err != nil {
		return 0, err
	}
	loader, err := data.NewLoader(set, data.LoaderConfig{BatchSize: batch, Prefetch: 1})
	if err != nil {
		return 0, err
	}
	defer loader.Close()
	var right, all int64
	for {
		b, err := loader.Next(ctx)
		if err == io.EOF {
			break
		}
		if err != nil {
			return 0, err
		}
		n, err := countRight(ctx, p, b)
		if err != nil {
			return 0, fmt.Errorf("train: evaluating: %w", err)
		}
		right += n
		all += int64(len(b.Target.Int64))
	}
	counts, err := group.Meet(ctx, p.Config().Group, "train: the accuracy", right, nil)
	if err != nil {
		return 0, fmt.Errorf("train: evaluating: %w", err)
	}
	right = 0
	for _, n := range counts[:len(counts)/max(p.Config().Replicas, 1)] { // each replica has evaluated the whole set
		right += n
	}
	return float64(right) / float64(all), nil
}

// countRight is the number of a batch's targets that the model finds most likely, in the process of
// the last stage, and 0 in others.
func countRight(ctx context.Context, p *pipe.Pipe, b data.Batch) (right int64, err error) {
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
		return 0, fmt.Errorf("the model gives a tuple of %d; accuracy is of one tensor of logits", n)
	}
	err = torch.Try(func() {
		target := tensorOf(last, b.Target)
		right = torch.Item[int64](last.Sum(last.Eq(last.Argmax(result.Output[0], 1), target)))
	})
	return right, err
}
