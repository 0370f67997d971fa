package train

import (
	"fmt"

	"penstock.example/data"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// tensorOf copies an array to the context's device. It panics with *torch.Error if the device has
// not enough memory.
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

// firstRows returns the first n rows of a data set.
func firstRows(set data.Dataset, n int) (out data.Batch, err error) {
	indices := make([]int, n)
	for i := range indices {
		indices[i] = i
	}
	return out, set.Fill(&out, indices)
}

// besideStages is the number of threads of work outside of a pipe's workers. OpenMP starts threads for
// each OS thread, and with more threads than cores all of them sleep between operators.
const besideStages = 1

// place makes a batch's tensors, for b, on the first and the last device. Call free in any case: it
// frees them.
func (l *Loop) place(b *pipe.Batch, batch data.Batch) (free func(), err error) {
	stages := l.Pipe.Stages()
	first := torch.NewCtx(torch.Options{Device: stages[0].Device, Threads: besideStages})
	last := torch.NewCtx(torch.Options{Device: stages[len(stages)-1].Device, Threads: besideStages})
	err = torch.Try(func() {
		b.Input = pipe.Rows(tensorOf(first, batch.Input))
		b.Target = pipe.Rows(tensorOf(last, batch.Target))
	})
	return func() {
		first.Close()
		last.Close()
	}, err
}
