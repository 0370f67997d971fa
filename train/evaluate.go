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
	Batch int     // samples of a batch in training; each of R Replicas of the pipe runs Batch/R at once
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
	// Accuracy is the share of targets, from 0 to 1, that the model finds most likely. Outputs
	// [n, classes] have a target for each row, outputs [n, classes, positions] for each position.
	// Negative targets, such as data.Ignored, do not count. Nil for regression.
	Accuracy *float64 `json:"accuracy,omitempty"`
	// MSE is the mean of (output - target)^2 over all numbers of the targets, which have the
	// outputs' shape. Nil except for regression (data.Regression).
	MSE *float64 `json:"mse,omitempty"`
}

// Evaluate runs the pipe's model on a set in evaluation mode and leaves the model unchanged. The last bits
// of the results depend on Batch and the pipe's Chunks, Threads and Replicas, but not on stages or devices.
// If ctx ends first the error is ctx's. Evaluate is collective, and all members get the same result.
func Evaluate(ctx context.Context, p *pipe.Pipe, set data.Dataset, config EvaluateConfig) (Evaluation,
	error) {
	var whole, part sums // of the set, and of a batch
	regression := set.Info().Task() == data.Regression
	err := forEach(ctx, "Evaluate", p, set, config,
		func(c *torch.Ctx, batch data.Batch, _, row int, output *torch.Tensor) error {
			if row == 0 {
				part = sums{}
			}
			rows := output.Shape()[0]
			target := c.Narrow(tensorOf(c, batch.Target), 0, int64(row), rows)
			if config.Loss != nil {
				part.addLoss(c, config.Loss, output, target)
			}
			if regression {
				output = c.Reshape(c.To(output, torch.Float32), target.Shape()...)
				part.addSquares(torch.Values[float32](output), torch.Values[float32](target))
			} else {
				part.countCorrect(c, output, target)
			}
			if row+int(rows) == batch.Rows {
				whole.add(part)
			}
			return nil
		})
	if err != nil {
		return Evaluation{}, err
	}
	each, err := group.Meet(ctx, p.Config().Group, "train: Evaluate", whole, nil)
	if err != nil {
		return Evaluation{}, fmt.Errorf("train: evaluating: %w", err)
	}
	e := Evaluation{Samples: set.Len()}
	whole = sums{}
	for _, s := range each[:len(each)/max(p.Config().Replicas, 1)] { // every replica evaluates all samples
		whole.add(s)
	}
	if whole.Targets == 0 || config.Loss != nil && whole.Weight == 0 {
		return Evaluation{}, errors.New("train: evaluating: no target of the set counts")
	}
	mean, loss := whole.Score/whole.Targets, whole.Loss
	if regression {
		e.MSE = &mean
	} else {
		e.Accuracy = &mean
	}
	if config.Loss != nil {
		if config.Loss.Reduction() == torch.ReduceMean {
			loss /= whole.Weight
		}
		e.Loss = &loss
	}
	return e, nil
}

// sums are over samples.
type sums struct{ Score, Targets, Loss, Weight float64 }

func (s *sums) add(o sums) {
	s.Score, s.Targets = s.Score+o.Score, s.Targets+o.Targets
	s.Loss, s.Weight = s.Loss+o.Loss, s.Weight+o.Weight
}

func (s *sums) countCorrect(c *torch.Ctx, output, target *torch.Tensor) {
	defer c.Release(c.Mark())
	count := func(is *torch.Tensor) float64 { return float64(torch.Item[int64](c.Sum(is))) }
	s.Score += count(c.Op("aten::eq.Tensor", c.Argmax(output, 1), target))
	s.Targets += count(c.Op("aten::ge.Scalar", target, 0))
}

// addSquares adds squared errors. It needs no memory of a device.
func (s *sums) addSquares(outputs, targets []float32) {
	for i, target := range targets {
		d := float64(outputs[i]) - float64(target)
		s.Score += d * d
	}
	s.Targets += float64(len(targets))
}

// addLoss adds the loss of a micro-batch. It needs no more memory than the loss in training.
func (s *sums) addLoss(c *torch.Ctx, loss nn.Loss, output, target *torch.Tensor) {
	targets := []*torch.Tensor{target}
	weight := nn.LossWeight(c, loss, output.Shape()[0], targets)
	if s.Weight += weight; weight <= 0 {
		return
	}
	x := nn.RunLoss(nn.NewCtx(c, nn.Config{}), loss, []*torch.Tensor{output}, targets)
	if loss.Reduction() == torch.ReduceSum {
		weight = 1
	}
	s.Loss += weight * float64(torch.Item[float32](c.To(x, torch.Float32)))
}

// batchFunc handles the model's output for a micro-batch. sample and row are the micro-batch's
// first sample in the set and its first row in the batch. It is called in the process of the last
// stage, during the run. Tensors that it makes on c are freed when it returns.
type batchFunc func(c *torch.Ctx, batch data.Batch, sample, row int, output *torch.Tensor) error

// forEach runs the batches of a set through a model in evaluation mode, in order, and calls f for each
// micro-batch.
func forEach(ctx context.Context, caller string, p *pipe.Pipe, set data.Dataset, config EvaluateConfig,
	f batchFunc) error {
	if err := arg.AtLeast("train: "+caller, "Batch", config.Batch, 1); err != nil {
		return err
	}
	replicas := max(p.Config().Replicas, 1)
	rows := (config.Batch + replicas - 1) / replicas // as in training, so a batch needs no more memory
	loader, err := data.NewLoader(set, data.LoaderConfig{BatchSize: rows, Prefetch: 1})
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
			return cmp.Or(errors.Unwrap(err), err) // the loader's prefix names an epoch, and there is none
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

func inferBatch(ctx context.Context, p *pipe.Pipe, sample int, batch data.Batch, f batchFunc) (err error) {
	first, last, free := endContexts(p)
	defer free()
	b := pipe.Batch{Each: func(row int64, output []*torch.Tensor) {
		defer last.Close()
		if len(output) != 1 || len(output[0].Shape()) == 0 {
			err = fmt.Errorf("the model's output is %v; want one tensor, with rows", output)
		} else if err == nil {
			err = f(last, batch, sample+int(row), int(row), output[0])
		}
	}}
	if err := torch.Try(func() { b.Input = pipe.Rows(tensorOf(first, batch.Input)) }); err != nil {
		return err
	}
	_, failed := p.Infer(ctx, b)
	return cmp.Or(failed, err)
}
