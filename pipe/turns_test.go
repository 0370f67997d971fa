package pipe_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"penstock.example/internal/must"
	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// troubled passes its input on, counts, and makes trouble when it is its turn.
type troubled struct {
	nn.Base
	trouble *trouble
}

func (l *troubled) Forward(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
	l.trouble.turn()
	return c.Op("aten::tanh", x)
}

// trouble happens at the at-th turn, 0 for never, whoever's that is.
type trouble struct {
	turns, at atomic.Int64
	do        func()
}

func (b *trouble) turn() {
	if b.turns.Add(1) == b.at.Load() {
		b.do()
	}
}

// troubledLoss and troubledOptimizer have their turns as well.
type troubledLoss struct {
	squares
	*trouble
}

func (l troubledLoss) Forward(c *nn.Ctx, y, t *torch.Tensor) *torch.Tensor {
	l.turn()
	return l.squares.Forward(c, y, t)
}

type troubledOptimizer struct {
	optim.Optimizer
	*trouble
}

func (o troubledOptimizer) Prepare(c *torch.Ctx, params []nn.NamedParam) optim.Update {
	o.turn()
	return troubledUpdate{o.Optimizer.Prepare(c, params), o.trouble}
}

type troubledUpdate struct {
	optim.Update
	*trouble
}

func (u troubledUpdate) Drop() {
	u.Update.Drop()
	u.turn()
}

// Whatever a user's code does in its turn, on random pipes, in any call: the call returns, nothing
// stays allocated, and the pipe then gives what it gave before.
func TestTroubleAtAnyTurn(t *testing.T) {
	for seed := range uint64(40) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			torchtest.Check(t)
			random := rand.New(rand.NewPCG(seed, 1))
			b := &trouble{}
			model := nn.NewSequential()
			layers := 2 + random.IntN(4)
			for range layers {
				model.Add(fmt.Sprint("linear", model.Len()), nn.NewLinear(4, 4))
				var l nn.Layer = &troubled{trouble: b}
				if random.IntN(3) == 0 {
					l = nn.Checkpointed(l)
				}
				model.Add(fmt.Sprint("trouble", model.Len()), l)
			}
			stages := 1 + random.IntN(4)
			cfg := pipe.Config{Chunks: 1 + random.IntN(4),
				Checkpoint: []pipe.Checkpoint{pipe.ExceptLast, pipe.Never, pipe.Always,
					pipe.Optimal}[random.IntN(4)], Threads: 1 + random.IntN(2), Record: random.IntN(2) == 0}
			for range stages {
				cfg.Balance = append(cfg.Balance, 2*layers/stages)
			}
			cfg.Balance[0] += 2*layers - stages*(2*layers/stages)
			if cfg.Checkpoint != pipe.Optimal {
				for i := range stages {
					cfg.Devices = append(cfg.Devices, torch.CPU(i%(1+random.IntN(stages))))
				}
			}
			p := started(t, model, cfg)
			first, last := torch.NewCtx(torch.Options{Threads: 1, Device: p.Stages()[0].Device}),
				torch.NewCtx(torch.Options{Threads: 1, Device: p.Stages()[stages-1].Device})
			defer first.Close()
			defer last.Close()
			batch := pipe.Batch{Input: pipe.Rows(normal(5, 4)(first, 0)),
				Target: pipe.Rows(normal(5, 4)(last, 1))}
			ones := last.Ones(torch.Float32, 5, 4)
			sgd := must.Get(optim.SGD(optim.Config{LR: 0}))(t)
			if cfg.Checkpoint == pipe.Optimal { // while layers are measured
				for _, do := range []func(){func() { panic("trouble") }, func() { panic(p.Close()) }} {
					b.turns.Store(0)
					b.at.Store(1 + random.Int64N(4))
					b.do = do
					if err := within(func() error {
						_, err := p.PlanFor(context.Background(), batch, troubledLoss{trouble: b})
						return err
					}); err == nil {
						t.Error("trouble while layers were measured: no error")
					}
				}
				b.at.Store(0)
			}
			calls := []func(ctx context.Context) (any, error){
				func(ctx context.Context) (any, error) {
					r, err := p.Step(ctx, batch, troubledLoss{trouble: b})
					return r.Loss, err
				},
				func(ctx context.Context) (any, error) {
					y, err := eval(p, ctx, batch.Input[0].Tensor)
					if err != nil {
						return nil, err
					}
					defer y.Free()
					return string(torch.Bytes(y)), nil
				},
				func(ctx context.Context) (any, error) {
					run, err := p.Forward(ctx, batch)
					if err != nil {
						return nil, err
					}
					defer run.Close()
					if err := run.BackwardRetained(ctx, ones); err != nil {
						return nil, err
					}
					return nil, run.Backward(ctx, ones)
				},
				func(ctx context.Context) (any, error) {
					return nil,
						p.Update(ctx, troubledOptimizer{sgd, b})
				},
				func(ctx context.Context) (any, error) {
					return nil, p.OnStages(ctx, func(int, *torch.Ctx) error { b.turn(); return nil })
				},
			}
			for i, call := range calls {
				ctx, cancel := context.WithCancel(context.Background())
				run := func() (out any, err error) {
					err = within(func() (err error) { out, err = call(ctx); return err })
					return out, err
				}
				if _, err := run(); err != nil { // the first may measure layers, which have more turns then
					t.Fatal(err)
				}
				nn.ZeroGrads(model)
				b.turns.Store(0)
				want := must.Get(run())(t)
				nn.ZeroGrads(model)
				turns, live := b.turns.Load(), liveBytes(4)
				for _, way := range []struct {
					name string
					do   func()
				}{{"panic", func() { panic("trouble") }},
					{"cancel", func() { cancel() }}, {"Close", func() { panic(p.Close()) }}} {
					b.turns.Store(0)
					b.at.Store(1 + random.Int64N(max(turns, 1)))
					b.do = way.do
					got, err := run()
					switch {
					// after the last action it is too late
					case turns == 0 || way.name == "cancel" && err == nil:
						if got != want {
							t.Errorf("call %d, %s: got %v, want %v", i, way.name, got, want)
						}
					case err == nil:
						t.Errorf("call %d, %s at turn %d of %d: no error", i, way.name, b.at.Load(), turns)
					case way.name == "Close" && !errors.Is(err, pipe.ErrNested),
						way.name == "cancel" && !errors.Is(err, context.Canceled):
						t.Errorf("call %d, %s: got %v", i, way.name, err)
					}
					b.at.Store(0)
					ctx, cancel = context.WithCancel(context.Background())
					nn.ZeroGrads(model)
					if now := liveBytes(4); now != live {
						t.Errorf("call %d, %s: %s live, before %s", i, way.name, now, live)
					}
					if got, err := run(); err != nil || got != want {
						t.Errorf("call %d after %s: got %v, %v; want %v", i, way.name, got, err, want)
					}
					nn.ZeroGrads(model)
				}
				cancel()
			}
		})
	}
}
