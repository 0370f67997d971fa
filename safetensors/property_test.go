package safetensors_test

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	_ "penstock.example/internal/draws" // sets the number of draws
	"penstock.example/internal/must"
	"penstock.example/safetensors"
)

var dtypes = []safetensors.DType{
	safetensors.F64, safetensors.F32, safetensors.F16, safetensors.BF16, safetensors.I64,
	safetensors.I32, safetensors.I16, safetensors.I8, safetensors.U8, safetensors.Bool,
}

func drawTensors(t *rapid.T) []safetensors.Tensor {
	name := rapid.String().Filter(func(s string) bool { return s != "__metadata__" })
	names := rapid.SliceOfNDistinct(name, 0, 8, rapid.ID[string]).Draw(t, "names")
	slices.Sort(names)
	var tensors []safetensors.Tensor
	for _, name := range names {
		tensor := safetensors.Tensor{
			Name:  name,
			DType: rapid.SampledFrom(dtypes).Draw(t, "dtype"),
			Shape: rapid.SliceOfN(rapid.Int64Range(0, 4), 0, 4).Draw(t, "shape"),
		}
		size := must.Get(tensor.Size())(t)
		highest := byte(255)
		if tensor.DType == safetensors.Bool {
			highest = 1
		}
		tensor.Data = rapid.SliceOfN(rapid.ByteRange(0, highest), int(size), int(size)).Draw(t, "data")
		tensors = append(tensors, tensor)
	}
	return tensors
}

// TestRoundTrip: what is written is read back, and neither the order of the tensors nor who holds the
// data shows.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tensors := drawTensors(t)
		metadata := rapid.MapOfN(rapid.String(), rapid.String(), 0, 5).Draw(t, "metadata")

		var b bytes.Buffer
		must.Do(t, safetensors.Write(&b, tensors, metadata))
		file := must.Get(parse(b.Bytes()))(t)
		var got []safetensors.Tensor
		for _, header := range file.Tensors() {
			tensor := must.Get(file.Read(header.Name))(t)
			got = append(got, tensor)
		}
		if diff := cmp.Diff(tensors, got, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("tensors written (-) and read (+):\n%s", diff)
		}
		if diff := cmp.Diff(metadata, file.Metadata(), cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("metadata written (-) and read (+):\n%s", diff)
		}

		var lazy []safetensors.Tensor
		for _, tensor := range tensors {
			data := tensor.Data
			cut := rapid.IntRange(0, len(data)).Draw(t, "cut")
			cut -= cut % int(tensor.DType.Size())
			tensor.Data, tensor.Load = nil, func(write func([]byte) error) error {
				if err := write(data[:cut]); err != nil {
					return err
				}
				return write(data[cut:])
			}
			lazy = append(lazy, tensor)
		}
		seed := rapid.Uint64().Draw(t, "shuffle")
		rand.New(rand.NewPCG(seed, 0)).Shuffle(len(lazy),
			func(i, j int) { lazy[i], lazy[j] = lazy[j], lazy[i] })
		var again bytes.Buffer
		must.Do(t, safetensors.Write(&again, lazy, metadata))
		if !bytes.Equal(b.Bytes(), again.Bytes()) {
			t.Fatal("the same tensors, shuffled and loaded late, give other bytes")
		}
	})
}
