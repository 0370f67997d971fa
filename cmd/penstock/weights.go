package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"strings"

	"penstock.example/internal/disk"
	"penstock.example/nn"
	"penstock.example/torch"
	"penstock.example/train"
)

// freeze lets a model train only the layers of --train-only, or all if it is not given.
func freeze(model *nn.Sequential, trainOnly []string) error {
	if trainOnly == nil {
		return nil
	}
	if err := nn.TrainOnly(model, trainOnly...); err != nil {
		return badUsage("--train-only: %s", strings.TrimPrefix(err.Error(), "nn: TrainOnly: "))
	}
	return nil
}

// matchInit compares the file of --init with the model, before anything is measured, and says what
// will be loaded. The processes of a group must have the same file.
func (j *job) matchInit(ctx context.Context, stderr io.Writer) error {
	if j.weights.init == "" || j.from != nil {
		return nil
	}
	report, err := nn.CheckWeights(j.weights.init, j.model, j.weights.rules)
	var mismatch *nn.WeightsError
	switch {
	case errors.As(err, &mismatch):
		return badUsage("--init %s\n  rename with --init-rename OLD=NEW, skip with --init-skip NAME, "+
			"load in "+
			"part with --init-partial", strings.TrimPrefix(err.Error(), "nn: "))
	case err != nil:
		return wrongInput(fmt.Errorf("--init: %w", err))
	}
	if j.group != nil {
		sum, err := hashOf(j.weights.init)
		if err != nil {
			return fmt.Errorf("--init: %w", err)
		}
		if err := train.Agree(ctx, j.group, map[string]string{"--init with the SHA-256": sum}); err != nil {
			return err
		}
	}
	fmt.Fprintf(stderr, "--init %s: %v\n", j.weights.init, report)
	return nil
}

// hashOf returns the SHA-256 of a file.
func hashOf(path string) (string, error) {
	file, err := disk.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close() // it was only read
	hash := sha256.New()
	_, err = io.Copy(hash, file)
	return fmt.Sprintf("%x", hash.Sum(nil)), err
}

// loadInit gives the parameters on this process's devices the values of --init.
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
