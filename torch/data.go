package torch

import (
	"cmp"
	"errors"
	"fmt"
	"unsafe"

	"penstock.example/internal/shim"
	"penstock.example/safetensors"
)

// From copies data, row-major, into a new tensor on the context's device. Without a shape it makes
// a vector. It panics with *Error if shape and data differ in size.
func From[T element](c *Ctx, data []T, shape ...int64) *Tensor {
	if len(shape) == 0 {
		shape = []int64{int64(len(data))}
	}
	return FromBytes(c, bytesOf(data), dtypeOf[T](), shape)
}

// FromBytes is From for raw little-endian elements.
func FromBytes(c *Ctx, data []byte, dtype DType, shape []int64) *Tensor {
	want := dtype.Size()
	for _, s := range shape {
		want *= s
	}
	if dtype.Size() == 0 || want != int64(len(data)) {
		panic(&Error{Op: "from", Device: c.device,
			Message: fmt.Sprintf("%v%v holds %d bytes, the data has %d", dtype, shape, want, len(data))})
	}
	h, err := shim.FromBytes(&c.mode, data, int(dtype), shape)
	c.Check("from", err)
	return c.Own(h)
}

// Values copies a tensor's elements out, row-major. It panics with *Error if T is not the tensor's
// element type.
func Values[T element](t *Tensor) []T {
	if want, got := dtypeOf[T](), t.DType(); want != got {
		panic(&Error{Op: "values", Args: []string{t.String()}, Message: fmt.Sprintf("asked for %v", want)})
	}
	out := make([]T, t.Numel())
	bytesInto(bytesOf(out), t)
	return out
}

// Item returns the only element of a tensor. It panics with *Error if there is not exactly one
// element, or if T is not its type.
func Item[T element](t *Tensor) T {
	if n := t.Numel(); n != 1 {
		panic(&Error{Op: "item", Args: []string{t.String()},
			Message: fmt.Sprintf("a tensor with %d elements is not a number", n)})
	}
	return Values[T](t)[0]
}

// Bytes is Values as raw little-endian bytes, of any element type.
func Bytes(t *Tensor) []byte {
	out := make([]byte, t.Numel()*t.DType().Size())
	bytesInto(out, t)
	return out
}

func bytesInto(into []byte, t *Tensor) {
	mode := shim.CPUMode()
	t.check("read", shim.ToBytes(&mode, t.handleFor("read"), into))
}

// Pieces is Bytes a MiB at a time, so that large tensors take little memory. write must not keep a
// piece. Copying ends with the first error of write or of an operator. A tensor that is not
// contiguous is copied whole first.
func Pieces(t *Tensor, write func(piece []byte) error) (err error) {
	const pieceBytes = 1 << 20
	c := NewCtx(Options{Device: CPU(0)})
	defer c.Close()
	size := t.DType().Size()
	each := pieceBytes / max(size, 1)
	buffer := make([]byte, min(each, t.Numel())*size)
	tried := Try(func() {
		var flat *Tensor
		c.Unlimited(func() { flat = c.Reshape(c.Detach(t), -1) })
		for at := int64(0); at < t.Numel() && err == nil; at += each {
			n := min(each, t.Numel()-at)
			part := c.Narrow(flat, 0, at, n)
			piece := buffer[:n*size]
			bytesInto(piece, part)
			part.Free()
			err = write(piece)
		}
	})
	return cmp.Or(err, tried)
}

// SetBytes overwrites a tensor's elements with raw little-endian bytes, row-major, without autograd
// noticing. It returns an error if the sizes differ.
func SetBytes(t *Tensor, data []byte) error {
	if t == nil {
		return errors.New("torch: set: the tensor is nil")
	}
	writes.Add(1)
	mode := shim.CPUMode()
	if err := shim.CopyFromBytes(&mode, t.handle(), data); err != nil {
		return fmt.Errorf("torch: set %v: %s", t, err.Message)
	}
	return nil
}

func bytesOf[T element](s []T) []byte {
	if len(s) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(s[0])))
}

// FileTensor returns a tensor for a safetensors file. Its elements are copied while the file is
// written, so t must not be freed before.
func FileTensor(name string, t *Tensor) safetensors.Tensor {
	load := func(write func([]byte) error) error { return Pieces(t, write) }
	return safetensors.Tensor{Name: name, DType: FileDType(t.DType()), Shape: t.Shape(), Load: load}
}
