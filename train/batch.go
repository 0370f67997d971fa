package train

import (
	"fmt"

	"penstock.example/data"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// tensorOf copies an array to the context's device. If memory runs out it panics with *torch.Error.
func tensorOf(c *torch.Ctx, a data.Array) *torch.Tensor {
	switch a.Kind {
	case data.Float32:
		return torch.From(c, a.Float32, a.Shape...)
	case data.Int64:
		return torch.From(c, a.Int64, a.Shape...)
	case data.Uint8:
		return torch.From(c, a.Uint8, a.Shape...)
	}
	panic(fmt.Sprintf("train: a batch of %v", a.Kind))
}

// firstRows is a batch of the first n samples, from the first one again if there are fewer.
func firstRows(set data.Dataset, n int) (out data.Batch, err error) {
	indices := make([]int, n)
	for i := range indices {
		indices[i] = i % set.Len()
	}
	return out, set.Fill(&out, indices)
}

// newCtx returns a context for work outside the pipe's workers. It has one thread: OpenMP starts threads
// for each OS thread, and if there are more threads than cores, all sleep between operators.
func newCtx(d torch.Device) *torch.Ctx { return torch.NewCtx(torch.Options{Device: d, Threads: 1}) }

// endContexts returns contexts on the devices of the first and the last stage. The caller calls free.
func endContexts(p *pipe.Pipe) (first, last *torch.Ctx, free func()) {
	stages := p.Stages()
	first, last = newCtx(stages[0].Device), newCtx(stages[len(stages)-1].Device)
	return first, last, func() {
		first.Close()
		last.Close()
	}
}

// placeBatch sets the input and the target of b to a batch's tensors, on the first and the last device.
// The caller calls free, after an error as well.
func (l *Loop) placeBatch(b *pipe.Batch, batch data.Batch) (free func(), err error) {
	first, last, free := endContexts(l.Pipe)
	return free, torch.Try(func() {
		b.Input = pipe.Rows(tensorOf(first, batch.Input))
		b.Target = pipe.Rows(tensorOf(last, batch.Target))
	})
}
