package main

import (
	"context"
	"fmt"
	"math"
	"slices"

	"penstock.example/models"
	"penstock.example/remat/baselines"
	"penstock.example/torch"
)

// timed are the networks whose steps are timed beside what their profile predicts.
var timed = []network{
	{Model: "mlp", Options: models.Options{Size: 32, Channels: 1, Width: 1024, Classes: 1024}, Batch: 64},
	{Model: "resnet20", Batch: 32},
	{Model: "gpt", Options: models.Options{Depth: 4, Width: 128, Context: 64}, Batch: 8},
	{Model: "vgg11", Options: models.Options{Size: 64}, Batch: 4},
	{Model: "unet", Options: models.Options{Convolutions: 2, Width: 16, Size: 64, Classes: 4}, Batch: 4},
}

// stepTime is a training step without recomputation, on one thread, by the clock of its processor
// time.
type stepTime struct {
	network
	Layers    int     `json:"layers"` // of the chain
	Predicted float64 `json:"predicted_ms"`
	Quartile  float64 `json:"quartile_ms"` // the lower one of the steps
	Measured  spread  `json:"measured_ms"`
	Spread    float64 `json:"profile_spread"`
}

// off is how far the prediction is from the lower quartile of the steps, as a part of the latter: the
// profile's times are lower quartiles, too.
func (s stepTime) off() float64 { return s.Predicted/s.Quartile - 1 }

func measureStepTimes(ctx context.Context, e effort) (list []stepTime, err error) {
	for _, n := range timed {
		s, err := n.stepTime(ctx, e)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", n.Model, err)
		}
		list = append(list, s)
	}
	return list, nil
}

func (n network) stepTime(ctx context.Context, e effort) (out stepTime, err error) {
	s, err := newStepper(ctx, n, torch.CPU(3), e.profile)
	if err != nil {
		return out, err
	}
	defer s.close()
	ops := baselines.None(len(s.chain.Layers))
	out = stepTime{network: n, Layers: len(s.chain.Layers), Spread: s.chain.Timing.Spread}
	if _, out.Predicted, err = s.predicted(ops); err != nil {
		return out, err
	}
	var times []float64
	for k := range 1 + 4*e.rounds { // one to warm up
		taken, err := s.step(ops)
		if err != nil {
			return out, err
		}
		if k > 0 {
			times = append(times, taken.ms)
		}
	}
	slices.Sort(times)
	out.Quartile, out.Measured = times[(len(times)-1)/4], spreadOf(times)
	return out, ctx.Err()
}

// writeStepTimes prints predicted beside measured steps.
func (r *report) writeStepTimes(t *table) {
	if len(r.StepTimes) == 0 {
		return
	}
	t.block("steps as profiled", "batch", "units", "predicted ms", "measured ms", "off %", "median", "min-max", "spread of the profile %")
	var off []float64
	for _, s := range r.StepTimes {
		t.line(s.Model, fmt.Sprint(s.Batch), fmt.Sprint(s.Layers), one(s.Predicted, "%.2f"), one(s.Quartile, "%.2f"), fmt.Sprintf("%+.1f", 100*s.off()),
			one(s.Measured.Median, "%.2f"), fmt.Sprintf("%.2f to %.2f", s.Measured.Min, s.Measured.Max), one(100*s.Spread, "%.1f"))
		off = append(off, math.Abs(s.off()))
	}
	t.line("farthest", "", "", "", "", fmt.Sprintf("%.1f", 100*slices.Max(off)))
}
