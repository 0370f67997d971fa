package autoremat_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"penstock.example/autoremat"
	"penstock.example/internal/draws"
	"penstock.example/internal/torchtest"
	"penstock.example/models"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/planner"
	"penstock.example/remat"
	"penstock.example/torch"
)

func adam() optim.Optimizer {
	o, err := optim.Adam(optim.Config{LR: 0.01})
	if err != nil {
		panic(err)
	}
	return o
}

// sgd keeps nothing and needs nothing.
func sgd() optim.Optimizer {
	o, err := optim.SGD(optim.Config{LR: 0.01})
	if err != nil {
		panic(err)
	}
	return o
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
			m, err := models.New(name, s)
			if err != nil {
				t.Fatal(err)
			}
			return m
		}
	}
	cross := nn.CrossEntropy()
	dense := func() *nn.Sequential {
		m := nn.NewSequential(nn.NewConv2d(1, 4, nn.Square(3), nn.Conv2dConfig{Padding: nn.Square(1)}))
		for i := range int64(4) {
			from, grow := 4+2*i, &tupled{}
			norm, conv := nn.NewBatchNorm2d(from, nn.BatchNormConfig{}), nn.NewConv2d(from, 2, nn.Square(3), nn.Conv2dConfig{Padding: nn.Square(1)})
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
		{name: "resnet20", model: built("resnet20", models.Options{Width: 4}), input: []int64{4, 3, 32, 32}, target: classes(4, 10), loss: cross, optimizer: draws.Pick(sgd, nil)},
		{name: "gpt", model: built("gpt", models.Options{Width: 16, Heads: 2, Context: 5, Depth: 2, Dropout: 0.2}), input: []int64{4, 5}, tokens: 10, target: func(c *torch.Ctx, step int) *torch.Tensor {
			return c.Reshape(classes(20, 10)(c, step), 4, 5)
		}, loss: cross},
		{name: "unet", model: built("unet", models.Options{Convolutions: 2, Width: 4, Depth: 2, Size: 32}), input: []int64{4, 3, 32, 32}, target: func(c *torch.Ctx, step int) *torch.Tensor {
			c.SetSeed(uint64(step))
			return c.Normal_(c.Empty(torch.Float32, 4, 1, 32, 32), 0, 1)
		}, loss: nn.MSE()},
		{name: "dense", model: dense, input: []int64{4, 1, 6, 6}, target: classes(4, 3), loss: cross},
	}
	if draws.Full {
		list = append(list, problem{name: "resnet18", model: built("resnet18", models.Options{Classes: 5}), input: []int64{4, 3, 32, 32}, target: classes(4, 5), loss: cross, optimizer: sgd})
	}
	return list
}

// TestLimits: under every limit, from the least to the peak of plain training, a module trains as
// the model does and stays within the limit. Its prediction is the peak that the account counts.
func TestLimits(t *testing.T) {
	for _, q := range zoo(t) {
		t.Run(q.name, func(t *testing.T) {
			torchtest.Check(t)
			if q.optimizer == nil {
				q.optimizer = adam
			}
			alone := int64(0)
			want := q.run(t, 3, plain, func(int, wrapped) { device.ResetPeak() }, func(int, wrapped) { alone = max(alone, device.Memory().Peak) })
			least := q.refusal(t, 1).Least
			if e := q.refusal(t, least-1); e.Least != least || e.SetBy == "" {
				t.Errorf("with one byte too few: %v", e)
			}
			most := int64(0)
			q.under(t, 1<<40, func(step int, m *autoremat.Module) { most = max(most, device.Memory().Peak) })
			if least >= most || most != alone {
				t.Errorf("the least limit is %d, saving everything takes %d, the model alone %d", least, most, alone)
			}
			for _, limit := range []int64{least, least + (most-least)/3, least + 2*(most-least)/3, most - 1, most} {
				got, m := q.under(t, limit, func(step int, m *autoremat.Module) {
					if peak := device.Memory().Peak; peak != m.Predicted() || peak > limit {
						t.Errorf("limit %d, step %d: the peak is %d, predicted were %d", limit, step, peak, m.Predicted())
					}
				})
				if d := want.differs(got); d != "" {
					t.Errorf("limit %d: %s differs", limit, d)
				}
				if again := recomputed(t, m); (again == 0) != (limit == most) {
					t.Errorf("limit %d of %d to %d: %d forwards are run again", limit, least, most, again)
				}
			}
		})
	}
}

func recomputed(t *testing.T, m *autoremat.Module) int {
	t.Helper()
	p, err := m.Plan()
	if err != nil {
		t.Fatal(err)
	}
	chain, err := m.Chain()
	if err != nil {
		t.Fatal(err)
	}
	report, err := remat.Check(chain.Chain, p.Ops)
	if err != nil {
		t.Fatal(err)
	}
	return report.Recomputed
}

// config knows all that comes.
func (q problem) config(limit int64, o optim.Optimizer) autoremat.Config {
	return autoremat.Config{Limit: limit, Optimizer: o, Loss: q.loss, Warmup: 1, Repeats: 1}
}

// under trains under a limit. after is told of each step.
func (q problem) under(t *testing.T, limit int64, after func(step int, m *autoremat.Module)) (*record, *autoremat.Module) {
	t.Helper()
	o := q.optimizer()
	made := q.optimizer
	defer func() { q.optimizer = made }()
	var module *autoremat.Module
	q.optimizer = func() optim.Optimizer { return o }
	got := q.run(t, 3, func(c *torch.Ctx, m *nn.Sequential) wrapped {
		w := q.planned(t, q.config(limit, o), nil)(c, m)
		module = w.m
		return w
	}, func(int, wrapped) { device.ResetPeak() }, func(step int, w wrapped) { after(step, w.m) })
	return got, module
}

// refusal is the error of a limit that is too low.
func (q problem) refusal(t *testing.T, limit int64) planner.Shortage {
	t.Helper()
	c := torch.NewCtx(torch.Options{Device: device, Threads: 1})
	defer c.Close()
	model := q.model()
	defer nn.Free(model)
	nn.Materialise(c, nn.State(model), 3)
	o := q.optimizer()
	defer o.Close()
	m, err := autoremat.New(model, q.config(limit, o))
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	x, y := q.x(c, 0), q.target(c, 0)
	c.SetGrad(true)
	n := nn.NewCtx(c, nn.Config{Training: true})
	if err := m.Measure(context.Background(), n, autoremat.Sample{Input: []*torch.Tensor{x}, Target: []*torch.Tensor{y}}); err != nil {
		t.Fatal(err)
	}
	_, err = m.Run(n, x)
	var e *planner.MemoryError
	if !errors.As(err, &e) || !errors.Is(err, torch.ErrOutOfMemory) || !strings.Contains(err.Error(), fmt.Sprint(e.Least())) {
		t.Fatalf("limit %d: got %v", limit, err)
	}
	return e.Stages[0]
}
