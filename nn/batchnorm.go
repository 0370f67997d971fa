package nn

import (
	"cmp"

	"penstock.example/torch"
)

// BatchNorm normalises each channel (dimension 1) to mean 0 and variance 1, then scales and shifts
// it (Ioffe and Szegedy 2015). In training the mean and variance are the micro-batch's, and the
// running statistics move towards them. In evaluation the running statistics are used.
//
// Running statistics move once for each micro-batch, or, with Config.Deferred, once for each
// mini-batch. A recomputation moves nothing. Statistics move in place, so concurrent training runs
// of one model would mix theirs.
type BatchNorm struct {
	Base
	Weight, Bias            *Param // [channels]; nil with NoAffine
	RunningMean, RunningVar *Param // [channels]; nil with NoRunningStats
	NumBatchesTracked       *Param // int64 scalar: micro-batches seen in training; nil with NoRunningStats

	channels int64
	o        BatchNormConfig
}

// BatchNormConfig configures a BatchNorm. The zero value is eps 1e-5, momentum 0.1, with weight and
// bias, with running statistics.
type BatchNormConfig struct {
	Eps      float64 // added to the variance; 0 is 1e-5
	Momentum float64 // running = (1 - momentum) * running + momentum * batch; 0 is 0.1

	NoAffine       bool // no weight and bias
	NoRunningStats bool // normalise by the batch in evaluation too
}

// NewBatchNorm1d makes a BatchNorm for input [N, channels] or [N, channels, L].
func NewBatchNorm1d(channels int64, o BatchNormConfig) *BatchNorm { return NewBatchNorm2d(channels, o) }

// NewBatchNorm2d makes a BatchNorm for input [N, channels, H, W].
func NewBatchNorm2d(channels int64, o BatchNormConfig) *BatchNorm {
	o.Eps, o.Momentum = cmp.Or(o.Eps, 1e-5), cmp.Or(o.Momentum, 0.1)
	b := &BatchNorm{channels: channels, o: o}
	b.Weight, b.Bias = b.affine(o.NoAffine, channels)
	if !o.NoRunningStats {
		b.RunningMean = b.Buffer("running_mean", torch.Float32, Zeros, channels)
		b.RunningVar = b.Buffer("running_var", torch.Float32, Ones, channels)
		b.NumBatchesTracked = b.Buffer("num_batches_tracked", torch.Int64, Zeros)
	}
	return b
}

func (b *BatchNorm) Forward(c *Ctx, x *torch.Tensor) *torch.Tensor {
	byBatch := c.Training || b.o.NoRunningStats
	if n := b.channels; byBatch && n > 0 && x.Numel() == n { // the variance of one value would be NaN
		c.fail("aten::batch_norm", []*torch.Tensor{x}, "expected more than 1 value per channel when "+
			"normalising by the batch; use larger micro-batches")
	}
	mean, variance := b.RunningMean.Tensor(), b.RunningVar.Tensor()
	switch {
	case !c.Training || b.o.NoRunningStats:
	case c.Recomputing:
		mean, variance = nil, nil // the first forward has moved them
	case c.Deferred != nil:
		mean, variance = nil, nil
		c.Deferred.observe(c, b, x)
	default:
		c.NoGrad(func() { c.AddInt_(b.NumBatchesTracked.Tensor(), 1) })
	}
	return c.Op("aten::batch_norm", x, b.Weight.Tensor(), b.Bias.Tensor(), mean, variance, byBatch,
		b.o.Momentum, b.o.Eps, true)
}
