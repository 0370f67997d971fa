package train

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"

	"penstock.example/data"
	"penstock.example/group"
	"penstock.example/internal/arg"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// EvaluateConfig configures Evaluate and Predict.
type EvaluateConfig struct {
	Batch int     // samples run at once
	Loss  nn.Loss // may be nil
	// OnBatch is called after each batch with the number of samples done and the total. It may be nil.
	OnBatch func(done, all int)
}

// Evaluation holds a model's scores on a set.
type Evaluation struct {
	Samples int `json:"samples"`
	// Loss is of the whole set: a mean, weighted as in training (nn.LossWeight), or a sum. It is
	// computed for each micro-batch. Nil without EvaluateConfig.Loss.
	Loss *float64 `json:"loss,omitempty"`
	// Accuracy is the share of targets, from 0 to 1, that the model finds most likely. A target is a
	// label for outputs [n, classes], a position for [n, classes, positions]. Negative targets, which
	// are no classes, do not count. Nil for regression.
	Accuracy *float64 `json:"accuracy,omitempty"`
	// MSE is the mean of (output - target)^2 over all numbers of the targets, which have type Float32
	// and the outputs' shape. Nil except for regression (data.Regression).
	MSE *float64 `json:"mse,omitempty"`
}

// Evaluate runs the pipe's model on a set in evaluation mode and leaves the model unchanged. The last bits
// of the results depend on Batch and the pipe's Chunks and Threads, but not on stages or devices. If ctx
// ends first the error is ctx's. Evaluate is collective, and all members get the same result.
func Evaluate(ctx context.Context, p *pipe.Pipe, set data.Dataset, config EvaluateConfig) (Evaluation,
	error) {
	var all struct{ Score, Targets, Loss, Weight float64 } // sums over the samples
	score, regression := correctTargets, set.Info().Task() == data.Regression
	if regression {
		score = squaredErrors
	}
	err := forEach(ctx, "Evaluate", p, set, config,
		func(c *torch.Ctx, _ int, batch data.Batch, output *torch.Tensor) error {
			target := tensorOf(c, batch.Target)
			right, targets := score(c, output, target)
			all.Score, all.Targets = all.Score+right, all.Targets+targets
			if config.Loss != nil {
				loss, weight := sumLoss(c, p.Config().Chunks, config.Loss, output, target)
				all.Loss, all.Weight = all.Loss+loss, all.Weight+weight
			}
			return nil
		})
	if err != nil {
		return Evaluation{}, err
	}
	each, err := group.Meet(ctx, p.Config().Group, "train: Evaluate", all, nil)
	if err != nil {
		return Evaluation{}, fmt.Errorf("train: evaluating: %w", err)
	}
	e := Evaluation{Samples: set.Len()}
	all.Score, all.Targets, all.Loss, all.Weight = 0, 0, 0, 0
	for _, s := range each[:len(each)/max(p.Config().Replicas, 1)] { // every replica evaluates all samples
		all.Score, all.Targets = all.Score+s.Score, all.Targets+s.Targets
		all.Loss, all.Weight = all.Loss+s.Loss, all.Weight+s.Weight
	}
	if all.Targets == 0 || config.Loss != nil && all.Weight == 0 {
		return Evaluation{}, errors.New("train: evaluating: no target of the set counts")
	}
	mean, loss := all.Score/all.Targets, all.Loss
	if regression {
		e.MSE = &mean
	} else {
		e.Accuracy = &mean
	}
	if config.Loss != nil {
		if config.Loss.Reduction() == torch.ReduceMean {
			loss /= all.Weight
		}
		e.Loss = &loss
	}
	return e, nil
}

func correctTargets(c *torch.Ctx, output, target *torch.Tensor) (score, targets float64) {
	count := func(is *torch.Tensor) float64 { return float64(torch.Item[int64](c.Sum(is))) }
	return count(c.Op("aten::eq.Tensor", c.Argmax(output, 1), target)),
		count(c.Op("aten::ge.Scalar", target, 0))
}

func squaredErrors(c *torch.Ctx, output, target *torch.Tensor) (score, targets float64) {
	return float64(torch.Item[float32](c.Op("aten::mse_loss", output, target, torch.ReduceSum))),
		float64(target.Numel())
}

// sumLoss returns the weighted sum of a batch's losses and the sum of the weights. It takes one
// micro-batch at a time, so it needs no more memory than the loss in training.
func sumLoss(c *torch.Ctx, chunks int, loss nn.Loss, output, target *torch.Tensor) (sum, all float64) {
	rows := output.Shape()[0]
	n := min(int64(max(chunks, 1)), rows)
	for i := range n {
		start, end := i*(rows/n)+min(i, rows%n), (i+1)*(rows/n)+min(i+1, rows%n)
		mark, length := c.Mark(), end-start
		y, want := c.Narrow(output, 0, start, length), c.Narrow(target, 0, start, length)
		weight := nn.LossWeight(c, loss, length, []*torch.Tensor{want})
		if all += weight; weight > 0 {
			x := nn.RunLoss(nn.NewCtx(c, nn.Config{}), loss, []*torch.Tensor{y}, []*torch.Tensor{want})
			value := float64(torch.Item[float32](c.To(x, torch.Float32)))
			if loss.Reduction() == torch.ReduceMean {
				value *= weight
			}
			sum += value
		}
		c.Release(mark)
	}
	return sum, all
}

// batchFunc handles the model's output for the batch that begins with sample first. It is called in the
// process of the last stage. Tensors that it makes on c are freed when it returns.
type batchFunc func(c *torch.Ctx, first int, batch data.Batch, output *torch.Tensor) error

// forEach runs the batches of a set through a model in evaluation mode, in order, and calls f for each.
func forEach(ctx context.Context, caller string, p *pipe.Pipe, set data.Dataset, config EvaluateConfig,
	f batchFunc) error {
	if err := arg.AtLeast("train: "+caller, "Batch", config.Batch, 1); err != nil {
		return err
	}
	loader, err := data.NewLoader(set, data.LoaderConfig{BatchSize: config.Batch, Prefetch: 1})
	if err != nil {
		return err
	}
	defer loader.Close()
	trimLimited(p)
	defer trimLimited(p)
	for first := 0; ; {
		batch, err := loader.Next(ctx)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return cmp.Or(errors.Unwrap(err), err) // drops the loader's epoch, which is always the first
		}
		if err := inferBatch(ctx, p, first, batch, f); err != nil {
			return fmt.Errorf("train: evaluating: %w", err)
		}
		if first += batch.Rows; config.OnBatch != nil {
			config.OnBatch(first, set.Len())
		}
	}
}

// trimLimited frees the cached memory of devices with a limit: evaluation and training need other sizes.
func trimLimited(p *pipe.Pipe) {
	for i, d := range p.Devices() {
		if p.DeviceHere(i) && d.Memory().Limit > 0 {
			d.Trim()
		}
	}
}

func inferBatch(ctx context.Context, p *pipe.Pipe, sample int, batch data.Batch, f batchFunc) error {
	first, last, free := endContexts(p)
	defer free()
	var input *torch.Tensor
	if err := torch.Try(func() { input = tensorOf(first, batch.Input) }); err != nil {
		return err
	}
	result, err := p.Infer(ctx, pipe.Batch{Input: pipe.Rows(input)})
	if err != nil {
		return err
	}
	if stages := p.Stages(); !stages[len(stages)-1].Here {
		return nil
	}
	for _, y := range result.Output {
		last.Adopt(y)
	}
	if n := len(result.Output); n != 1 {
		return fmt.Errorf("the model's output is a tuple of %d; want one tensor", n)
	}
	tried := torch.Try(func() { err = f(last, sample, batch, result.Output[0]) })
	return cmp.Or(tried, err)
}
