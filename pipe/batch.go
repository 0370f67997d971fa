package pipe

import (
	"fmt"

	"penstock.example/nn"
	"penstock.example/torch"
)

// Batch is a mini-batch. Its tensors belong to the caller, who keeps them until the call returns.
// Input is on a device of the first stage's kind, Target on one of the last stage's kind.
type Batch struct {
	Input  []Value // of the first layer; a leaf that requires a gradient receives one
	Target []Value // of the loss; for Step alone
	// Step is the step's number, which seeds dropout together with Config.Seed. If nil, steps count
	// up from 0, and a batch with FirstMicroBatch repeats the last one. Failed steps do not count.
	Step     *int64
	Training bool // makes Infer run the layers as in training; other calls ignore it
	// Each, if set, gets the output of each micro-batch from Infer, in order, on the last stage's
	// worker. first is the batch's row of the output's first row. The output is freed after the
	// call. Infer then returns no Output. Other calls ignore Each.
	Each   func(first int64, output []*torch.Tensor)
	Extras map[string]any // values that are no tensors, for every layer and micro-batch
	// Accumulate says that a later batch will add to the gradients before the update. Until then
	// each replica (Config.Replicas) has its own gradients and buffers. The next batch without
	// Accumulate sums the gradients, and all replicas take the buffers of replica 0.
	Accumulate bool
	// TotalWeight is the sum of the weights (nn.LossWeight, mostly the rows) of all batches of the
	// update, by which a mean loss is divided. 0 is this batch's weight.
	TotalWeight float64
	// FirstMicroBatch is the number of micro-batches of earlier batches of the update
	// (Pipe.MicroBatches). Random numbers depend on it, and PlanFor counts the gradients from them.
	FirstMicroBatch int
	LossScale       float64 // multiplies the gradients, but not Result.Loss; 0 is 1; see UpdateScaled

	// Within is the context of a layer that runs the pipe as a part of itself (package autoremat),
	// or nil. The pipe then has one stage, which runs on the whole batch in forks of the context.
	// It does not place parameters.
	Within    *nn.Ctx
	LossBytes int64 // bytes that Optimal leaves for a loss after the layer; 0 is four times the output
}

// Value is an element of a batch's tuple.
type Value struct {
	Tensor *torch.Tensor
	Whole  bool // every micro-batch gets the whole tensor; otherwise it is split by rows
}

// Rows are tensors [rows, ...] with equal numbers of rows, which are split into micro-batches.
func Rows(ts ...*torch.Tensor) []Value { return values(ts, false) }

// NoChunk are tensors of any shape, which every micro-batch receives whole, as in
// append(pipe.Rows(x), pipe.NoChunk(table)...).
func NoChunk(ts ...*torch.Tensor) []Value { return values(ts, true) }

func values(ts []*torch.Tensor, whole bool) []Value {
	out := make([]Value, len(ts))
	for i, t := range ts {
		out[i] = Value{Tensor: t, Whole: whole}
	}
	return out
}

// countRows is the number of rows of a list that a stage reads. A list without rows is an error, or
// has one row if whole is set.
func countRows(what string, list []Value, whole bool, stage *Stage) (int64, error) {
	rows := int64(-1)
	for i, v := range list {
		problem, t := "", v.Tensor
		switch {
		case t == nil || t.Freed():
			problem = "is nil or freed; keep the batch's tensors until the call returns"
		case !t.IsLeaf():
			problem = "has a graph; detach it, and go on backward from its gradient"
		case t.Kind() != stage.Device.Kind:
			problem = fmt.Sprintf("is on %v and its stage on %v; make it there", t.Kind(), stage.Device)
		case v.Whole:
		case len(t.Shape()) == 0:
			problem = fmt.Sprintf("is %v, which has no rows to split; give it as pipe.NoChunk", t)
		case rows >= 0 && rows != t.Size(0):
			problem = fmt.Sprintf("has %d rows, another one %d; want the same, or pipe.NoChunk", t.Size(0),
				rows)
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

// part is a micro-batch's part of a value: a view of the rows, or the whole.
func (r rows) part(c *torch.Ctx, v Value) *torch.Tensor {
	if v.Whole {
		return c.Share(v.Tensor)
	}
	return c.Narrow(v.Tensor, 0, r.start, r.length)
}

func (r rows) views(c *torch.Ctx, values []Value) (out []*torch.Tensor) {
	for _, v := range values {
		out = append(out, r.part(c, v))
	}
	return out
}

type rows struct{ start, length int64 }

// split cuts n rows evenly into min(chunks, n) micro-batches, longer ones first, and 0 rows into one.
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
