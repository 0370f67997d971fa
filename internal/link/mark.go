package link

import (
	"bytes"
	"slices"

	"penstock.example/torch"
)

// mark is what a receiver writes to the end of a tensor before it arrives. A message that is shorter
// than the tensor leaves it there. It is repeated for elements that are longer.
const mark = "penstock"

// leastMarked is the least size in bytes of a tensor that has a mark.
const leastMarked = 64

// marked is the index, among the tensors that move, of the one that has the mark; -1 if there is none.
func (l layout) marked() int {
	return slices.IndexFunc(l.tensors(), func(s slot) bool { return s.dtype.Size() > 0 && s.bytes() >= leastMarked })
}

// setMark writes the mark to the end of a dense tensor.
func setMark(c *torch.Ctx, t *torch.Tensor) error {
	defer c.Release(c.Mark())
	end, content := ending(c, t)
	return torch.SetBytes(end, content)
}

// hasMark reports whether a dense tensor ends with the mark.
func hasMark(c *torch.Ctx, t *torch.Tensor) bool {
	defer c.Release(c.Mark())
	end, content := ending(c, t)
	return bytes.Equal(torch.Bytes(end), content)
}

// ending is a view of the elements that hold the mark, and the mark.
func ending(c *torch.Ctx, t *torch.Tensor) (*torch.Tensor, []byte) {
	all, size := c.InMemoryOrder(t), t.DType().Size()
	n := max(int64(len(mark))/size, 1)
	return c.Narrow(all, 0, all.Size(0)-n, n), bytes.Repeat([]byte(mark), int(n*size)/len(mark))
}
