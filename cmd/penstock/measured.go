package main

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"penstock.example/data"
	"penstock.example/models"
	"penstock.example/nn"
	"penstock.example/profile"
	"penstock.example/train"
)

// measuredModel is a model that a verb measures on made-up samples. Its weights do not exist yet.
type measuredModel struct {
	name    string
	options models.Options
	model   *nn.Sequential
	samples data.Info // what it reads, and what it is to answer
}

// newMeasuredModel makes the model that --model and --set ask for, for samples as it usually reads them. Its
// errors are usage errors.
func newMeasuredModel(name string, set []string) (measuredModel, error) {
	var o models.Options
	if err := models.Set(name, &o, set); err != nil {
		return measuredModel{}, badUsage("--set %s", message(err))
	}
	info, err := models.Describe(name)
	if err != nil {
		return measuredModel{}, err
	}
	m, err := measuredWith(name, o, usualSamples(info, o))
	if err != nil {
		return m, badUsage("--set %s: %s", strings.Join(set, ","), message(err))
	}
	return m, nil
}

// measuredOn makes the model of flags that have been checked, for samples of their data. Its errors are
// usage errors.
func measuredOn(f *modelFlags, samples data.Info) (measuredModel, error) {
	o, _, err := f.fit(samples)
	if err != nil {
		return measuredModel{}, err
	}
	m, err := measuredWith(f.modelName, o, samples)
	if err != nil {
		return m, f.misfit(err)
	}
	return m, nil
}

// measuredWith makes the model with these options, for these samples.
func measuredWith(name string, o models.Options, samples data.Info) (m measuredModel, err error) {
	m = measuredModel{name: name, options: o, samples: samples}
	m.model, err = models.New(name, o)
	return m, err
}

// usualSamples describes the samples that a model with these options reads without a data set.
func usualSamples(info models.Info, o models.Options) data.Info {
	s := data.Info{Classes: info.Defaults.Classes, Input: data.Spec{Shape: slices.Clone(info.Input)},
		Target: data.Spec{Kind: data.Int64}}
	// a model reads text, or images
	for at, size := range map[int]int{0: o.Context + o.Channels, 1: o.Size, 2: o.Size} {
		if size != 0 && at < len(s.Input.Shape) {
			s.Input.Shape[at] = int64(size)
		}
	}
	if o.Classes != 0 {
		s.Classes = o.Classes
	}
	switch info.Kind {
	case models.Text:
		s.Input.Kind, s.Target.Shape = data.Int64, s.Input.Shape
	case models.Segmentation:
		s.Target.Shape = s.Input.Shape[1:]
	}
	return s
}

// loss is the loss that the model will be trained with.
func (m measuredModel) loss() nn.Loss { return trainingLoss(m.samples.Task()) }

// measure measures the model on a made-up micro-batch, on the device of the configuration.
func (m measuredModel) measure(cmd *cobra.Command, rows int, config profile.Config) (profile.Profile, error) {
	show := newCounter(cmd.ErrOrStderr(), "measuring", "layers")
	config.Progress = show.at
	measured, err := train.Measure(cmd.Context(), m.model, train.MadeUp(m.samples, rows, config.Seed),
		train.MeasureConfig{Batch: rows, Profile: config})
	show.end()
	if err == nil {
		warnOfTiming(cmd.ErrOrStderr(), measured.Timing)
	}
	return measured, err
}

// auxiliaryWeight is the weight of the losses of auxiliary classifiers.
const auxiliaryWeight = 0.3
