package nn

import (
	"penstock/internal/arg"
	"penstock/torch"
)

// BufferCopy is a copy of buffers, such as running statistics, so that a run that fails can put them back. It lies in Go's memory and not on a device: no account counts it, and no limit refuses it. The zero value
// is empty; a copy that is taken again uses the memory of the one before. It belongs to one goroutine at a time.
type BufferCopy struct {
	buffers []NamedParam
	values  [][]byte
}

// Take copies those of buffers that exist, in place of what was copied before. Nobody may change them meanwhile.
func (b *BufferCopy) Take(buffers []NamedParam) {
	b.buffers = b.buffers[:0]
	for _, p := range buffers {
		if !p.Exists() {
			continue
		}
		at, size := len(b.buffers), int(p.Numel()*p.DType().Size())
		if at == len(b.values) {
			b.values = append(b.values, nil)
		}
		if len(b.values[at]) != size {
			b.values[at] = make([]byte, size)
		}
		torch.BytesInto(b.values[at], p.value())
		b.buffers = append(b.buffers, p)
	}
}

// Restore gives the buffers the values that were copied. Autograd does not see it.
func (b *BufferCopy) Restore() {
	for i, p := range b.buffers {
		if err := torch.SetBytes(p.value(), b.values[i]); err != nil {
			panic("nn: putting back the buffer " + p.Name + ": " + err.Error())
		}
	}
}

// OrRestore runs f. If f panics, or ends its goroutine, the buffers of m are as before, to the bit: those that f has moved, and those that others have moved meanwhile. It is for forwards and steps outside of a pipe,
// whose runs do this by themselves:
//
//	err := torch.Try(func() { nn.OrRestore(model, func() { step(model) }) })
func OrRestore(m Module, f func()) {
	arg.Must(f, "nn: OrRestore: the function", "a forward or a step")
	var before BufferCopy
	before.Take(Buffers(m))
	done := false
	defer func() {
		if !done {
			before.Restore()
		}
	}()
	f()
	done = true
}
