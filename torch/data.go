package torch

import (
	"cmp"
	"errors"
	"fmt"
	"unsafe"

	"penstock.example/internal/shim"
	"penstock.example/safetensors"
)

// From copies data, row-major, into a new tensor of the given shape on the context's device, which
// c owns. Without a shape it makes a vector. It panics with *Error if shape and data differ in
// size.
func From[T Element](c *Ctx, data []T, shape ...int64) *Tensor {
	if len(shape) == 0 {
		shape = []int64{int64(len(data))}
	}
	return FromBytes(c, bytesOf(data), dtypeOf[T](), shape)
}

// FromPinned is From for a short vector. It goes through pinned memory of the host, so that the host
// does not wait for a GPU's copy.
func FromPinned[T Element](c *Ctx, data []T) *Tensor {
	host := c.EmptyPinned(dtypeOf[T](), []int64{int64(len(data))}, []int64{1})
	defer host.Free()
	mode := shim.CPUMode()
	if err := shim.CopyFromBytes(&mode, host.handle(), bytesOf(data)); err != nil {
		panic(c.failed("from", nil, err))
	}
	return c.begin(opToDevice).t(host).skip().skip().device(c.device).skip().b(true).one()
}

// Scalar makes a tensor without dimensions.
func Scalar[T Element](c *Ctx, v T) *Tensor {
	return FromBytes(c, bytesOf([]T{v}), dtypeOf[T](), []int64{})
}

// FromBytes copies raw little-endian elements, row-major, into a new tensor that c owns. It panics
// with *Error if shape and data differ in size.
func FromBytes(c *Ctx, data []byte, dtype DType, shape []int64) *Tensor {
	for _, s := range shape {
		if s < 0 {
			panic(&Error{Op: "from", Device: c.device,
				Message: fmt.Sprintf("negative size in shape %v", shape)})
		}
	}
	if want := product(shape) * dtype.Size(); want != int64(len(data)) || dtype.Size() == 0 {
		panic(&Error{Op: "from", Device: c.device,
			Message: fmt.Sprintf("shape %v of %v holds %d bytes, the data has %d", shape, dtype, want,
				len(data))})
	}
	h, err := shim.FromBytes(&c.mode, data, int(dtype), shape)
	if err != nil {
		panic(c.failed("from", nil, err))
	}
	return c.own(h)
}

// Values copies a tensor's elements out, row-major. The caller owns the slice. T must be the
// tensor's element type; another one panics with *Error.
func Values[T Element](t *Tensor) []T {
	mustBe[T](t)
	out := make([]T, t.Numel())
	read(t, bytesOf(out))
	return out
}

// mustBe panics if the elements are of another type.
func mustBe[T Element](t *Tensor) {
	if want, got := dtypeOf[T](), t.DType(); want != got {
		panic(&Error{Op: "values", Args: []string{t.String()}, Message: fmt.Sprintf("asked for %v", want)})
	}
}

// Item returns the only element of a tensor. It panics with *Error if there is not exactly one, or
// if T is not its type.
func Item[T Element](t *Tensor) T {
	if n := t.Numel(); n != 1 {
		panic(&Error{Op: "item", Args: []string{t.String()},
			Message: fmt.Sprintf("a tensor with %d elements is not a number", n)})
	}
	mustBe[T](t)
	var out [1]T
	read(t, bytesOf(out[:]))
	return out[0]
}

// Bytes copies a tensor's elements out as raw little-endian bytes, row-major.
func Bytes(t *Tensor) []byte {
	out := make([]byte, t.Numel()*t.DType().Size())
	read(t, out)
	return out
}

// pieceBytes is the size of the pieces in which Pieces copies.
const pieceBytes = 1 << 20

// Pieces copies a tensor's elements out, raw, little-endian and row-major, a MiB at a time, so that
// large tensors take little memory. write may use a piece until it returns. An error of write ends
// the copying and is returned, as are failures with the tensor. A tensor that is not contiguous is
// copied whole.
func Pieces(t *Tensor, write func(piece []byte) error) (err error) {
	if t.given("read"); !t.IsContiguous() || t.Numel()*t.DType().Size() <= pieceBytes {
		var all []byte
		if err := Try(func() { all = Bytes(t) }); err != nil {
			return err
		}
		return write(all)
	}
	c := NewCtx(Options{Device: CPU(0)})
	defer c.Close()
	buffer, each := make([]byte, pieceBytes), pieceBytes/t.DType().Size()
	tried := Try(func() {
		flat := c.Reshape(c.Detach(t), -1)
		for at := int64(0); at < t.Numel() && err == nil; at += each {
			n := min(each, t.Numel()-at)
			mark := c.Mark()
			piece := buffer[:n*t.DType().Size()]
			read(c.Narrow(flat, 0, at, n), piece)
			c.Release(mark)
			err = write(piece)
		}
	})
	return cmp.Or(err, tried)
}

// BytesInto copies a tensor's elements into a slice of their size, raw, little-endian and
// row-major.
func BytesInto(into []byte, t *Tensor) { read(t, into) }

// SetBytes overwrites a tensor's elements with raw little-endian bytes, row-major. Autograd does
// not see it. It returns an error if the sizes differ.
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

func read(t *Tensor, into []byte) {
	mode := shim.CPUMode()
	if err := shim.ToBytes(&mode, t.given("read"), into); err != nil {
		panic(&Error{Op: "read", Args: []string{t.String()}, Message: err.Message})
	}
}

func bytesOf[T Element](s []T) []byte {
	if len(s) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(s[0])))
}

// fileDTypes is how files spell element types.
var fileDTypes = map[DType]safetensors.DType{
	Float64: safetensors.F64, Float32: safetensors.F32, BFloat16: safetensors.BF16,
	Int64: safetensors.I64, Int32: safetensors.I32, Uint8: safetensors.U8, Bool: safetensors.Bool,
}

// FileTensor returns a tensor to be written to a safetensors file. Its elements are copied out
// piece by piece while it is written, so t must live until then.
func FileTensor(name string, t *Tensor) safetensors.Tensor {
	load := func(write func([]byte) error) error { return Pieces(t, write) }
	return safetensors.Tensor{Name: name, DType: FileDType(t.DType()), Shape: t.Shape(), Load: load}
}

// FileDType returns the name of an element type in a file. The writer refuses a type that files do
// not have.
func FileDType(d DType) safetensors.DType {
	if spelt, ok := fileDTypes[d]; ok {
		return spelt
	}
	return safetensors.DType(d.String())
}

// DTypeOfFile returns the element type for a name in a file, or an error if penstock does not have
// it.
func DTypeOfFile(spelt safetensors.DType) (DType, error) {
	for d, s := range fileDTypes {
		if s == spelt {
			return d, nil
		}
	}
	return 0, fmt.Errorf("elements of %s, which penstock does not have", spelt)
}
