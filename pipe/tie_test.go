package pipe_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// tied is a language model in small: the embedding's weight is that of the head, and where there is
// a middle, of that as well.
func tied(middle, frozen bool) *nn.Sequential {
	e := nn.NewEmbedding(6, 4, nn.EmbeddingConfig{})
	if frozen {
		e.Weight.Freeze()
	}
	use := func(f func(c *nn.Ctx, x, w *torch.Tensor) *torch.Tensor) *call {
		l := &call{}
		l.p = l.Share("weight", e.Weight)
		l.f = func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return f(c, x, l.p.Tensor()) }
		return l
	}
	model := nn.NewSequential(e, nn.NewLinear(4, 4))
	if middle {
		model.Add("middle", use(func(c *nn.Ctx, x, w *torch.Tensor) *torch.Tensor {
			return c.Tanh(c.Matmul(c.PlainLinear(x, w, nil), w))
		}))
	}
	return model.Add("norm", nn.NewLayerNorm([]int64{4}, nn.LayerNormConfig{})).Add("head",
		use(func(c *nn.Ctx, x, w *torch.Tensor) *torch.Tensor { return c.PlainLinear(x, w, nil) }))
}

func tokens(rows int64) trial {
	return trial{rows: rows, inputs: one(classes(rows, 6)), targets: one(classes(rows, 6)), loss: nn.CrossEntropy(), steps: 3}
}

// A parameter on two or three stages has the values and the gradients that it has on one, bit for
// bit, over steps of the optimizer in between, also where it is frozen.
func TestTiedParameters(t *testing.T) {
	torchtest.Check(t)
	for _, row := range []struct{ middle, frozen bool }{{false, false}, {true, false}, {true, true}} {
		q := tokens(7)
		q.model = func() *nn.Sequential { return tied(row.middle, row.frozen) }
		want := q.check(t, 3)
		if got := want.values["gradient of 0.weight at step 2"]; (got == nil) != row.frozen {
			t.Errorf("middle %v, frozen %v: gradient %v", row.middle, row.frozen, got)
		}
	}
	// Two handles on a stage that is not the first.
	q := tokens(5)
	q.model = func() *nn.Sequential {
		a := nn.NewEmbedding(6, 4, nn.EmbeddingConfig{})
		twice := &call{}
		x, y := twice.Share("down", a.Weight), twice.Share("up", a.Weight)
		twice.f = func(c *nn.Ctx, v *torch.Tensor) *torch.Tensor {
			return c.PlainLinear(c.Matmul(c.Tanh(c.PlainLinear(v, x.Tensor(), nil)), y.Tensor()), x.Tensor(), nil)
		}
		return nn.NewSequential(a, nn.NewTanh(), twice)
	}
	q.check(t, 2)
}

// The parameter lives on the first of its stages, where it is listed once; the others hold a copy
// of it on another device, and none on the same.
func TestTiedParameterLivesOnItsFirstStage(t *testing.T) {
	torchtest.Check(t)
	const weight = 6 * 4 * 4
	for _, row := range []struct {
		devices []torch.Device
		want    [3]int64 // bytes, of the weight alone, by device
	}{
		{cpus(3), [3]int64{weight, weight, weight}},
		{[]torch.Device{torch.CPU(1), torch.CPU(0), torch.CPU(1)}, [3]int64{weight, weight, 0}},
		{[]torch.Device{torch.CPU(2), torch.CPU(2), torch.CPU(2)}, [3]int64{0, 0, weight}},
	} {
		var before [3]int64
		for i := range before {
			before[i] = torch.CPU(i).Memory().Live
		}
		model := tied(true, false)
		p := started(t, model, pipe.Config{Balance: []int{1, 2, 2}, Devices: row.devices, Chunks: 2})
		for i := range before {
			got := torch.CPU(i).Memory().Live - before[i]
			for s, d := range row.devices {
				for _, q := range p.Stages()[s].State() {
					if d == torch.CPU(i) && q.Name != "0.weight" {
						got -= q.Numel() * 4
					}
				}
			}
			if got != row.want[i] {
				t.Errorf("on %v: the weight takes %d bytes of cpu:%d, want %d", row.devices, got, i, row.want[i])
			}
		}
		var names []string
		for i, s := range p.Stages() {
			for _, q := range s.Params() {
				if q.Owner() == nn.State(model)[0].Owner() {
					names = append(names, fmt.Sprint(i, " ", q.Name))
				}
			}
		}
		if want := []string{"0 0.weight"}; !reflect.DeepEqual(names, want) {
			t.Errorf("the weight is listed as %v, want %v", names, want)
		}
		p.Close()
		nn.Free(model)
	}
}

// The copies follow the parameter from run to run, whatever changed it: an optimizer, new bytes, a
// new tensor.
func TestTiedParameterIsFollowed(t *testing.T) {
	torchtest.Check(t)
	for _, shared := range []bool{false, true} {
		model := tied(true, false)
		cfg := pipe.Config{Balance: []int{1, 2, 2}, Chunks: 2}
		if shared {
			cfg.Devices = make([]torch.Device, 3)
		}
		p := started(t, model, cfg)
		c := torch.NewCtx(torch.Options{Threads: 1})
		defer c.Close()
		x := classes(6, 6)(c, 0)
		w := nn.State(model)[0].Param
		same := func(when string) {
			t.Helper()
			got, err := eval(p, context.Background(), x)
			if err != nil {
				t.Fatal(err)
			}
			defer got.Free()
			fresh := tied(true, false)
			defer nn.Free(fresh)
			for i, s := range nn.State(fresh) {
				s.SetTensor(c.Keep(c.Clone(c.Detach(nn.State(model)[i].Tensor()))))
			}
			var want []float32 // of each micro-batch
			for row := int64(0); row < x.Size(0); row += x.Size(0) / 2 {
				want = append(want, torch.Values[float32](fresh.Forward(nn.NewCtx(c, nn.Config{}), c.Narrow(x, 0, row, x.Size(0)/2)))...)
			}
			if !slices.Equal(torch.Values[float32](got), want) {
				t.Errorf("same device %v, %s: the output is not that of the changed weight", shared, when)
			}
		}
		same("at first")
		c.MulScalar_(c.Detach(w.Tensor()), 2)
		same("scaled in place")
		values := torch.Bytes(w.Tensor())
		values[3] ^= 0x81 // sign and exponent of the first
		if err := torch.SetBytes(w.Tensor(), values); err != nil {
			t.Fatal(err)
		}
		same("with other bytes")
		w.SetTensor(c.Keep(normal(6, 4)(c, 9)))
		same("with another tensor")
	}
}

// A buffer that stages share would not be the same on both: batch norms whose running statistics
// are shared must stay together.
func TestBuffersAreNotSharedAcrossStages(t *testing.T) {
	torchtest.Check(t)
	build := func() *nn.Sequential {
		first, second := &call{}, &call{}
		mean := first.Buffer("mean", torch.Float32, nn.Zeros, 4)
		second.Share("mean", mean)
		first.f = func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.Add(x, mean.Tensor()) }
		second.f = first.f
		return nn.NewSequential(first, second, nn.NewLinear(4, 4))
	}
	var refused *pipe.ConfigError
	if _, err := pipe.New(build(), pipe.Config{Balance: []int{1, 2}}); !errors.As(err,
		&refused) || refused.Field != "Balance" || !strings.Contains(err.Error(), `buffer "1.mean" of stage 1 is also "0.mean"`) {
		t.Errorf("got %v", err)
	}
	started(t, build(), pipe.Config{Balance: []int{2, 1}})
}
