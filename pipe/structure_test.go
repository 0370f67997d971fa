package pipe_test

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// A pipe is a list of the model's flattened layers, under the names that they have in the model, on
// whatever stage.
func TestPipeIsASequenceOfLayers(t *testing.T) {
	torchtest.Check(t)
	model := nn.NewSequential().Add("a", nn.NewLinear(2, 2)).Add("b",
		nn.NewSequential(nn.NewTanh(), nn.NewLinear(2, 2))).Add("c", nn.NewTanh())
	for _, balance := range cuts(4, 4) {
		p, err := pipe.New(model, pipe.Config{Balance: balance})
		if err != nil {
			t.Fatal(err)
		}
		var names, staged, states []string
		for _, l := range p.Layers() {
			names = append(names, l.Name)
		}
		for _, s := range p.Stages() {
			for _, l := range s.Layers {
				staged = append(staged, l.Name)
			}
			for _, q := range s.State() {
				states = append(states, q.Name)
			}
		}
		want := []string{"a", "b.0", "b.1", "c"}
		if p.Len() != 4 || !reflect.DeepEqual(names, want) || !reflect.DeepEqual(staged, want) {
			t.Errorf("balance %v: %d layers %v, by stage %v, want %v", balance, p.Len(), names, staged, want)
		}
		if want := []string{"a.weight", "a.bias", "b.1.weight", "b.1.bias"}; !reflect.DeepEqual(states, want) {
			t.Errorf("balance %v: parameters %v, want %v", balance, states, want)
		}
		if p.Model() != model {
			t.Error("the pipe's model is another")
		}
		p.Close()
	}
	nn.Free(model)
}

// Parameters and buffers are made on the device of their stage and nowhere else, and move when the
// model is cut anew.
func TestParametersLiveOnTheirStage(t *testing.T) {
	torchtest.Check(t)
	model := nn.NewSequential(nn.NewLinear(8, 8), nn.NewBatchNorm1d(8, nn.BatchNormConfig{}), nn.NewLinear(8, 3))
	defer nn.Free(model)
	sizes := []int64{(64 + 8) * 4, 4*8*4 + 8, (24 + 3) * 4} // of the layers, in bytes
	var base [3]int64
	for i := range base {
		base[i] = torch.CPU(i).Memory().Live
	}
	for _, balance := range cuts(3, 3) {
		p, err := pipe.New(model, pipe.Config{Balance: balance})
		if err != nil {
			t.Fatal(err)
		}
		first := 0
		for i := range base {
			want := int64(0)
			if i < len(balance) {
				for _, n := range sizes[first : first+balance[i]] {
					want += n
				}
				first += balance[i]
			}
			if got := torch.CPU(i).Memory().Live - base[i]; got != want {
				t.Errorf("balance %v: %d bytes on cpu:%d, want %d", balance, got, i, want)
			}
		}
		p.Close()
	}
}

// Convert makes every floating-point parameter and buffer another type, and leaves counts as they
// are.
func TestConvert(t *testing.T) {
	torchtest.Check(t)
	model := nn.NewSequential(nn.NewLinear(4, 4), nn.NewBatchNorm1d(4, nn.BatchNormConfig{}), nn.NewLinear(4, 2))
	p := started(t, model, pipe.Config{Balance: []int{1, 1, 1}, Chunks: 2})
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	for _, d := range []torch.DType{torch.Float64, torch.BFloat16, torch.Float32} {
		if err := p.Convert(context.Background(), d); err != nil {
			t.Fatal(err)
		}
		for _, s := range nn.State(model) {
			want := d
			if s.Name == "1.num_batches_tracked" {
				want = torch.Int64
			}
			if s.Tensor().DType() != want {
				t.Errorf("converted to %v: %s is %v", d, s.Name, s.Tensor())
			}
		}
		b := pipe.Batch{Input: pipe.Rows(c.To(normal(4, 4)(c, 0), d)), Target: pipe.Rows(c.To(normal(4, 2)(c, 1), d))}
		if _, err := p.Step(context.Background(), b, mean{}); err != nil { // aten::mse_loss knows no bfloat16 on CPU
			t.Errorf("%v: %v", d, err)
		}
		nn.ZeroGrads(model)
	}
	for _, d := range []torch.DType{torch.Int64, torch.Bool} {
		if err := p.Convert(context.Background(), d); err == nil || !strings.Contains(err.Error(),
			fmt.Sprintf("cannot be converted to %v; want a floating-point type", d)) {
			t.Errorf("got %v", err)
		}
	}
}
