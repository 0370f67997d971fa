package pipe_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"penstock/internal/torchtest"
	"penstock/nn"
	"penstock/pipe"
	"penstock/schedule"
)

var policies = []pipe.Checkpoint{pipe.Never, pipe.Always, pipe.ExceptLast}

func balances(layers int) [][]int {
	return [][]int{{layers}, {layers / 2, layers - layers/2}, {1, layers - 2, 1}, {1, 1, layers - 3, 1}}
}

// A pipelined model is the plain model, bit for bit: losses, gradients, parameters and running
// statistics, for every stage count and policy.
func TestTransparency(t *testing.T) {
	torchtest.Check(t)
	for name, q := range map[string]problem{
		"mlp with dropout": {
			model: func() *nn.Sequential {
				return nn.NewSequential(nn.NewFlatten(1, -1), nn.NewLinear(12, 32), nn.NewReLUInPlace(), nn.NewDropout(0.3),
					nn.NewSequential(nn.NewLinear(32, 32), nn.NewTanh(), nn.NewDropout(0.5)), nn.NewLinear(32, 4))
			},
			loss: nn.CrossEntropy(), input: normal(10, 3, 4), target: classes(10, 4), rows: 10, steps: 3,
		},
		"convolutions with batch norm": {
			model: func() *nn.Sequential {
				return nn.NewSequential(nn.NewConv2d(3, 8, nn.Pair{3, 3}, nn.Conv2dConfig{Padding: nn.Pair{1, 1}}),
					nn.NewBatchNorm2d(8, nn.BatchNormConfig{}), nn.NewReLUInPlace(),
					nn.NewBasicBlock(8, 16, 2), nn.NewBasicBlock(16, 16,
						1), nn.NewAdaptiveAvgPool2d(nn.Pair{1, 1}), nn.NewFlatten(1, -1), nn.NewLinear(16, 5))
			},
			loss: nn.CrossEntropy(), input: normal(11, 3, 9, 9), target: classes(11, 5), rows: 11, steps: 3,
		},
	} {
		t.Run(name, func(t *testing.T) {
			torchtest.Check(t)
			want := q.plain(4, 5)
			layers := q.model().Layers()
			for _, balance := range balances(len(layers)) {
				for _, policy := range policies {
					got := q.piped(t, pipe.Config{Balance: balance, Chunks: 4, Checkpoint: policy, Seed: 5})
					if d := want.differs(got); d != "" {
						t.Errorf("balance %v, %v: %s differs from the plain loop", balance, policy, d)
					}
				}
			}
		})
	}
}

// The same for random models, batches, chunks, balances, policies and devices, where stages may
// share a device, and where layers of the pipelined model recompute by themselves.
func TestTransparencyOfRandomModels(t *testing.T) {
	torchtest.Check(t)
	rapid.Check(t, func(t *rapid.T) {
		rows := rapid.Int64Range(1, 9).Draw(t, "rows")
		kinds := rapid.SliceOfN(rapid.IntRange(0, kindCount-1), 1, 10).Draw(t, "layers")
		chunks := rapid.IntRange(1, 6).Draw(t, "chunks")
		seed := rapid.Uint64().Draw(t, "seed")
		q := problem{
			model: func() *nn.Sequential { return randomModel(kinds, nn.Checkpointed) }, rows: rows, steps: 2,
			loss: nn.CrossEntropy(), input: normal(rows, 2, 6, 6), target: classes(rows, 3),
		}
		q.deferred = rapid.Bool().Draw(t, "deferred")
		if rapid.Bool().Draw(t, "sum") {
			q.loss = nn.CrossEntropy().Sum()
		}
		layers := len(q.model().Layers())
		var balance []int
		for left := layers; left > 0; {
			n := rapid.IntRange(1, left).Draw(t, "stage")
			if len(balance) == 4 {
				n = left
			}
			balance, left = append(balance, n), left-n
		}
		cfg := pipe.Config{
			Balance: balance, Chunks: chunks, Checkpoint: rapid.SampledFrom(policies).Draw(t,
				"policy"), DeferredBatchNorm: q.deferred, Seed: seed,
		}
		capacity := rapid.IntRange(schedule.Meet, 2).Draw(t, "capacity")
		cfg.Schedule = func(c schedule.Config) (*schedule.Program, error) {
			if len(slices.Compact(slices.Sorted(slices.Values(c.Worker)))) == c.Stages {
				c.Capacity = capacity
			}
			return schedule.GPipe(c)
		}
		if rapid.Bool().Draw(t, "policies") {
			var mixed []pipe.Checkpoint
			for range balance {
				mixed = append(mixed, rapid.SampledFrom(policies).Draw(t, "policy of a stage"))
			}
			cfg.Checkpoint = pipe.PerStage(mixed...)
		}
		count := rapid.IntRange(1, len(balance)).Draw(t, "devices")
		for range balance {
			cfg.Devices = append(cfg.Devices, devices(count)[rapid.IntRange(0, count-1).Draw(t, "device")])
		}
		q.autocast = rapid.IntRange(0, 3).Draw(t, "autocast") == 0
		cfg.Autocast = q.autocast
		got := q.piped(t, cfg)
		q.model = func() *nn.Sequential { return randomModel(kinds, unwrapped) }
		want := q.plain(int64(chunks), seed)
		if d := want.differs(got); d != "" {
			t.Fatalf("%s differs from the plain loop", d)
		}
	})
}
