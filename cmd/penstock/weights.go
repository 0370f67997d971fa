package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"penstock.example/internal/disk"
	"penstock.example/models"
	"penstock.example/nn"
	"penstock.example/safetensors"
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
			"part with --init-partial%s",
			strings.TrimPrefix(err.Error(), "nn: "), j.textHint())
	case err != nil:
		return noWeights(j.weights.init, err)
	}
	if j.group != nil {
		sum, err := hashOf(j.weights.init)
		if err != nil {
			return fmt.Errorf("--init: %w", err)
		}
		if err := train.Agree(ctx, j.group, []train.Fact{{Name: "--init with the SHA-256",
			Value: sum}}); err != nil {
			return err
		}
	}
	fmt.Fprintf(stderr, "--init %s: %v\n", j.weights.init, report)
	return nil
}

// noWeights is the error of a path without weights.
func noWeights(path string, err error) error {
	var format *safetensors.FormatError
	info, missing := os.Stat(path)
	switch {
	case errors.Is(missing, fs.ErrNotExist):
		return badUsage("--init %s: no such file; want a safetensors file, such as penstock export "+
			"writes", path)
	case missing == nil && info.IsDir():
		return badUsage("--init %s: it is a directory; want a safetensors file, such as penstock export "+
			"%[1]s --out FILE writes", path)
	case errors.As(err, &format):
		bare := *format
		bare.Path = ""
		return badUsage("--init %s: %s", path, strings.TrimPrefix(strings.TrimPrefix(bare.Error(),
			"safetensors: "), "byte 0: "))
	}
	var at *fs.PathError // the path is said already
	if errors.As(err, &at) {
		err = at.Err
	}
	return wrongInput(fmt.Errorf("--init %s: %w", path, err))
}

// textHint says how a language model becomes one of other weights' tokens and positions.
func (j *job) textHint() string {
	if j.info.Kind != models.Text {
		return ""
	}
	info := j.training.Info()
	return fmt.Sprintf("\n  --data %s has %d tokens, --window %d: --set classes=N,context=N makes the "+
		"model as large as the "+
		"weights; with fewer tokens there, want the tokenizer of the weights", j.dataName, info.Classes,
		info.Input.Shape[0])
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
