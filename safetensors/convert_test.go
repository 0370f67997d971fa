package safetensors_test

import (
	"encoding/binary"
	"math"
	"strings"
	"testing"

	"penstock/safetensors"
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
		wide, err := safetensors.Convert(got, safetensors.F64)
		if err != nil {
			t.Fatal(err)
		}
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
		{safetensors.Tensor{Name: "n", DType: safetensors.F32, Data: make([]byte, 4)}, safetensors.F16, `tensor "n": F32 cannot become F16`},
		{safetensors.Tensor{Name: "n", DType: safetensors.F64, Data: doubles(1, -1e39)}, safetensors.F32, `tensor "n": element 1 is -1e+39, which F32 has no number for`},
	} {
		if _, err := safetensors.Convert(row.t, row.to); err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("got %v, want %q", err, row.want)
		}
	}
}
