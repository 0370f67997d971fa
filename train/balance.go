package train

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"penstock.example/data"
	"penstock.example/group"
	"penstock.example/internal/arg"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/plan"

	"penstock.example/profile"
	"penstock.example/torch"
)

// ConfigError is a setting that is refused.
type ConfigError = arg.ConfigError

// BalanceConfig describes the cut and the training.
type BalanceConfig struct {
	Stages     int
	Batch      int // rows
	Chunks     int // micro-batches; 0 is 1
	Checkpoint pipe.Checkpoint
	Profile    profile.Config
	// Loss is measured with the layers, for plans by the profile (pipe.Config.Profile). It does not
	// count in the cut. Nil is none.
	Loss nn.Loss
	// Group is the processes that train the model together. Rank 0 measures for all. Nil is this process
	// alone.
	Group *group.Group
}

// Balance is a model cut by measured times.
type Balance struct {
	Counts []int            // layers of each stage
	Times  []plan.StageTime // what each stage is to take for a micro-batch
	Timing profile.Timing   // how far the times can be trusted
	// Profile is the measurement behind the cut.
	Profile profile.Profile
}

// BalanceByTime cuts a model, which need not be materialised, into stages. The slowest stage is as
// fast as any cut can make it, transfers and recomputation counted. Layers are measured on a
// micro-batch of the first rows of set. Measurements vary, and so may the cut. The weights that
// training gives do not depend on it.
//
// In a group all members call it. The Profile of all but rank 0 lacks what pipe.Config.Profile needs
// to spare a measurement.
func BalanceByTime(ctx context.Context, model *nn.Sequential, set data.Dataset,
	config BalanceConfig) (Balance, error) {
	if set.Len() == 0 {
		return Balance{}, errors.New("train: BalanceByTime: the data set is empty; want a sample to measure with")
	}
	if err := cmp.Or(arg.AtLeast("train", "Batch", config.Batch, 1),
		arg.AtLeast("train", "Chunks", config.Chunks, 0)); err != nil {
		return Balance{}, err
	}
	if err := arg.Between("train", "Stages", config.Stages, 1, len(model.Layers())); err != nil {
		return Balance{}, err
	}
	policies, err := config.Checkpoint.Stages(config.Stages)
	if err != nil {
		return Balance{}, err
	}
	batch := min(config.Batch, set.Len())
	chunks := min(max(config.Chunks, 1), batch)
	sample, err := firstRows(set, (batch+chunks-1)/chunks)
	if err != nil {
		return Balance{}, err
	}
	p, err := group.FromFirst(ctx, config.Group, "train: measured layers", func() (profile.Profile, error) {
		return measureLayers(ctx, model, sample, chunks, config)
	})
	if err != nil {
		return Balance{}, err
	}
	out := Balance{Timing: p.Timing, Profile: p}
	out.Counts, out.Times, err = CutByTime(p, policies, chunks)
	return out, err
}

func measureLayers(ctx context.Context, model *nn.Sequential, sample data.Batch, chunks int,
	config BalanceConfig) (profile.Profile, error) {
	return onSample("timing layers", sample, config.Profile, config.Loss,
		func(measure profile.Config, input *torch.Tensor) (profile.Profile, error) {
			measure.MicroBatches = chunks
			return profile.Measure(ctx, model, measure, input)
		})
}

// onSample measures with the tensors of a sample, and a loss unless it is nil. It frees the tensors.
func onSample[T any](what string, sample data.Batch, config profile.Config, loss nn.Loss,
	measure func(config profile.Config, input *torch.Tensor) (T, error)) (out T, err error) {
	c := torch.NewCtx(torch.Options{Device: config.Device, Threads: besideStages})
	defer c.Close()
	var input *torch.Tensor
	if err := torch.Try(func() {
		if input = tensorOf(c, sample.Input); loss != nil {
			config.Loss, config.Target = loss, []*torch.Tensor{tensorOf(c, sample.Target)}
		}
	}); err != nil {
		return out, fmt.Errorf("train: %s: %w", what, err)
	}
	out, err = measure(config, input)
	torch.TrimProcess()
	return out, err
}

// CutByTime cuts measured layers into a stage for each policy. It returns the layers of each stage and
// its time for a micro-batch. Errors are balance.ByTime's.
func CutByTime(p profile.Profile, policies []pipe.Checkpoint, microBatches int) ([]int, []plan.StageTime,
	error) {
	return plan.ByTime(p.Layers, len(policies), timesOf(p, policies, microBatches))
}

func timesOf(p profile.Profile, policies []pipe.Checkpoint, microBatches int) plan.TimeConfig {
	config := plan.TimeConfig{SecondsPerByte: p.SecondsPerByte, Skips: p.Skips, Ties: p.Ties}
	for _, k := range policies {
		config.Recomputed = append(config.Recomputed, plan.Policy(k).Recomputed(microBatches))
	}
	return config
}

// CutBySize cuts measured layers into a stage for each policy so that the largest stage is as small as
// possible. It returns the layers of each stage and its size. slots is the optimizer's number of tensors
// for each parameter (optim.Slots). Errors are balance.BySize's.
func CutBySize(p profile.Profile, policies []pipe.Checkpoint, microBatches, slots int) ([]int,
	[]plan.StageSize, error) {
	config := plan.SizeConfig{State: float64(slots), Input: p.Input, Skips: p.Skips, Ties: p.Ties}
	for _, k := range policies {
		graphs, inputs := plan.Policy(k).Held(microBatches)
		config.Held = append(config.Held, plan.Held{Graphs: graphs, Inputs: inputs})
	}
	return plan.BySize(p.Layers, len(policies), config)
}
