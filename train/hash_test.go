package train_test

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"math"
	"testing"

	"penstock.example/nn"
	"penstock.example/torch"
	"penstock.example/train"
)

// TestParamsSHA256 writes the bytes of the definition down by hand.
func TestParamsSHA256(t *testing.T) {
	check(t)
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	model := nn.NewSequential(nn.NewBatchNorm1d(2, nn.BatchNormConfig{}))
	nn.Materialise(c, nn.State(model), 1)
	defer nn.Free(model)

	var want []byte
	tensor := func(name string, shape []int64, elements ...uint32) {
		want = append(append(want, name...), 0)
		want = binary.LittleEndian.AppendUint64(want, uint64(len(shape)))
		for _, size := range shape {
			want = binary.LittleEndian.AppendUint64(want, uint64(size))
		}
		for _, e := range elements {
			want = binary.LittleEndian.AppendUint32(want, e)
		}
	}
	one := math.Float32bits(1)
	tensor("0.bias", []int64{2}, 0, 0)
	tensor("0.num_batches_tracked", nil, 0, 0) // an int64
	tensor("0.running_mean", []int64{2}, 0, 0)
	tensor("0.running_var", []int64{2}, one, one)
	tensor("0.weight", []int64{2}, one, one)
	sum := sha256.Sum256(want)
	if got := train.ParamsSHA256(model); got != hex.EncodeToString(sum[:]) {
		t.Errorf("got %s, want %x", got, sum)
	}
}

func TestParamsSHA256TellsModelsApart(t *testing.T) {
	check(t)
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	hashes := map[string]string{}
	for _, m := range []struct {
		what  string
		model *nn.Sequential
		seed  uint64
	}{
		{"a model", nn.NewSequential(nn.NewLinear(2, 3)), 1},
		{"another seed", nn.NewSequential(nn.NewLinear(2, 3)), 2},
		{"another shape of as many elements", nn.NewSequential(nn.NewLinear(1, 4)), 1},
		{"another name", nn.NewSequential().Add("x", nn.NewLinear(2, 3)), 1},
	} {
		nn.Materialise(c, nn.State(m.model), m.seed)
		h := train.ParamsSHA256(m.model)
		if before, ok := hashes[h]; ok {
			t.Errorf("%s has the hash of %s", m.what, before)
		}
		hashes[h] = m.what
		if again := train.ParamsSHA256(m.model); again != h {
			t.Errorf("%s: hashed twice: %s and %s", m.what, h, again)
		}
		nn.Free(m.model)
	}
}
