package safetensors

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
)

// PyTorch is the metadata that PyTorch's writers use. Some readers require it.
var PyTorch = map[string]string{"format": "pt"}

// Float reports whether d is a floating-point format.
func (d DType) Float() bool { return formats[d].read != nil }

// Convert converts a tensor with Data to another floating-point format, rounding to nearest even. It
// returns an error if a format is not floating-point, or a finite number becomes infinite.
func Convert(t Tensor, to DType) (_ Tensor, err error) {
	t.Data, err = converted(t, t.Data, 0, to)
	t.DType = to
	return t, err
}

// Converting returns a tensor that is converted piece by piece as it is written. Its Load returns Convert's
// errors.
func Converting(t Tensor, to DType) Tensor {
	from := t
	t.DType, t.Data = to, nil
	t.Load = func(write func(piece []byte) error) error {
		first := int64(0)
		convert := func(piece []byte) error {
			data, err := converted(from, piece, first, to)
			if err != nil {
				return err
			}
			first += int64(len(piece)) / from.DType.Size()
			return write(data)
		}
		if from.Load == nil {
			return convert(from.Data)
		}
		return from.Load(convert)
	}
	return t
}

// formats are the floating-point formats.
var formats = map[DType]struct {
	read   func([]byte) float64
	append func(to []byte, v float64) []byte // rounds; a number that is too large becomes infinite
}{
	F64: {func(b []byte) float64 { return math.Float64frombits(binary.LittleEndian.Uint64(b)) },
		func(to []byte, v float64) []byte {
			return binary.LittleEndian.AppendUint64(to, math.Float64bits(v))
		}},
	F32: {func(b []byte) float64 { return float64(math.Float32frombits(binary.LittleEndian.Uint32(b))) },
		func(to []byte, v float64) []byte {
			return binary.LittleEndian.AppendUint32(to, math.Float32bits(float32(v)))
		}},
	F16: {func(b []byte) float64 { return half(binary.LittleEndian.Uint16(b)) },
		func(to []byte, v float64) []byte { return appendShort(to, v, 5, 10) }},
	BF16: {func(b []byte) float64 {
		return float64(math.Float32frombits(uint32(binary.LittleEndian.Uint16(b)) << 16))
	}, func(to []byte, v float64) []byte { return appendShort(to, v, 8, 7) }},
}

// converted converts some elements of a tensor. first is the index of the first element, for errors.
func converted(t Tensor, elements []byte, first int64, to DType) ([]byte, error) {
	from, into := formats[t.DType], formats[to]
	if from.read == nil || into.read == nil {
		return nil, fmt.Errorf("safetensors: tensor %q: %s cannot become %s; floating-point numbers "+
			"become F64, F32, F16 or BF16", t.Name, t.DType, to)
	}
	data := make([]byte, 0, int64(len(elements))/t.DType.Size()*to.Size())
	for element := range slices.Chunk(elements, int(t.DType.Size())) {
		v, at := from.read(element), len(data)
		if data = into.append(data, v); math.IsInf(into.read(data[at:]), 0) && !math.IsInf(v, 0) {
			return nil, fmt.Errorf("safetensors: tensor %q: element %d is %g, which is too large for %s",
				t.Name, first+int64(at)/to.Size(), v, to)
		}
	}
	return data, nil
}

// appendShort appends a 16-bit number, rounded to nearest even. It has a sign, exponentBits bits of
// exponent and fractionBits bits of fraction (IEEE 754-2019, section 3.4).
func appendShort(to []byte, v float64, exponentBits, fractionBits int) []byte {
	bias, one := 1<<(exponentBits-1)-1, 1<<fractionBits
	infinite := uint16(1<<exponentBits-1) << fractionBits
	var bits uint16
	switch f, e := math.Frexp(math.Abs(v)); { // |v| = f 2^e, 1/2 <= f < 1
	case math.IsNaN(v):
		bits = infinite | uint16(one/2)
	case math.IsInf(v, 0), e > bias+1:
		bits = infinite
	case v == 0:
	case e <= 1-bias: // subnormal; may round up to the smallest normal number
		bits = uint16(math.RoundToEven(math.Ldexp(f, e+bias-1+fractionBits)))
	default: // may round up to the next exponent
		bits = uint16((e-1+bias)<<fractionBits) +
			uint16(int(math.RoundToEven(math.Ldexp(f, fractionBits+1)))-one)
	}
	if math.Signbit(v) {
		bits |= 1 << 15
	}
	return binary.LittleEndian.AppendUint16(to, bits)
}

// half decodes an IEEE 754 binary16: a float32 with fewer bits and a bias of 15 in place of 127.
func half(bits uint16) float64 {
	rest := uint32(bits&0x7fff) << 13
	v := float64(math.Float32frombits(rest)) * 0x1p112
	switch {
	case rest > 0xf800000:
		return math.NaN()
	case rest == 0xf800000:
		v = math.Inf(1)
	}
	return math.Copysign(v, float64(int16(bits)))
}
