package train

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"

	"penstock.example/data"
	"penstock.example/group"
	"penstock.example/internal/arg"
	"penstock.example/internal/system"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/plan"
	"penstock.example/profile"
	"penstock.example/torch"
)

// MeasureConfig describes the training for which layers are measured. Measurements vary, and so may what is
// chosen by them.
type MeasureConfig struct {
	Batch  int // rows
	Chunks int // micro-batches; 0 is 1
	// Profile has the device, and how the layers will be run. The Loss has no Target yet.
	Profile profile.Config
	// Group is the processes that train the model together. All call what takes the configuration. Rank 0
	// measures for all. Nil is this process alone.
	Group *group.Group
}

// onFirstRows measures with a micro-batch of the first rows of a data set.
func onFirstRows[T any](ctx context.Context, c MeasureConfig, what string, set data.Dataset,
	measure func(config profile.Config, input *torch.Tensor) (T, error)) (out T, err error) {
	if err := cmp.Or(arg.AtLeast("train", "Samples", set.Len(), 1),
		arg.AtLeast("train", "Batch", c.Batch, 1), arg.AtLeast("train", "Chunks", c.Chunks, 0)); err != nil {
		return out, err
	}
	batch := min(c.Batch, set.Len())
	chunks := min(max(c.Chunks, 1), batch)
	sample, err := firstRows(set, (batch+chunks-1)/chunks)
	if err != nil {
		return out, err
	}
	return group.FromFirst(ctx, c.Group, "train: "+what, func() (out T, err error) {
		on := torch.NewCtx(torch.Options{Device: c.Profile.Device, Threads: besideStages})
		defer on.Close()
		defer system.TrimProcess()
		config := c.Profile
		var input *torch.Tensor
		if err := torch.Try(func() {
			if input = tensorOf(on, sample.Input); config.Loss != nil {
				config.Target = []*torch.Tensor{tensorOf(on, sample.Target)}
			}
		}); err != nil {
			return out, fmt.Errorf("train: %s: %w", what, err)
		}
		return measure(config, input)
	})
}

// Measure measures the layers of a model, which need not be materialised, with a micro-batch of the
// first rows of a data set.
func Measure(ctx context.Context, model *nn.Sequential, set data.Dataset,
	config MeasureConfig) (profile.Profile, error) {
	return onFirstRows(ctx, config, "timing layers", set,
		func(c profile.Config, input *torch.Tensor) (profile.Profile, error) {
			return profile.Measure(ctx, model, c, input)
		})
}

// MadeUp is a data set of made-up samples, to measure with.
func MadeUp(samples data.Info, rows int, seed uint64) data.Dataset {
	return &madeUp{samples, rows, seed}
}

type madeUp struct {
	info data.Info
	rows int
	seed uint64
}

func (m *madeUp) Len() int        { return m.rows }
func (m *madeUp) Info() data.Info { return m.info }

// Fill makes up numbers by a normal distribution, and a token or a class for each position.
func (m *madeUp) Fill(b *data.Batch, indices []int) error {
	r := rand.New(rand.NewPCG(m.seed, 0))
	b.Rows = len(indices)
	b.Input.Reset(b.Rows, m.info.Input)
	b.Target.Reset(b.Rows, m.info.Target)
	for _, a := range []data.Array{b.Input, b.Target} {
		for i := range a.Float32 {
			a.Float32[i] = float32(r.NormFloat64())
		}
		for i := range a.Int64 {
			a.Int64[i] = r.Int64N(int64(m.info.Classes))
		}
	}
	return nil
}

// Balance is a model cut by measured times.
type Balance struct {
	Counts []int            // layers of each stage
	Times  []plan.StageTime // what each stage is to take for a micro-batch
	// Profile is the measurement behind the cut. That of all but rank 0 of a group lacks what
	// pipe.Config.Profile needs to spare a measurement.
	Profile profile.Profile
}

// BalanceByTime cuts a model, which need not be materialised, into a stage for each policy. The slowest stage
// is as fast as any cut can make it, transfers and recomputation counted. The weights that training gives do
// not depend on the cut.
func BalanceByTime(ctx context.Context, model *nn.Sequential, set data.Dataset, policies []pipe.Checkpoint,
	config MeasureConfig) (out Balance, err error) {
	if err := arg.Between("train", "Stages", len(policies), 1, len(model.Layers())); err != nil {
		return out, err
	}
	config.Profile.MicroBatches = min(max(config.Chunks, 1), config.Batch, set.Len())
	if out.Profile, err = Measure(ctx, model, set, config); err != nil {
		return out, err
	}
	out.Counts, out.Times, err = CutByTime(out.Profile, policies, config.Profile.MicroBatches)
	return out, err
}

// CutByTime cuts measured layers into a stage for each policy. It returns the layers of each stage and
// its time for a micro-batch. Errors are plan.ByTime's.
func CutByTime(p profile.Profile, policies []pipe.Checkpoint, microBatches int) ([]int, []plan.StageTime,
	error) {
	config := plan.TimeConfig{SecondsPerByte: p.SecondsPerByte, Skips: p.Skips, Ties: p.Ties}
	for _, k := range policies {
		config.Recomputed = append(config.Recomputed, plan.Policy(k).Recomputed(microBatches))
	}
	return plan.ByTime(p.Layers, len(policies), config)
}

// CutBySize cuts measured layers into a stage for each policy so that the largest stage is as small as
// possible. It returns the layers of each stage and its size. slots is the optimizer's number of tensors
// for each parameter (optim.Slots). Errors are plan.BySize's.
func CutBySize(p profile.Profile, policies []pipe.Checkpoint, microBatches, slots int) ([]int,
	[]plan.StageSize, error) {
	config := plan.SizeConfig{State: float64(slots), Input: p.Input, Skips: p.Skips, Ties: p.Ties}
	for _, k := range policies {
		graphs, inputs := plan.Policy(k).Held(microBatches)
		config.Held = append(config.Held, plan.Held{Graphs: graphs, Inputs: inputs})
	}
	return plan.BySize(p.Layers, len(policies), config)
}

// Threads is a number of threads chosen by measured times.
type Threads struct {
	N      int     // for pipe.Config.Threads
	Tried  int     // the number beside 1 that was fastest, or N where that is more than 1
	Faster float64 // how many times as fast Tried is as one thread: the median of the rounds
}

// ThreadsByTime finds with how many threads of each device, at most most, a model trains fastest: 1, 2, 4 and
// so on, or most. Layers run forward and backward with each number in turns. A larger number has to be a
// tenth faster. The last bits of results depend on the number (Recipe.Threads).
func ThreadsByTime(ctx context.Context, model *nn.Sequential, set data.Dataset, most int,
	config MeasureConfig) (Threads, error) {
	if most <= 1 {
		return Threads{N: 1, Tried: 1, Faster: 1}, nil
	}
	var counts []int
	for n := 1; n < most; n *= 2 {
		counts = append(counts, n)
	}
	counts = append(counts, most)
	return onFirstRows(ctx, config, "timing threads", set,
		func(c profile.Config, input *torch.Tensor) (out Threads, err error) {
			t, err := profile.Threads(ctx, model, c, counts, input)
			if err == nil {
				out = chooseThreads(t)
			}
			return out, err
		})
}

func chooseThreads(t profile.ThreadTimes) Threads {
	const clearly = 1.1 // how many times as fast a larger number has to be
	faster := func(i, than int) float64 { r := t.Faster(i, than); return r[len(r)/2] }
	best, fastest := 0, 1
	for i := range t.Threads {
		if faster(i, best) >= clearly {
			best = i
		}
		if i > 0 && faster(i, 0) > faster(fastest, 0) {
			fastest = i
		}
	}
	if best > 0 {
		fastest = best
	}
	return Threads{N: t.Threads[best], Tried: t.Threads[fastest], Faster: faster(fastest, 0)}
}
