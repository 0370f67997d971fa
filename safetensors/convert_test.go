package safetensors_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"strings"
	"testing"

	"penstock.example/internal/must"
	"penstock.example/safetensors"
)

func TestConvert(t *testing.T) {
	inf, nan := math.Inf(1), math.NaN()
	half := func(bits ...uint16) (data []byte) {
		for _, b := range bits {
			data = binary.LittleEndian.AppendUint16(data, b)
		}
		return data
	}
	doubles := func(values ...float64) (data []byte) {
		for _, v := range values {
			data = binary.LittleEndian.AppendUint64(data, math.Float64bits(v))
		}
		return data
	}
	for _, row := range []struct {
		dtype safetensors.DType
		data  []byte
		want  []float64
	}{
		// one, the least above it, the largest, the smallest normal, both ends of the subnormal
		{safetensors.F16, half(0x3c00, 0x3c01, 0x7bff, 0x0400, 0x03ff, 0x0001, 0x8000, 0xc000, 0x7c00, 0xfc00, 0x7e00),
			[]float64{1, 1 + 1.0/1024, 65504, 0x1p-14, 0x1p-14 - 0x1p-24, 0x1p-24, math.Copysign(0, -1), -2, inf, -inf, nan}},
		{safetensors.BF16, half(0x3f80, 0xc000, 0x7f80, 0x7fc0, 0x0001), []float64{1, -2, inf, nan, 0x1p-133}},
		{safetensors.F64, doubles(1, 0.1, -inf, nan, 1+0x1p-24, 1e-60), []float64{1, float64(float32(0.1)), -inf, nan, 1, 0}},
	} {
		got, err := safetensors.Convert(safetensors.Tensor{Name: "w", DType: row.dtype, Shape: []int64{int64(len(row.want))}, Data: row.data}, safetensors.F32)
		if err != nil || got.DType != safetensors.F32 || len(got.Data) != 4*len(row.want) {
			t.Errorf("%s: %v, %v", row.dtype, got, err)
			continue
		}
		wide := must.Get(safetensors.Convert(got, safetensors.F64))(t)
		for i, want := range row.want {
			narrow := float64(math.Float32frombits(binary.LittleEndian.Uint32(got.Data[4*i:])))
			again := math.Float64frombits(binary.LittleEndian.Uint64(wide.Data[8*i:]))
			if math.Float64bits(narrow) != math.Float64bits(want) && !(narrow != narrow && want != want) || narrow != again && narrow == narrow {
				t.Errorf("%s: element %d is %v and then %v, want %v", row.dtype, i, narrow, again, want)
			}
		}
	}
	for _, row := range []struct {
		t    safetensors.Tensor
		to   safetensors.DType
		want string
	}{
		{safetensors.Tensor{Name: "n", DType: safetensors.I64, Data: make([]byte, 8)}, safetensors.F32, `tensor "n": I64 cannot become F32`},
		{safetensors.Tensor{Name: "n", DType: safetensors.F32, Data: make([]byte, 4)}, safetensors.I64, `tensor "n": F32 cannot become I64`},
		{safetensors.Tensor{Name: "n", DType: safetensors.F64, Data: doubles(1, -1e39)}, safetensors.F32, `tensor "n": element 1 is -1e+39, which F32 has no number for`},
	} {
		if _, err := safetensors.Convert(row.t, row.to); err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("got %v, want %q", err, row.want)
		}
	}
}

// Every number of 16 bits survives being widened and narrowed again, what lies between two becomes the
// nearer one, and the even one where both are as near. Numbers in pieces are those of the whole.
func TestConvertRounds(t *testing.T) {
	for _, to := range []safetensors.DType{safetensors.F16, safetensors.BF16} {
		all := make([]byte, 0, 2<<16)
		for bits := range 1 << 16 {
			all = binary.LittleEndian.AppendUint16(all, uint16(bits))
		}
		values := valuesOf(t, safetensors.Tensor{Name: "w", DType: to, Shape: []int64{1 << 16}, Data: all})
		back := must.Get(safetensors.Convert(doublesOf(values...), to))(t)
		for i, v := range values {
			if got := binary.LittleEndian.Uint16(back.Data[2*i:]); got != uint16(i) && v == v {
				t.Fatalf("%s: %#04x is %g and then %#04x", to, i, v, got)
			}
		}
		// of the finite positive numbers, each and the next one
		for i := 0; !math.IsInf(values[i+1], 0); i++ {
			low, high := values[i], values[i+1]
			middle := low + (high-low)/2
			even := low
			if i%2 == 1 {
				even = high
			}
			got := valuesOf(t, mustConvert(t, doublesOf(math.Nextafter(middle, low), middle, math.Nextafter(middle, high), -middle), to))
			if got[0] != low || got[1] != even || got[2] != high || got[3] != -even {
				t.Fatalf("%s: around %g are %v; want %g, %g, %g, %g", to, middle, got, low, even, high, -even)
			}
		}
		// from half an interval beyond the greatest on there is no number
		largest := values[int(binary.LittleEndian.Uint16(mustConvert(t, doublesOf(math.Inf(1)), to).Data))-1]
		for _, v := range []float64{2 * largest, -1e300} {
			if _, err := safetensors.Convert(doublesOf(1, v), to); err == nil || !strings.Contains(err.Error(), "element 1 is") {
				t.Errorf("%s: %g: %v", to, v, err)
			}
		}
	}
	whole := doublesOf(1, 2, 3, 1e300)
	pieces := whole
	pieces.Data, pieces.Load = nil, func(write func([]byte) error) error {
		return errors.Join(write(whole.Data[:16]), write(whole.Data[16:24]), write(whole.Data[24:]))
	}
	var got []byte
	lazy := safetensors.Converting(pieces, safetensors.F16)
	err := lazy.Load(func(piece []byte) error { got = append(got, piece...); return nil })
	want := mustConvert(t, doublesOf(1, 2, 3), safetensors.F16).Data
	if lazy.DType != safetensors.F16 || !bytes.Equal(got, want) || err == nil || !strings.Contains(err.Error(), `tensor "w": element 3 is 1e+300, which F16 has no number for`) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
}

func doublesOf(values ...float64) safetensors.Tensor {
	t := safetensors.Tensor{Name: "w", DType: safetensors.F64, Shape: []int64{int64(len(values))}}
	for _, v := range values {
		t.Data = binary.LittleEndian.AppendUint64(t.Data, math.Float64bits(v))
	}
	return t
}

func mustConvert(t *testing.T, from safetensors.Tensor, to safetensors.DType) safetensors.Tensor {
	t.Helper()
	out := must.Get(safetensors.Convert(from, to))(t)
	return out
}

func valuesOf(t *testing.T, from safetensors.Tensor) (values []float64) {
	t.Helper()
	data := mustConvert(t, from, safetensors.F64).Data
	for ; len(data) > 0; data = data[8:] {
		values = append(values, math.Float64frombits(binary.LittleEndian.Uint64(data)))
	}
	return values
}
