package pipe_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"sort"
	"testing"

	"penstock.example/internal/draws"
	"penstock.example/internal/torchtest"
	"penstock.example/models"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// Twenty steps of SGD with momentum, four in a quick run, leave the same weights, bit for bit, for
// 1 to 4 stages and every policy, and the same as a plain loop.
func TestTwentyStepsAreBitEqual(t *testing.T) {
	torchtest.Check(t)
	const rows, chunks, seed = 6, 3, 1
	steps, width, size := draws.Pick(4, 20), draws.Pick(4, 16), draws.Pick[int64](16, 28)
	for _, row := range []struct {
		name     string
		options  models.Options
		balances [][]int
		shape    []int64
	}{
		{"resnet20", models.Options{Channels: 1, Width: width}, [][]int{{11}, {5, 6}, {4, 3, 4}, {2, 3, 3, 3}}, []int64{rows, 1, size, size}},
		{"mlp", models.Options{Channels: 1, Dropout: 0.2, Size: int(size), Width: 16 * width}, nil, []int64{rows, 1, size, size}},
	} {
		t.Run(row.name, func(t *testing.T) {
			torchtest.Check(t)
			build := func() *nn.Sequential {
				m, err := models.New(row.name, row.options)
				if err != nil {
					t.Fatal(err)
				}
				return m
			}
			if row.balances == nil {
				row.balances = balances(len(build().Layers()))
			}
			q := problem{input: normal(row.shape...), target: classes(rows, 10), rows: rows, loss: nn.CrossEntropy()}
			want := plainHash(t, q, build(), steps, chunks, seed)
			for _, balance := range row.balances {
				for _, policy := range policies {
					cfg := pipe.Config{Balance: balance, Chunks: chunks, Checkpoint: policy, Seed: seed}
					if got := pipedHash(t, q, build(), steps, cfg); got != want {
						t.Errorf("balance %v, %v: weights %s, the plain loop's %s", balance, policy, got, want)
					}
				}
			}
		})
	}
}

func sgd(t *testing.T) optim.Optimizer {
	o, err := optim.SGD(optim.Config{LR: 0.05, Momentum: 0.9, WeightDecay: 1e-4})
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func plainHash(t *testing.T, q problem, model *nn.Sequential, steps int, chunks int64, seed uint64) string {
	d := torchtest.Device(0)
	c := torch.NewCtx(torch.Options{Device: d, Threads: 1})
	defer c.Close()
	b := torch.NewCtx(torch.Options{Device: aside, Threads: 1})
	defer b.Close()
	defer nn.Free(model)
	nn.Materialise(c, nn.State(model), seed)
	o := sgd(t)
	defer o.Close()
	for step := range steps {
		x, y := onDevice(b, d, q.input(b, step)), onDevice(b, d, q.target(b, step))
		per := q.rows / chunks
		for i := range chunks {
			c.SetGrad(true)
			n := nn.NewCtx(c, nn.Config{Training: true, MicroBatch: int(i), MicroBatches: int(chunks),
				Seed: torch.Mix(seed, uint64(step))})
			loss := q.loss.Forward(n, model.Forward(n, c.Narrow(x, 0, i*per, per)), c.Narrow(y, 0, i*per, per))
			c.SetGrad(false)
			c.Backward([]*torch.Tensor{loss}, []*torch.Tensor{c.Fill_(c.EmptyLike(loss), float64(per)/float64(q.rows))}, false)
		}
		o.Step(c, nn.Params(model))
		nn.ZeroGrads(model)
		c.Close()
		b.Close()
	}
	return hash(model)
}

func pipedHash(t *testing.T, q problem, model *nn.Sequential, steps int, cfg pipe.Config) string {
	p, err := pipe.New(model, onDevices(cfg))
	if err != nil {
		t.Fatal(err)
	}
	defer nn.Free(model)
	defer p.Close()
	c := torch.NewCtx(torch.Options{Threads: 1, Device: aside})
	defer c.Close()
	o := sgd(t)
	defer o.Close()
	for step := range steps {
		if _, err := p.Step(context.Background(), q.batch(c, p.Stages(), step), q.loss); err != nil {
			t.Fatal(err)
		}
		if err := p.OnStages(context.Background(), func(stage int, c *torch.Ctx) error {
			o.Step(c, p.Stages()[stage].Params())
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		nn.ZeroGrads(model)
		c.Close()
	}
	return hash(model)
}

func hash(model nn.Module) string {
	state := nn.State(model)
	sort.Slice(state, func(i, j int) bool { return state[i].Name < state[j].Name })
	h := sha256.New()
	for _, s := range state {
		fmt.Fprint(h, s.Name, s.Shape())
		h.Write(torch.Bytes(s.Tensor()))
	}
	return fmt.Sprintf("%x", h.Sum(nil)[:8])
}
