package safetensors_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"penstock.example/internal/must"
	"penstock.example/safetensors"
)

func Example() {
	directory, err := os.MkdirTemp("", "example")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(directory)
	path := filepath.Join(directory, "model.safetensors")

	err = safetensors.WriteFile(path, []safetensors.Tensor{
		{Name: "weight", DType: safetensors.U8, Shape: []int64{2, 2}, Data: []byte{1, 2, 3, 4}},
		{Name: "bias", DType: safetensors.F32, Shape: []int64{2}, Load: load(make([]byte, 8), nil)},
	}, map[string]string{"step": "7"})
	if err != nil {
		fmt.Println(err)
		return
	}

	file, err := safetensors.Open(path)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer file.Close()
	for _, t := range file.Tensors() {
		fmt.Println(t.Name, t.DType, t.Shape)
	}
	weight, err := file.Read("weight")
	fmt.Println(weight.Data, err, file.Metadata())
	// Output:
	// bias F32 [2]
	// weight U8 [2 2]
	// [1 2 3 4] <nil> map[step:7]
}

// The bytes of a small file, written out by hand from the format's description: the widest elements
// first in the data, the names sorted in the header, the padding of spaces.
const (
	smallHeader = `{"__metadata__":{"a":"<1>","format":"pt"},` +
		`"a.mask":{"dtype":"BOOL","shape":[3],"data_offsets":[16,19]},` +
		`"b":{"dtype":"F32","shape":[1,2],"data_offsets":[8,16]},` +
		`"n":{"dtype":"I64","shape":[],"data_offsets":[0,8]},` +
		`"z":{"dtype":"I8","shape":[4,0],"data_offsets":[19,19]}}` + `     `
	smallData = "\x07\x00\x00\x00\x00\x00\x00\x00" + "\x00\x00\x80\x3f\x00\x00\x00\xc0" + "\x01\x00\x01"
)

func small() ([]safetensors.Tensor, map[string]string) {
	return []safetensors.Tensor{
		{Name: "n", DType: safetensors.I64, Data: []byte{7, 0, 0, 0, 0, 0, 0, 0}},
		{Name: "z", DType: safetensors.I8, Shape: []int64{4, 0}},
		{Name: "a.mask", DType: safetensors.Bool, Shape: []int64{3}, Data: []byte{1, 0, 1}},
		{Name: "b", DType: safetensors.F32, Shape: []int64{1, 2},
			Data: []byte{0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0}},
	}, map[string]string{"format": "pt", "a": "<1>"}
}

// raw puts a file together.
func raw(header, data string) []byte {
	return append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header+data...)
}

func parse(file []byte) (*safetensors.File, error) {
	return safetensors.NewFile(bytes.NewReader(file), int64(len(file)))
}

func TestBytes(t *testing.T) {
	tensors, metadata := small()
	want := raw(smallHeader, smallData)
	if (len(want)-len(smallData))%8 != 0 {
		t.Fatalf("the wanted data starts at byte %d, not at a multiple of 8", len(want)-len(smallData))
	}
	for range 10 { // the order given must not show
		var b bytes.Buffer
		must.Do(t, safetensors.Write(&b, tensors, metadata))
		if !bytes.Equal(b.Bytes(), want) {
			t.Fatalf("Write gave\n%q, want\n%q", b.Bytes(), want)
		}
		tensors = append(tensors[1:], tensors[0])
		metadata = maps.Clone(metadata)
	}
}

// What others write need not look like what we write: no padding, an entry's keys and the tensors in
// any order, spaces.
func TestReadOthers(t *testing.T) {
	tests := []struct{ reason, header, data string }{
		{"nothing at all", `{}`, ""},
		{"the reference implementation's own example",
			`{"attn.0":{"dtype":"F32","shape":[1,2,3],"data_offsets":[0,24]}}`, strings.Repeat("\x00", 24)},
		{"other order, spaces, escapes",
			`{ "\u0062" : {"data_offsets": [1, 2], "shape": [1], "dtype": "U8"}, "a": ` +
				`{"shape":[1],"dtype":"U8","data_offsets":[0,1]}}`, "\x01\x02"},
		{"empty metadata", `{"__metadata__":{}}`, ""},
		{"an empty tensor between others",
			`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"e":{"dtype":"F64","shape":[0],"data_offsets":[1,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}`, "\x01\x02"},
	}
	for _, test := range tests {
		if _, err := parse(raw(test.header, test.data)); err != nil {
			t.Errorf("%s: %v", test.reason, err)
		}
	}
}

func TestWriteRefuses(t *testing.T) {
	one := func(tensor safetensors.Tensor) []safetensors.Tensor { return []safetensors.Tensor{tensor} }
	broken := errors.New("the device is gone")
	tests := []struct {
		tensors  []safetensors.Tensor
		metadata map[string]string
		want     string
	}{
		{one(safetensors.Tensor{Name: "__metadata__", DType: "U8"}), nil, "no tensor named __metadata__"},
		{one(safetensors.Tensor{Name: "\xff", DType: "U8", Data: []byte{1}}), nil, "invalid UTF-8"},
		{[]safetensors.Tensor{{Name: "w", DType: "U8", Data: []byte{1}},
			{Name: "w", DType: "F32", Data: make([]byte, 4)}}, nil, `tensor "w": want each name once`},
		{one(safetensors.Tensor{Name: "w", DType: "F8", Data: []byte{1}}), nil,
			`tensor "w": unknown dtype "F8", expected one of F64`},
		{one(safetensors.Tensor{Name: "w", DType: "F32", Shape: []int64{2, 3}, Data: make([]byte, 20)}),
			nil, `tensor "w": shape [2 3] of F32 takes 24 bytes, the data has 20`},
		{one(safetensors.Tensor{Name: "w", DType: "F32", Shape: []int64{2, -1}}), nil,
			"dimension 1 of shape [2 -1] is negative"},
		{one(safetensors.Tensor{Name: "w", DType: "F64", Shape: []int64{math.MaxInt64}}), nil, "overflows"},
		{one(safetensors.Tensor{Name: "w", DType: "F64", Shape: []int64{1 << 62, 1 << 62, 0}}), nil,
			"overflows"},
		{one(safetensors.Tensor{Name: "w", DType: "BOOL", Shape: []int64{2}, Data: []byte{1, 2}}), nil,
			"element 1 of BOOL is the byte 2, expected 0 or 1"},
		{one(safetensors.Tensor{Name: "w", DType: "F32", Load: load(make([]byte, 8), nil)}), nil,
			"takes 4 bytes, the data has 8"},
		{one(safetensors.Tensor{Name: "w", DType: "F32", Load: load(nil, broken)}), nil,
			`tensor "w": loading its data: the device is gone`},
		{nil, map[string]string{"k": "\xff"}, "invalid UTF-8"},
		{[]safetensors.Tensor{
			{Name: "v", DType: "U8", Shape: []int64{math.MaxInt64}, Load: load(nil, nil)},
			{Name: "w", DType: "U8", Shape: []int64{1}, Load: load(nil, nil)},
		}, nil, `tensor "w": the size of the file overflows`},
		{nil, map[string]string{"k": strings.Repeat("x", safetensors.MaxHeader)},
			"the format allows 100000000"},
	}
	for _, test := range tests {
		err := safetensors.Write(&bytes.Buffer{}, test.tensors, test.metadata)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("Write: error %v, want one with %q", err, test.want)
		}
	}
}

// A checkpoint that fails half-way must not cost the one before it.
func TestWriteFileThatFailsLeavesTheOldFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "w.safetensors")
	must.Do(t, os.WriteFile(path, []byte("old"), 0o644))
	broken := errors.New("the device is gone")
	err := safetensors.WriteFile(path, []safetensors.Tensor{
		{Name: "a", DType: safetensors.U8, Shape: []int64{4 << 20}, Load: load(make([]byte, 4<<20), nil)},
		{Name: "b", DType: safetensors.U8, Load: load(nil, broken)},
	}, nil)
	if !errors.Is(err, broken) || !strings.Contains(err.Error(), path) ||
		!strings.Contains(err.Error(), `tensor "b"`) {
		t.Errorf("error %v, want one that names the path, the tensor and the cause", err)
	}
	if content, err := os.ReadFile(path); string(content) != "old" {
		t.Errorf("the file has %q, %v, want what it had", content, err)
	}
}

// load is a tensor's Load that gives the data in one piece, or fails.
func load(data []byte, err error) func(func([]byte) error) error {
	return func(write func([]byte) error) error {
		if err != nil {
			return err
		}
		return write(data)
	}
}

func TestConvert(t *testing.T) {
	inf, nan := math.Inf(1), math.NaN()
	half := func(bits ...uint16) (data []byte) {
		for _, b := range bits {
			data = binary.LittleEndian.AppendUint16(data, b)
		}
		return data
	}
	for _, row := range []struct {
		dtype safetensors.DType
		data  []byte
		want  []float64
	}{
		// one, the least above it, the largest, the smallest normal, both ends of the subnormal
		{safetensors.F16, half(0x3c00, 0x3c01, 0x7bff, 0x0400, 0x03ff, 0x0001, 0x8000, 0xc000, 0x7c00,
			0xfc00, 0x7e00),
			[]float64{1, 1 + 1.0/1024, 65504, 0x1p-14, 0x1p-14 - 0x1p-24, 0x1p-24, math.Copysign(0, -1), -2,
				inf, -inf, nan}},
		{safetensors.BF16, half(0x3f80, 0xc000, 0x7f80, 0x7fc0, 0x0001),
			[]float64{1, -2, inf, nan, 0x1p-133}},
		{safetensors.F64, doublesOf(1, 0.1, -inf, nan, 1+0x1p-24, 1e-60).Data,
			[]float64{1, float64(float32(0.1)), -inf, nan, 1, 0}},
	} {
		from := safetensors.Tensor{Name: "w", DType: row.dtype, Shape: []int64{int64(len(row.want))},
			Data: row.data}
		for i, got := range valuesOf(t, mustConvert(t, from, safetensors.F32)) {
			if want := row.want[i]; math.Float64bits(got) != math.Float64bits(want) &&
				!(got != got && want != want) {
				t.Errorf("%s: element %d is %v, want %v", row.dtype, i, got, want)
			}
		}
	}
	for _, row := range []struct {
		t    safetensors.Tensor
		to   safetensors.DType
		want string
	}{
		{safetensors.Tensor{Name: "n", DType: safetensors.I64, Data: make([]byte, 8)}, safetensors.F32,
			`tensor "n": I64 cannot become F32`},
		{safetensors.Tensor{Name: "n", DType: safetensors.F32, Data: make([]byte, 4)}, safetensors.I64,
			`tensor "n": F32 cannot become I64`},
		{doublesOf(1, -1e39), safetensors.F32, `tensor "w": element 1 is -1e+39, which is too large for F32`},
	} {
		if _, err := safetensors.Convert(row.t, row.to); err == nil ||
			!strings.Contains(err.Error(), row.want) {
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
			got := valuesOf(t, mustConvert(t,
				doublesOf(math.Nextafter(middle, low), middle, math.Nextafter(middle, high), -middle), to))
			if got[0] != low || got[1] != even || got[2] != high || got[3] != -even {
				t.Fatalf("%s: around %g are %v; want %g, %g, %g, %g", to, middle, got, low, even, high, -even)
			}
		}
		// from half an interval beyond the greatest on there is no number
		largest := values[int(binary.LittleEndian.Uint16(mustConvert(t, doublesOf(math.Inf(1)), to).Data))-1]
		for _, v := range []float64{2 * largest, -1e300} {
			if _, err := safetensors.Convert(doublesOf(1, v), to); err == nil ||
				!strings.Contains(err.Error(), "element 1 is") {
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
	if lazy.DType != safetensors.F16 || !bytes.Equal(got, want) || err == nil ||
		!strings.Contains(err.Error(), `tensor "w": element 3 is 1e+300, which is too large for F16`) {
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

// Tensors of a large model are in several files, with an index. A tensor of a dtype that is not known
// is refused when it is read, not before.
func TestShards(t *testing.T) {
	directory := t.TempDir()
	file := func(name string, content []byte) string {
		path := filepath.Join(directory, name)
		must.Do(t, os.WriteFile(path, content, 0o644))
		return path
	}
	file("1.safetensors", raw(`{"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},`+
		`"other":{"dtype":"F8_E4M3","shape":[3],"data_offsets":[2,5]}}`, "\x01\x02xyz"))
	file("2.safetensors", raw(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},`+
		`"b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}`, "\x03\x04"))
	f := must.Get(safetensors.Open(file("model.safetensors.index.json",
		[]byte(`{"metadata": {"total_size": 6}, `+
			`"weight_map": {"a": "2.safetensors", "b": "2.safetensors", "other": "1.safetensors"}}`))))(t)
	defer f.Close()
	var names []string
	for _, tensor := range f.Tensors() {
		names = append(names, tensor.Name)
	}
	a, b := must.Get(f.Read("a"))(t), must.Get(f.Read("b"))(t)
	if _, err := f.Read("other"); fmt.Sprint(names, a.Data, b.Data) != "[a b other] [3] [4]" || err == nil ||
		!strings.Contains(err.Error(), `tensor "other": bytes 124 to 127: unknown dtype "F8_E4M3"`) {
		t.Error(names, a.Data, b.Data, err)
	}
	for index, want := range map[string]string{
		`{"weight_map": {"c": "1.safetensors"}}`:    `tensor "c" is not in 1.safetensors; want all files`,
		`{"weight_map": {"c": "../1.safetensors"}}`: `its file ../1.safetensors: want files beside it`,
		`{"weight_map": {"c": "3.safetensors"}}`:    "3.safetensors: no such file",
		`{"weight_map": {"c": "i.index.json"}}`:     "i.index.json: the header's length is",
		`{"weight_map": {"c": 1}}`:                  "/weight_map/c",
		`{}`:                                        "it names no files; want",
	} {
		path := file("i.index.json", []byte(index))
		if _, err := safetensors.Open(path); err == nil || !strings.Contains(err.Error(), path+": ") ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", index, err, want)
		}
	}
}
