package safetensors

import (
	"encoding/binary"
	"fmt"
	"math"
)

// PyTorch is the metadata that PyTorch's writers use. Some readers require it.
var PyTorch = map[string]string{"format": "pt"}

// Float reports whether d is a floating-point format.
func (d DType) Float() bool { return reader(d) != nil }

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

// converted converts some elements of a tensor. first is the index of the first element, for errors.
func converted(t Tensor, elements []byte, first int64, to DType) ([]byte, error) {
	read, appendTo := reader(t.DType), appender(to)
	if read == nil || appendTo == nil {
		return nil, fmt.Errorf("safetensors: tensor %q: %s cannot become %s; floating-point numbers "+
			"become F64, F32, F16 or BF16", t.Name, t.DType, to)
	}
	width := t.DType.Size()
	count := int64(len(elements)) / width
	data := make([]byte, 0, count*to.Size())
	for i := range count {
		v := read(elements[i*width:])
		var ok bool
		if data, ok = appendTo(data, v); !ok {
			return nil, fmt.Errorf("safetensors: tensor %q: element %d is %g, which is too large for %s",
				t.Name, first+i, v, to)
		}
	}
	return data, nil
}

// appender returns a function that appends a number, or nil if d is not floating-point. ok is false if a
// finite number becomes infinite.
func appender(d DType) func(to []byte, v float64) (_ []byte, ok bool) {
	little := binary.LittleEndian
	return map[DType]func([]byte, float64) ([]byte, bool){
		F64: func(to []byte, v float64) ([]byte, bool) {
			return little.AppendUint64(to, math.Float64bits(v)), true
		},
		F32: func(to []byte, v float64) ([]byte, bool) {
			x := float32(v)
			return little.AppendUint32(to, math.Float32bits(x)), math.IsInf(float64(x), 0) == math.IsInf(v, 0)
		},
		F16:  func(to []byte, v float64) ([]byte, bool) { return appendShort(to, v, 5, 10) },
		BF16: func(to []byte, v float64) ([]byte, bool) { return appendShort(to, v, 8, 7) },
	}[d]
}

// appendShort appends a 16-bit number, rounded to nearest even. It has a sign, exponentBits bits of
// exponent and fractionBits bits of fraction (IEEE 754-2019, section 3.4).
func appendShort(to []byte, v float64, exponentBits, fractionBits int) ([]byte, bool) {
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
	ok := bits != infinite || math.IsInf(v, 0)
	if math.Signbit(v) {
		bits |= 1 << 15
	}
	return binary.LittleEndian.AppendUint16(to, bits), ok
}

// reader returns a function that reads a number, or nil if d is not floating-point.
func reader(d DType) func([]byte) float64 {
	little := binary.LittleEndian
	return map[DType]func([]byte) float64{
		F64:  func(b []byte) float64 { return math.Float64frombits(little.Uint64(b)) },
		F32:  func(b []byte) float64 { return float64(math.Float32frombits(little.Uint32(b))) },
		F16:  func(b []byte) float64 { return half(little.Uint16(b)) },
		BF16: func(b []byte) float64 { return float64(math.Float32frombits(uint32(little.Uint16(b)) << 16)) },
	}[d]
}

// half decodes an IEEE 754 binary16: a sign, 5 bits of exponent with bias 15, 10 bits of fraction.
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
