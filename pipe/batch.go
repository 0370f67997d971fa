package pipe

import (
	"fmt"

	"penstock.example/nn"
	"penstock.example/torch"
)

// Batch is a mini-batch. Its tensors belong to the caller, who keeps them until the call returns.
// Input must be on a device of the same kind as the first stage, Target on one of the same kind as
// the last.
type Batch struct {
	// Input is the input of the first layer, as Rows and NoChunk make it. A leaf that requires a gradient
	// receives one.
	Input  []Value
	Target []Value // of the loss; for Step alone
	Step   int64   // with Config.Seed, the seed of the step
	// Training makes Infer behave as a training step: dropout drops, batch norm uses the
	// micro-batch, and running statistics move. Other calls ignore it.
	Training bool
	Extras   map[string]any // values that are no tensors; every layer sees them on every micro-batch
	// Accumulate says that a later batch will add to the gradients before the update. Each replica
	// (Config.Replicas) then adds to its own. The next batch without it sums them over the replicas, and
	// gives all the buffers of replica 0.
	Accumulate bool
	// TotalRows is how many rows the batches of an update have together. The mean of a loss is over
	// these. 0 is the rows of this batch.
	TotalRows int64
	// FirstMicroBatch is how many micro-batches the update had before this batch (Pipe.MicroBatches
	// of each). The layers' random numbers depend on it, and PlanFor counts the gradients they leave.
	FirstMicroBatch int
	// LossScale multiplies the gradients, but not Result.Loss; 0 is 1. See UpdateScaled.
	LossScale float64

	// Within is the context of a layer that runs the pipe as a part of itself (package autoremat), or
	// nil. The pipe then has one stage, which runs in forks of that context on the whole batch, on
	// parameters that are where they are.
	Within *nn.Ctx
	// LossBytes is the memory that a loss behind the layer takes besides the output. The policy Optimal
	// keeps it free. 0 is four times the output.
	LossBytes int64
}

// Value is an element of a batch's tuple.
type Value struct {
	Tensor *torch.Tensor
	// Whole gives every micro-batch the whole tensor, which may have any shape. Otherwise the
	// tensor is [rows, ...] and is split by rows.
	Whole bool
}

// Rows are tensors [rows, ...] that are split into micro-batches. All such tensors of a batch have
// the same number of rows.
func Rows(ts ...*torch.Tensor) []Value { return values(ts, false) }

// NoChunk are tensors of any shape that every micro-batch receives whole, as in
// append(pipe.Rows(x), pipe.NoChunk(table)...).
func NoChunk(ts ...*torch.Tensor) []Value { return values(ts, true) }

func values(ts []*torch.Tensor, whole bool) []Value {
	out := make([]Value, len(ts))
	for i, t := range ts {
		out[i] = Value{Tensor: t, Whole: whole}
	}
	return out
}

// countRows is the number of rows of the values that are split, which a stage reads. All must have the
// same. In whole batches there need not be any, which is one row.
func countRows(what string, list []Value, whole bool, stage *Stage) (int64, error) {
	rows := int64(-1)
	for i, v := range list {
		problem, t := "", v.Tensor
		switch {
		case t == nil || t.Freed():
			problem = "is nil or freed; keep the batch's tensors until the call returns"
		case !t.IsLeaf():
			problem = "hangs on a graph, and each micro-batch has a backward of its own; detach it, and go " +
				"on from its gradient"
		case t.Kind() != stage.Device.Kind:
			problem = fmt.Sprintf("is on %v and its stage on %v; make it there", t.Kind(), stage.Device)
		case v.Whole:
		case len(t.Shape()) == 0:
			problem = fmt.Sprintf("is %v, which has no rows to split; give it as pipe.NoChunk", t)
		case rows >= 0 && rows != t.Size(0):
			problem = fmt.Sprintf("has %d rows and another one %d; all must have the same, except what "+
				"is given as pipe.NoChunk", t.Size(0), rows)
		default:
			rows = t.Size(0)
		}
		if problem != "" {
			return 0, fmt.Errorf("pipe: %s %d %s", what, i, problem)
		}
	}
	switch {
	case rows < 0 && whole:
		return 1, nil
	case rows < 0:
		return 0, fmt.Errorf("pipe: the batch has no %s with rows; set at least one, as pipe.Rows(x)", what)
	}
	return rows, nil
}

// part is a micro-batch's part of a value: a view of its rows, or the whole.
func (r rows) part(c *torch.Ctx, v Value) *torch.Tensor {
	if v.Whole {
		return c.Share(v.Tensor)
	}
	return c.Narrow(v.Tensor, 0, r.start, r.length)
}

type rows struct{ start, length int64 }

// split cuts n rows as evenly as possible into min(chunks, n) micro-batches, longer ones first.
// Inference may have no rows, which are one empty micro-batch.
func split(n int64, chunks int) []rows {
	m := max(min(int64(chunks), n), 1)
	out := make([]rows, m)
	start := int64(0)
	for i := range out {
		length := n / m
		if int64(i) < n%m {
			length++
		}
		out[i] = rows{start, length}
		start += length
	}
	return out
}
