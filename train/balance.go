package train

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"penstock/balance"
	"penstock/data"
	"penstock/internal/arg"
	"penstock/nn"
	"penstock/pipe"
	"penstock/profile"
	"penstock/torch"
)

// ConfigError is a setting that is refused.
type ConfigError = arg.ConfigError

// BalanceConfig says what is cut, and how it will be trained.
type BalanceConfig struct {
	Stages     int
	Batch      int // rows
	Chunks     int // micro-batches; 0 is 1
	Checkpoint pipe.Checkpoint
	Profile    profile.Config
	// Loss is measured with the layers, for plans by the profile (pipe.Config.Profile). It does not
	// count in the cut. Nil is none.
	Loss nn.Loss
}

// Balance is a model cut by measured times.
type Balance struct {
	Counts []int               // layers of each stage
	Times  []balance.StageTime // what each stage is to take for a micro-batch
	Timing profile.Timing      // how far the times can be trusted
	// Profile is the measurement behind the cut.
	Profile profile.Profile
}

// BalanceByTime cuts a model, which need not be materialised, into stages. The slowest stage is as
// fast as any cut can make it, transfers and recomputation counted. Layers are measured on a
// micro-batch of the first rows of set. Measurements vary, and so may the cut. The weights that
// training gives do not depend on it.
func BalanceByTime(ctx context.Context, model *nn.Sequential, set data.Dataset, config BalanceConfig) (Balance, error) {
	if err := cmp.Or(arg.Context(ctx, "train"),
		arg.Given(model, "train: BalanceByTime: the model", "an nn.Sequential"), arg.Given(set,
			"train: BalanceByTime: the data set", "a data.Dataset")); err != nil {
		return Balance{}, err
	}
	if set.Len() == 0 {
		return Balance{}, errors.New("train: BalanceByTime: the data set is empty; want a sample to measure with")
	}
	if err := cmp.Or(arg.AtLeast("train", "Batch", config.Batch, 1),
		arg.AtLeast("train", "Chunks", config.Chunks, 0), arg.Between("train", "Stages", config.Stages, 1,
			len(model.Layers()))); err != nil {
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
	c := torch.NewCtx(torch.Options{Device: config.Profile.Device})
	defer c.Close()
	var input *torch.Tensor
	measure := config.Profile
	if err := torch.Try(func() {
		if input = tensorOf(c, sample.Input); config.Loss != nil {
			measure.Loss, measure.Target = config.Loss, []*torch.Tensor{tensorOf(c, sample.Target)}
		}
	}); err != nil {
		return Balance{}, fmt.Errorf("train: timing layers: %w", err)
	}
	p, err := profile.Measure(ctx, model, measure, input)
	torch.TrimProcess()
	if err != nil {
		return Balance{}, err
	}
	var recomputed []float64
	for _, k := range policies {
		recomputed = append(recomputed, k.Recomputed(chunks))
	}
	counts, times, err := balance.ByTime(p.Layers, config.Stages, balance.TimeConfig{
		Recomputed: recomputed, SecondsPerByte: p.SecondsPerByte, Skips: p.Skips, Ties: p.Ties,
	})
	return Balance{Counts: counts, Times: times, Timing: p.Timing, Profile: p}, err
}
