package nn

import (
	"penstock.example/torch"
)

// BufferCopy is a copy of buffers, such as running statistics. A run that fails restores them from
// it. The copy lies in Go's memory: no device's account counts it and no limit refuses it. The zero
// value is empty. Take reuses the memory of the copy before. It belongs to one goroutine at a time.
type BufferCopy struct {
	buffers []NamedParam
	values  [][]byte
}

// Take copies the buffers that exist and forgets the copy before. Nobody may change them meanwhile.
func (b *BufferCopy) Take(buffers []NamedParam) {
	b.buffers = b.buffers[:0]
	for _, p := range buffers {
		if !p.Exists() {
			continue
		}
		at, size := len(b.buffers), int(p.Bytes())
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

// OrRestore runs f. If f panics or ends its goroutine, the buffers of m get the values back that
// they had before, to the bit, whoever changed them. Use it for forwards and steps outside of a
// pipe; a pipe's runs do this by themselves:
//
//	err := torch.Try(func() { nn.OrRestore(model, func() { step(model) }) })
func OrRestore(m Module, f func()) {
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
