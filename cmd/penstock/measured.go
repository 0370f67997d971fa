package main

import (
	"cmp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"penstock.example/data"
	"penstock.example/models"
	"penstock.example/nn"
	"penstock.example/profile"
	"penstock.example/train"
)

// measuredModel is a model without weights that fits samples.
type measuredModel struct {
	*nn.Sequential
	options models.Options
	chosen  map[string]any // options for the recipe
	samples data.Info
}

// measured makes the model of checked flags for these samples; nil is the model's usual samples. Its errors
// are usage errors.
func (f *modelFlags) measured(samples *data.Info) (m measuredModel, err error) {
	if samples == nil {
		samples = f.usualSamples()
	}
	m.samples = *samples
	if m.options, m.chosen, err = f.fit(m.samples); err != nil {
		return m, err
	}
	switch m.Sequential, err = models.New(f.modelName, m.options); {
	case err == nil:
	case f.dataName == "":
		err = badUsage("--set %s: %s", strings.Join(f.settings, ","), message(err))
	default:
		err = badUsage("--model %s with --data %s: %s", f.modelName, f.dataName, message(err))
	}
	return m, err
}

// usualSamples describes the samples of the model without a data set: text or images.
func (f *modelFlags) usualSamples() *data.Info {
	o := f.options
	s := &data.Info{Classes: cmp.Or(o.Classes, f.info.Defaults.Classes),
		Input: data.Spec{Shape: slices.Clone(f.info.Input)}, Target: data.Spec{Kind: data.Int64}}
	for at, size := range map[int]int{0: o.Context + o.Channels, 1: o.Size, 2: o.Size} {
		if size != 0 && at < len(s.Input.Shape) {
			s.Input.Shape[at] = int64(size)
		}
	}
	switch f.info.Kind {
	case models.Text:
		s.Input.Kind, s.Target.Shape = data.Int64, s.Input.Shape
	case models.Segmentation:
		s.Target.Shape = s.Input.Shape[1:]
	}
	return s
}

func (m measuredModel) loss() nn.Loss { return trainingLoss(m.samples.Task()) }

// measure measures the model on a made-up micro-batch.
func (m measuredModel) measure(cmd *cobra.Command, rows int, config profile.Config) (profile.Profile, error) {
	show := newProgress(cmd.ErrOrStderr(), "measuring", "layers")
	config.Progress = show.at
	measured, err := train.Measure(cmd.Context(), m.Sequential, train.MadeUp(m.samples, rows, config.Seed),
		train.MeasureConfig{Batch: rows, Profile: config})
	show.end()
	if err == nil {
		warnOfTiming(cmd.ErrOrStderr(), measured.Timing)
	}
	return measured, err
}
