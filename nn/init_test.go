package nn_test

import (
	"encoding/json"
	"math"
	"slices"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/torch"
)

type initCase struct {
	Name, Layer  string
	Args         json.RawMessage
	Param        string
	Shape        []int64
	Distribution string
	Bound        float64 // uniform: from -bound to bound
	Mean, Std    float64 // normal
	Value        float64 // constant
	Sample       struct {
		Count               int
		Min, Max, Mean, Std float64
	}
}

// Our generator draws other numbers than PyTorch's, from the same distribution: each case is
// compared with what the distribution says and with a sample that PyTorch drew. A mean of n draws
// has a standard deviation of std/sqrt(n), and a standard deviation one of less than std/sqrt(n);
// five of these are allowed.
func TestInitialisationsAreThoseOfPyTorch(t *testing.T) {
	var list []initCase
	readJSON(t, "init.json", &list)
	if len(list) != 17 {
		t.Errorf("%d cases, want 17", len(list))
	}
	for _, k := range list {
		t.Run(k.Name, func(t *testing.T) {
			c := torchtest.New(t, torch.Options{})
			layer := buildLayer(t, k.Layer, k.Args)
			nn.Materialise(c, nn.State(layer), 7)
			defer nn.Free(layer)
			i := slices.IndexFunc(nn.State(layer), func(p nn.NamedParam) bool { return p.Name == k.Param })
			if i < 0 {
				t.Fatalf("there is no %s", k.Param)
			}
			p := nn.State(layer)[i]
			if !slices.Equal(p.Shape(), k.Shape) {
				t.Errorf("shape %v, want %v", p.Shape(), k.Shape)
			}
			k.check(t, torch.Values[float32](p.Tensor()))
		})
	}
}

func (k initCase) check(t *testing.T, values []float32) {
	mean, std, low, high := statistics(values)
	wantMean, wantStd := k.Mean, k.Std
	switch k.Distribution {
	case "constant":
		if low != k.Value || high != k.Value {
			t.Errorf("values from %v to %v, want %v", low, high, k.Value)
		}
		return
	case "uniform":
		wantMean, wantStd = 0, k.Bound/math.Sqrt(3)
		// The largest of n draws is below 1 - 12/n of the bound about six times in a million.
		reach := k.Bound * (1 - 24/float64(len(values)))
		if low < -k.Bound || high > k.Bound || low > -reach || high < reach {
			t.Errorf("values from %v to %v, want them to fill [%v, %v]", low, high, -k.Bound, k.Bound)
		}
	}
	spread := 5 * wantStd / math.Sqrt(float64(len(values)))
	if math.Abs(mean-wantMean) > spread || math.Abs(std-wantStd) > spread {
		t.Errorf("mean %v and standard deviation %v, want %v and %v within %v", mean, std, wantMean, wantStd, spread)
	}
	if math.Abs(mean-k.Sample.Mean) > 2*spread || math.Abs(std-k.Sample.Std) > 2*spread {
		t.Errorf("mean %v and standard deviation %v, PyTorch drew %v and %v", mean, std, k.Sample.Mean, k.Sample.Std)
	}
}

func statistics(values []float32) (mean, std, low, high float64) {
	low, high = math.Inf(1), math.Inf(-1)
	for _, v := range values {
		mean += float64(v) / float64(len(values))
		low, high = min(low, float64(v)), max(high, float64(v))
	}
	for _, v := range values {
		std += (float64(v) - mean) * (float64(v) - mean) / float64(len(values))
	}
	return mean, math.Sqrt(std), low, high
}

// PyTorch initialises the padding row of an embedding to zeros.
func TestPaddingRowStartsAsZeros(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	l := nn.NewEmbedding(4, 3, nn.EmbeddingConfig{PaddingIdx: new(int64(2))})
	nn.Materialise(c, nn.State(l), 1)
	defer nn.Free(l)
	for i, v := range torch.Values[float32](l.Weight.Tensor()) {
		if (v == 0) != (i/3 == 2) {
			t.Errorf("row %d holds %v", i/3, v)
		}
	}
}

func TestSetInitReplacesTheDefault(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	l := nn.NewLinear(3, 2)
	l.Bias.SetInit(nn.Ones)
	nn.Materialise(c, nn.State(l), 1)
	defer nn.Free(l)
	if got := torch.Values[float32](l.Bias.Tensor()); got[0] != 1 || got[1] != 1 {
		t.Errorf("the bias is %v, want ones", got)
	}
}
