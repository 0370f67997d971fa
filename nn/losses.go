package nn

import (
	"slices"

	"penstock.example/internal/engine"
	"penstock.example/torch"
)

// LossConfig configures a loss. The zero value is PyTorch's default.
type LossConfig struct {
	Sum bool // add up instead of averaging
	// Weight has a weight for each class. For BCEWithLogits it has a weight of positive targets for
	// each index in the last dimension (PyTorch's pos_weight).
	Weight []float32
	// LabelSmoothing, from 0 to 1, is the share of CrossEntropy's target that is spread over all
	// classes (Szegedy et al. 2016, section 7).
	LabelSmoothing float64
	// IgnoreIndex is the class whose targets CrossEntropy and NLL leave out; nil is -100.
	IgnoreIndex *int64
}

type operatorLoss struct {
	LossConfig
	operator string
	classes  bool  // targets are classes
	args     []any // the last ones
}

func newLoss(operator string, classes bool, o []LossConfig, args ...any) Loss {
	l := &operatorLoss{operator: operator, classes: classes, args: args}
	if len(o) > 0 {
		l.LossConfig = o[0]
	}
	return l
}

// CrossEntropy is the mean of -log softmax(output)[target]: scores of classes [N, C] or [N, C, ...]
// against int64 classes [N] or [N, ...]. Targets are weighted by their classes, and ignored targets
// do not count.
func CrossEntropy(o ...LossConfig) Loss { return newLoss("aten::cross_entropy_loss", true, o) }

// NLL is CrossEntropy of log-probabilities, such as LogSoftmax(1) gives, without LabelSmoothing.
func NLL(o ...LossConfig) Loss { return newLoss("aten::nll_loss_nd", true, o) }

// MSE is the mean of (output - target)^2 over all elements. MSE, L1, Huber and BCEWithLogits need
// an output and a target of one shape: [N, 1] against [N], which libtorch would broadcast, is
// refused.
func MSE(o ...LossConfig) Loss { return newLoss("aten::mse_loss", false, o) }

// L1 is the mean of |output - target| over all elements.
func L1(o ...LossConfig) Loss { return newLoss("aten::l1_loss", false, o) }

// Huber is the mean over all elements of d^2 / 2 where d = |output - target| is at most delta, and
// delta (d - delta / 2) elsewhere (Huber 1964, "Robust Estimation of a Location Parameter").
// PyTorch's default for delta is 1.
func Huber(delta float64, o ...LossConfig) Loss { return newLoss("aten::huber_loss", false, o, delta) }

// BCEWithLogits is the mean over all elements of the binary cross-entropy of sigmoid(output) and a
// target from 0 to 1, computed without overflow.
func BCEWithLogits(o ...LossConfig) Loss { return newLoss(withLogits, false, o) }

const withLogits = "aten::binary_cross_entropy_with_logits"

func (l *operatorLoss) Reduction() torch.Reduction {
	if l.Sum {
		return torch.ReduceSum
	}
	return torch.ReduceMean
}

func (l *operatorLoss) ignoredClass() int64 {
	if l.IgnoreIndex != nil {
		return *l.IgnoreIndex
	}
	return -100
}

// totalWeight returns the number of targets that are not ignored. If classes have weights, it
// returns the sum of these targets' weights.
func (l *operatorLoss) totalWeight(targets []int64) (weight float64) {
	for _, class := range targets {
		switch {
		case class == l.ignoredClass():
		case l.Weight == nil:
			weight++
		case 0 <= class && class < int64(len(l.Weight)): // Forward refuses others
			weight += float64(l.Weight[class])
		}
	}
	return weight
}

func (l *operatorLoss) Forward(c *Ctx, output, target *torch.Tensor) *torch.Tensor {
	both := []*torch.Tensor{output, target}
	if !l.classes && !slices.Equal(output.Shape(), target.Shape()) {
		c.fail(l.operator, both, "output and target must have one shape; reshape the target")
	}
	if !l.Sum && output.Numel() == 0 {
		c.fail(l.operator, both, "the mean over no rows is no number; a step needs at least one row")
	}
	mark := c.Mark()
	var weight *torch.Tensor
	if l.Weight != nil { // copied to the device now, as a loss belongs to none
		weight = engine.FromPinned(c.Ctx, l.Weight)
	}
	args := []any{output, target}
	switch {
	case l.classes:
		rows, classes := classRows(c, output, target)
		args = []any{rows, classes, weight, l.Reduction(), l.ignoredClass()}
		if l.LabelSmoothing != 0 {
			args = append(args, l.LabelSmoothing)
		}
	case l.operator == withLogits:
		args = append(args, nil, weight, l.Reduction())
	default:
		args = append(args, l.Reduction())
	}
	loss := c.Op(l.operator, append(args, l.args...)...)
	c.Release(mark, loss)
	return loss
}
