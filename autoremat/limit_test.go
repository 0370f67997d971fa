package autoremat_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"penstock.example/autoremat"
	"penstock.example/internal/draws"
	"penstock.example/internal/must"
	"penstock.example/internal/torchtest"
	"penstock.example/models"
	"penstock.example/nn"
	"penstock.example/remat"
	"penstock.example/torch"
)

// mlp has dropout, batch norm, nested Sequentials and layers that work in place.
func mlp() problem {
	return problem{
		name: "mlp",
		model: func() *nn.Sequential {
			return nn.NewSequential(nn.NewLinear(20, 40), nn.NewReLUInPlace(),
				nn.NewSequential(nn.NewLinear(40, 40), nn.NewBatchNorm1d(40, nn.BatchNormConfig{}),
					nn.NewReLU(), nn.NewDropout(0.3)),
				nn.NewLinear(40, 40), nn.NewTanh(), nn.NewDropout(0.1), nn.NewLinear(40, 5))
		},
		input: []int64{16, 20}, target: classes(16, 5), loss: nn.CrossEntropy(),
	}
}

// tower is a model whose activations are most of what it takes.
func tower() problem {
	return problem{
		name: "tower",
		model: func() *nn.Sequential {
			m := nn.NewSequential()
			for range 8 {
				m.Add(fmt.Sprint(m.Len()), nn.NewLinear(32, 32))
				m.Add(fmt.Sprint(m.Len()), nn.NewTanh())
				m.Add(fmt.Sprint(m.Len()), nn.NewDropout(0.2))
			}
			return m.Add("head", nn.NewLinear(32, 4))
		},
		input: []int64{256, 32}, target: classes(256, 4), loss: nn.CrossEntropy(),
	}
}

// zoo is models of all shapes.
func zoo(t testing.TB) []problem {
	built := func(name string, s models.Options) func() *nn.Sequential {
		return func() *nn.Sequential {
			m := must.Get(models.New(name, s))(t)
			return m
		}
	}
	cross := nn.CrossEntropy()
	dense := func() *nn.Sequential {
		m := nn.NewSequential(nn.NewConv2d(1, 4, nn.Square(3), nn.ConvConfig{Padding: nn.Square(1)}))
		for i := range int64(4) {
			from, grow := 4+2*i, &tupled{}
			norm, conv := nn.NewBatchNorm2d(from, nn.BatchNormConfig{}),
				nn.NewConv2d(from, 2, nn.Square(3), nn.ConvConfig{Padding: nn.Square(1)})
			grow.Child("norm", norm)
			grow.Child("conv", conv)
			grow.f = func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
				return []*torch.Tensor{c.Cat([]*torch.Tensor{xs[0], c.Run(xs[0], norm, conv)}, 1)}
			}
			m.Add(fmt.Sprint("grow", i), nn.Tuple(grow, grow.ForwardTuple))
		}
		return m.Add("flat", nn.NewFlatten(1, -1)).Add("head", nn.NewLinear(12*36, 3))
	}
	list := []problem{
		mlp(), tower(),
		{name: "resnet20", model: built("resnet20", models.Options{Width: 4}), input: []int64{4, 3, 32, 32},
			target: classes(4, 10), loss: cross, optimizer: draws.Pick(sgd, nil)},
		{name: "gpt", model: built("gpt",
			models.Options{Width: 16, Heads: 2, Context: 5, Depth: 2,
				Dropout: 0.2}), input: []int64{4, 5}, tokens: 10, target: func(c *torch.Ctx, step int) *torch.Tensor {
			return c.Reshape(classes(20, 10)(c, step), 4, 5)
		}, loss: cross},
		{name: "unet", model: built("unet", models.Options{Convolutions: 2, Width: 4, Depth: 2, Size: 32}),
			input: []int64{4, 3, 32, 32}, target: func(c *torch.Ctx, step int) *torch.Tensor {
				c.SetSeed(uint64(step))
				return c.Normal_(c.Empty(torch.Float32, 4, 1, 32, 32), 0, 1)
			}, loss: nn.MSE()},
		{name: "dense", model: dense, input: []int64{4, 1, 6, 6}, target: classes(4, 3), loss: cross},
	}
	if draws.Full {
		list = append(list, problem{name: "resnet18", model: built("resnet18", models.Options{Classes: 5}),
			input: []int64{4, 3, 32, 32}, target: classes(4, 5), loss: cross, optimizer: sgd})
	}
	return list
}

// TestLimits: under every limit, from the least to what saving everything takes, a module trains as
// the model does and stays within the limit and its prediction.
func TestLimits(t *testing.T) {
	for _, q := range zoo(t) {
		t.Run(q.name, func(t *testing.T) {
			torchtest.Check(t)
			if q.optimizer == nil {
				q.optimizer = adam
			}
			want, most, least := q.run(t, 3, plain, nil, nil), int64(0), q.least(t)
			// trained trains under a limit, and says how many forwards are run again.
			trained := func(limit int64) (again int) {
				o := q.optimizer()
				defer o.Close()
				got := &record{}
				q.with(under(t, limit, o), func(c *torch.Ctx, w wrapped) {
					got = q.train(t, c, w, o, 3, func(int, wrapped) { device.ResetPeak() },
						func(step int, w wrapped) {
							peak := device.Memory().Peak
							if most = max(most, w.m.Predicted()); peak > w.m.Predicted() ||
								w.m.Predicted() > limit {
								t.Errorf("limit %d, step %d: the peak is %d, predicted were %d", limit, step,
									peak, w.m.Predicted())
							}
						})
					for _, op := range w.m.Plan().Stages[0].MicroBatches[0].Ops {
						if op.Kind != remat.Backward && op.Kind != remat.LossStep {
							again++
						} else if op.Kind == remat.Backward {
							again--
						}
					}
				})
				if d := want.differs(got); d != "" {
					t.Errorf("limit %d: %s differs", limit, d)
				}
				return again
			}
			if again := trained(1 << 40); again != 0 || least >= most {
				t.Errorf("%d forwards are run again without a limit, which takes %d; the least limit is %d",
					again, most, least)
			}
			for _, limit := range []int64{least, (least + most) / 2} {
				// whose loss takes most
				if again := trained(limit); again == 0 && limit == least && q.name != "gpt" {
					t.Errorf("limit %d of %d to %d: %d forwards are run again", limit, least, most, again)
				}
			}
		})
	}
}

// The limit may change between steps, and so may what others have on the device.
func TestSetLimit(t *testing.T) {
	q := tower()
	least := q.least(t)
	q.run(t, 3, under(t, 1<<30, nil), func(step int, w wrapped) {
		device.ResetPeak()
		if step == 1 {
			must.Do(t, w.m.SetLimit(least))
		}
	}, func(step int, w wrapped) {
		if fits := device.Memory().Peak <= least; fits != (step > 0) {
			t.Errorf("step %d: the peak is %d, the least limit %d", step, device.Memory().Peak, least)
		}
		if w.m.SetLimit(0) == nil {
			t.Error("a limit of 0 bytes is set")
		}
	})
}

// The default limit is the device's, or what there is less a reserve, as the process takes more than
// the account counts.
func TestWithoutALimit(t *testing.T) {
	text := must.Get(os.ReadFile("/proc/meminfo"))(t)
	_, after, _ := strings.Cut(string(text), "MemAvailable:")
	kib := must.Get(strconv.ParseInt(strings.Fields(after)[0], 10, 64))(t)
	for _, account := range []int64{0, 1 << 31} {
		b := newFixture(t, mlp().model(), autoremat.Config{})
		device.SetLimit(account)
		must.Do(t, b.step(b.normal(16, 20)))
		limit := device.Memory().Limit
		b.m.Close()
		device.SetLimit(0)
		if limit < 1<<20 || account == 0 && limit > kib<<10*11/10 || account > 0 && limit != account {
			t.Errorf("the limit is %d, the account's %d, and %d KiB are free", limit, account, kib)
		}
	}
	for _, tt := range []struct {
		free, want int64
		reason     string
	}{
		{64 << 30, 64 << 30 / 10, "a tenth"},
		{200 << 20, 64 << 20, "the least"},
		{100 << 20, 50 << 20, "half of what there is"},
		{0, 0, "nothing is free"},
	} {
		if got := autoremat.ReserveOf(tt.free); got != tt.want {
			t.Errorf("of %d bytes %d are reserved, want %d: %s", tt.free, got, tt.want, tt.reason)
		}
	}
}
