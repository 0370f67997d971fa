package safetensors

import (
	"encoding/binary"
	"fmt"
	"math"
)

// PyTorch is the metadata of files that are for PyTorch's tensors, as its own writers leave it: some
// readers ask for it.
var PyTorch = map[string]string{"format": "pt"}

// Convert returns a tensor that was read as one of other floating-point numbers, F64 or F32, with
// its data in a slice of its own: F16 and BF16 exactly, F64 to F32 rounded to nearest even. It
// returns an error for other formats, and for a number that becomes infinite.
func Convert(t Tensor, to DType) (Tensor, error) {
	from, wide := t.DType, reader(t.DType)
	if wide == nil || to != F32 && to != F64 {
		return Tensor{}, fmt.Errorf("safetensors: tensor %q: %s cannot become %s; floating-point numbers become F32 or F64", t.Name, from, to)
	}
	width := from.Size()
	count := int64(len(t.Data)) / width
	data := make([]byte, 0, count*to.Size())
	for i := range count {
		v := wide(t.Data[i*width:])
		if to == F64 {
			data = binary.LittleEndian.AppendUint64(data, math.Float64bits(v))
			continue
		}
		narrow := float32(v)
		if math.IsInf(float64(narrow), 0) && !math.IsInf(v, 0) {
			return Tensor{}, fmt.Errorf("safetensors: tensor %q: element %d is %g, which F32 has no number for", t.Name, i, v)
		}
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(narrow))
	}
	t.DType, t.Data = to, data
	return t, nil
}

// reader reads a floating-point number; nil for another format.
func reader(d DType) func([]byte) float64 {
	switch d {
	case F64:
		return func(b []byte) float64 { return math.Float64frombits(binary.LittleEndian.Uint64(b)) }
	case F32:
		return func(b []byte) float64 { return float64(math.Float32frombits(binary.LittleEndian.Uint32(b))) }
	case BF16:
		return func(b []byte) float64 {
			return float64(math.Float32frombits(uint32(binary.LittleEndian.Uint16(b)) << 16))
		}
	case F16:
		return func(b []byte) float64 { return half(binary.LittleEndian.Uint16(b)) }
	}
	return nil
}

// half is the number of the bits of an IEEE 754 binary16: a sign, 5 bits of exponent with bias 15,
// 10 bits of fraction.
func half(bits uint16) float64 {
	exponent, fraction := int(bits>>10&31), float64(bits&1023)
	v := math.Ldexp(1024+fraction, exponent-25)
	switch {
	case exponent == 31 && fraction != 0:
		return math.NaN()
	case exponent == 31:
		v = math.Inf(1)
	case exponent == 0: // subnormal
		v = math.Ldexp(fraction, -24)
	}
	if bits>>15 == 1 {
		return -v
	}
	return v
}
