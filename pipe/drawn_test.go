package pipe_test

import (
	"slices"

	"pgregory.net/rapid"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// drawn is a training run drawn at random, as data: any process can do its part of it.
type drawn struct {
	Kinds       []int // of the layers, for randomModel
	Rows, Short int64 // of the batches; of one between others
	Chunks      int
	Seed        uint64
	Deferred    bool
	Autocast    torch.Autocast
	Order       order
	Checkpoint  pipe.Checkpoint
	Budget      []int64
	Replicas    []int // the device of each, in a process of its own; nil is one
	OnDevices   bool  // the devices are those for tests; see placed
	Mishap      mishap
}

// drawRun draws a run on at least so many devices.
func drawRun(t *rapid.T, devices int) (d drawn) {
	d.Rows = rapid.Int64Range(1, 9).Draw(t, "rows")
	d.Short = d.Rows
	kind := rapid.OneOf(anyKind, rapid.SampledFrom([]int{1, 4, 18, 19, 20, 21, 22})) // more of what crosses stages
	d.Kinds = rapid.SliceOfN(kind, max(2, devices), devices+8).Filter(func(kinds []int) bool {
		return len(randomModel(kinds, nn.Checkpointed).Layers()) >= devices
	}).Draw(t, "layers")
	d.Chunks, d.Seed = rapid.IntRange(1, 6).Draw(t, "chunks"), rapid.Uint64().Draw(t, "seed")
	d.Deferred, d.Autocast = rapid.Bool().Draw(t, "deferred"), randomAutocast(t)
	d.Order = drawOrder(t, len(d.problem().model().Layers()), devices, max(4, devices))
	var mixed []pipe.Checkpoint
	for range d.Order.Balance {
		mixed = append(mixed, rapid.SampledFrom(policies).Draw(t, "policy"))
	}
	d.Checkpoint = pipe.PerStage(mixed...)
	if rapid.IntRange(0, 3).Draw(t, "optimal") == 0 {
		cfg := d.config()
		d.problem().randomBudgets(t, &cfg)
		d.Checkpoint, d.Budget = cfg.Checkpoint, cfg.Budget
	}
	if d.Budget == nil {
		d.Short = rapid.Int64Range(1, d.Rows).Draw(t, "rows of the short batch")
	}
	return d
}

func (d drawn) problem() problem {
	rows := func(step int) int64 {
		if step == 1 {
			return d.Short
		}
		return d.Rows
	}
	return problem{
		model: func() *nn.Sequential { return randomModel(d.Kinds, nn.Checkpointed) }, rows: d.Rows, steps: 3,
		loss:   nn.CrossEntropy(),
		input:  func(c *torch.Ctx, step int) *torch.Tensor { return normal(rows(step), 2, 6, 6)(c, step) },
		target: func(c *torch.Ctx, step int) *torch.Tensor { return classes(rows(step), 3)(c, step) },
	}
}

func (d drawn) config() pipe.Config {
	cfg := pipe.Config{Chunks: d.Chunks, Seed: d.Seed, DeferredBatchNorm: d.Deferred, Autocast: d.Autocast, Checkpoint: d.Checkpoint, Budget: d.Budget}
	d.Order.set(&cfg)
	return cfg
}

// placed is config on the devices for tests, if the run is to be on them.
func (d drawn) placed() pipe.Config {
	cfg := d.config()
	for i := range cfg.Devices {
		if d.OnDevices {
			cfg.Devices[i] = torchtest.Device(cfg.Devices[i].Index)
		}
	}
	return cfg
}

// devices is how many there are, each counted once.
func (d drawn) devices() int {
	distinct := slices.Clone(d.Order.Devices)
	slices.Sort(distinct)
	return len(slices.Compact(distinct))
}
