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

// EvaluateConfig says how a set is gone through.
type EvaluateConfig struct {
	Batch int     // samples that are run at once
	Loss  nn.Loss // nil is none
	// OnBatch is told after each batch how many samples are done, of how many. Nil is nobody.
	OnBatch func(done, all int)
}

// Evaluation is how well a model does on a set.
type Evaluation struct {
	Samples int `json:"samples"`
	// Loss is the mean over the samples, or the sum where the loss is one (nn.Loss). It is computed
	// for each micro-batch, as in training. Nil without EvaluateConfig.Loss.
	Loss *float64 `json:"loss,omitempty"`
	// Accuracy is the share of targets, from 0 to 1, that the model finds most likely: of labels for
	// outputs [n, classes], of every position for [n, classes, positions]. Nil for regression.
	Accuracy *float64 `json:"accuracy,omitempty"`
	// MSE is the mean of (output - target)^2 over all numbers of the targets, which are Float32 and
	// shaped as the outputs. Nil but for regression (data.Regression).
	MSE *float64 `json:"mse,omitempty"`
}

// Evaluate runs the pipe's model in evaluation mode on a set; it does not change. Its results depend on
// Batch, and on the pipe's Chunks and Threads, in their last bits, and on neither stages nor devices.
// If ctx ends first the error is ctx's. In a group all members call it, and get the same.
func Evaluate(ctx context.Context, p *pipe.Pipe, set data.Dataset, config EvaluateConfig) (Evaluation,
	error) {
	var all struct{ Score, Loss float64 } // a loss that is a mean counts once for each row
	score, regression := right, set.Info().Task() == data.Regression
	if regression {
		score = squares
	}
	err := forEach(ctx, "Evaluate", p, set, config,
		func(c *torch.Ctx, _ int, batch data.Batch, output *torch.Tensor) error {
			target := tensorOf(c, batch.Target)
			all.Score += score(c, output, target)
			if config.Loss != nil {
				all.Loss += lossOf(c, p, config.Loss, output, target)
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
	e, mean, loss := Evaluation{Samples: set.Len()}, 0.0, 0.0
	for _, s := range each[:len(each)/max(p.Config().Replicas, 1)] { // each replica evaluates the whole set
		mean, loss = mean+s.Score, loss+s.Loss
	}
	mean /= float64(set.Len() * set.Info().Target.Size())
	if regression {
		e.MSE = &mean
	} else {
		e.Accuracy = &mean
	}
	if config.Loss != nil {
		if config.Loss.Reduction() == torch.ReduceMean {
			loss /= float64(set.Len())
		}
		e.Loss = &loss
	}
	return e, nil
}

func right(c *torch.Ctx, output, target *torch.Tensor) float64 {
	return float64(torch.Item[int64](c.Sum(c.Op("aten::eq.Tensor", c.Argmax(output, 1), target))))
}

// squares is the sum of squared differences.
func squares(c *torch.Ctx, output, target *torch.Tensor) float64 {
	return float64(torch.Item[float32](c.Op("aten::mse_loss", output, target, torch.ReduceSum)))
}

// lossOf is the loss of a batch's rows, a mean times their number. The rows are taken as micro-batches
// are, so that no more memory is needed than for one of them in training.
func lossOf(c *torch.Ctx, p *pipe.Pipe, loss nn.Loss, output, target *torch.Tensor) (sum float64) {
	rows := output.Shape()[0]
	n := min(int64(max(p.Config().Chunks, 1)), rows)
	for i, start := int64(0), int64(0); i < n; i++ {
		length := rows / n
		if i < rows%n { // the first are the longer ones
			length++
		}
		mark := c.Mark()
		y, want := c.Narrow(output, 0, start, length), c.Narrow(target, 0, start, length)
		x := nn.RunLoss(nn.NewCtx(c, nn.Config{}), loss, []*torch.Tensor{y}, []*torch.Tensor{want})
		value := float64(torch.Item[float32](c.To(x, torch.Float32)))
		if loss.Reduction() == torch.ReduceMean {
			value *= float64(length)
		}
		sum += value
		c.Release(mark)
		start += length
	}
	return sum
}

// evaluated is called for a batch that begins at a sample with what the model gives, in the process of the
// last stage. What it makes on c lives until it returns.
type evaluated func(c *torch.Ctx, first int, batch data.Batch, output *torch.Tensor) error

// forEach runs a set through a model in evaluation mode, in its order.
func forEach(ctx context.Context, name string, p *pipe.Pipe, set data.Dataset, config EvaluateConfig,
	f evaluated) error {
	if err := arg.AtLeast("train: "+name, "Batch", config.Batch, 1); err != nil {
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
			return cmp.Or(errors.Unwrap(err), err) // without the loader's epoch, of which there is one
		}
		if err := runBatch(ctx, p, first, batch, f); err != nil {
			return fmt.Errorf("train: evaluating: %w", err)
		}
		if first += batch.Rows; config.OnBatch != nil {
			config.OnBatch(first, set.Len())
		}
	}
}

// trimLimited gives back what devices with a limit keep for reuse, as evaluations and steps want other sizes.
func trimLimited(p *pipe.Pipe) {
	for i, d := range p.Devices() {
		if p.DeviceHere(i) && d.Memory().Limit > 0 {
			d.Trim()
		}
	}
}

func runBatch(ctx context.Context, p *pipe.Pipe, at int, batch data.Batch, f evaluated) error {
	stages := p.Stages()
	first := torch.NewCtx(torch.Options{Device: stages[0].Device, Threads: besideStages})
	defer first.Close()
	last := torch.NewCtx(torch.Options{Device: stages[len(stages)-1].Device, Threads: besideStages})
	defer last.Close()
	var input *torch.Tensor
	if err := torch.Try(func() { input = tensorOf(first, batch.Input) }); err != nil {
		return err
	}
	result, err := p.Infer(ctx, pipe.Batch{Input: pipe.Rows(input)})
	if err != nil {
		return err
	}
	if !stages[len(stages)-1].Here {
		return nil
	}
	for _, y := range result.Output {
		last.Adopt(y)
	}
	if n := len(result.Output); n != 1 {
		return fmt.Errorf("the model gives a tuple of %d; what is evaluated is one tensor", n)
	}
	tried := torch.Try(func() { err = f(last, at, batch, result.Output[0]) })
	return cmp.Or(tried, err)
}
