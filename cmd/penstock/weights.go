package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"penstock.example/nn"
	"penstock.example/torch"
)

// freeze freezes all layers but those of --train-only, if it is given.
func freeze(model *nn.Sequential, trainOnly []string) error {
	if trainOnly == nil {
		return nil
	}
	if err := nn.TrainOnly(model, trainOnly...); err != nil {
		return badUsage("--train-only: %s", strings.TrimPrefix(err.Error(), "nn: TrainOnly: "))
	}
	return nil
}

// matchInit compares the file of --init with the model and prints a summary.
func (j *job) matchInit(_ context.Context, stderr io.Writer) error {
	if j.weights.init == "" || j.from != nil {
		return nil
	}
	report, err := nn.CheckWeights(j.weights.init, j.model, j.weights.rules)
	if errors.As(err, new(*nn.WeightsError)) {
		return badUsage("--init %s\n  rename with --init-rename OLD=NEW, skip with --init-skip NAME, load "+
			"in part with --init-partial", strings.TrimPrefix(err.Error(), "nn: "))
	} else if err != nil {
		return wrongInput(fmt.Errorf("--init: %w", err))
	}
	fmt.Fprintf(stderr, "--init %s: %v\n", j.weights.init, report)
	return nil
}

func (j *job) loadInit() error {
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	rules := j.weights.rules
	rules.Existing = true
	if _, err := nn.LoadWeights(c, j.weights.init, j.pipe.Model(), rules); err != nil {
		return fmt.Errorf("--init: %w", err)
	}
	return nil
}
