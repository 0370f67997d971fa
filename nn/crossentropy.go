package nn

import (
	"slices"

	"penstock/torch"
)

// CrossEntropyLoss is -log softmax(output)[target]: logits [N, C] or [N, C, ...] and int64 classes [N] or [N, ...].
//
// The mean is over the targets that are not ignored, each weighed by its class. With IgnoreIndex or Weight the means of parts of a batch, weighed by rows, are
// therefore not the mean of the whole; Sum is the same however a batch is split.
type CrossEntropyLoss struct {
	o      CrossEntropyConfig
	ignore int64
}

// CrossEntropyConfig configures a CrossEntropyLoss. The zero value is the mean, without smoothing and weights.
type CrossEntropyConfig struct {
	Sum            bool      // add up instead of averaging
	LabelSmoothing float64   // so much of the target is spread over all classes (Szegedy et al. 2016, section 7)
	IgnoreIndex    *int64    // targets that count for nothing; nil is -100
	Weight         []float32 // one for each class; nil is all ones
}

// NewCrossEntropyLoss makes a CrossEntropyLoss.
func NewCrossEntropyLoss(o CrossEntropyConfig) *CrossEntropyLoss {
	requireProbability("CrossEntropyLoss", "LabelSmoothing", o.LabelSmoothing)
	o.Weight = slices.Clone(o.Weight)
	l := &CrossEntropyLoss{o: o, ignore: -100}
	if o.IgnoreIndex != nil {
		l.ignore = *o.IgnoreIndex
	}
	return l
}

// Forward is aten::cross_entropy_loss.
func (l *CrossEntropyLoss) Forward(c *Ctx, output, target *torch.Tensor) *torch.Tensor {
	requireRows("aten::cross_entropy_loss", l, output, target)
	return c.CrossEntropy(output, target, weights(c, l.o.Weight), l.Reduction(), l.ignore, l.o.LabelSmoothing)
}

// Targets is the first class, everywhere.
func (l *CrossEntropyLoss) Targets(c *torch.Ctx, outputs []*torch.Tensor) []*torch.Tensor {
	shape := outputs[0].Shape()
	if len(shape) < 2 {
		return []*torch.Tensor{c.Zeros(torch.Int64)}
	}
	return []*torch.Tensor{c.Zeros(torch.Int64, slices.Delete(slices.Clone(shape), 1, 2)...)}
}

// Reduction is the mean unless Sum was set.
func (l *CrossEntropyLoss) Reduction() torch.Reduction { return reduction(l.o.Sum) }

// BCEWithLogitsLoss is the binary cross-entropy of sigmoid(output) and a target from 0 to 1, computed without overflow, for tensors of one shape.
type BCEWithLogitsLoss struct{ o BCEWithLogitsConfig }

// BCEWithLogitsConfig configures a BCEWithLogitsLoss. The zero value is the mean over all elements.
type BCEWithLogitsConfig struct {
	Sum       bool      // add up instead of averaging
	PosWeight []float32 // weight of the positive answer, along the last dimension; nil is all ones
}

// NewBCEWithLogitsLoss makes a BCEWithLogitsLoss.
func NewBCEWithLogitsLoss(o BCEWithLogitsConfig) *BCEWithLogitsLoss {
	o.PosWeight = slices.Clone(o.PosWeight)
	return &BCEWithLogitsLoss{o}
}

// Forward is aten::binary_cross_entropy_with_logits.
func (l *BCEWithLogitsLoss) Forward(c *Ctx, output, target *torch.Tensor) *torch.Tensor {
	requireOneShape("aten::binary_cross_entropy_with_logits", output, target)
	requireRows("aten::binary_cross_entropy_with_logits", l, output, target)
	return c.BCEWithLogits(output, target, nil, weights(c, l.o.PosWeight), l.Reduction())
}

// Targets is 0 everywhere.
func (l *BCEWithLogitsLoss) Targets(c *torch.Ctx, outputs []*torch.Tensor) []*torch.Tensor {
	return zerosLike(c, outputs[0])
}

// Reduction is the mean unless Sum was set.
func (l *BCEWithLogitsLoss) Reduction() torch.Reduction { return reduction(l.o.Sum) }

// weights copies v to where the loss is computed, so that a loss belongs to no device; nil stays nil.
func weights(c *Ctx, v []float32) *torch.Tensor {
	if v == nil {
		return nil
	}
	return torch.From(c.Ctx, v)
}
