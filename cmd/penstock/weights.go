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

	"github.com/spf13/pflag"

	"penstock.example/internal/disk"
	"penstock.example/models"
	"penstock.example/nn"
	"penstock.example/safetensors"
	"penstock.example/torch"
	"penstock.example/train"
)

// weightFlags say which weights a run starts from, and how their names become the model's.
type weightFlags struct {
	init  string // "" is none
	rules nn.WeightsConfig

	matched bool // the file was compared with the model

	trainOnly []string // layers; nil is all
}

func (f *weightFlags) register(s *pflag.FlagSet) {
	path(s, &f.init, "init", "`FILE` of weights to start from, as safetensors: of nn.Save, of penstock checkpoint merge, or others' with the same names; a resumed run has its own")
	several(s, &f.rules.Rename, "init-rename", "`OLD=NEW` parts of the names in --init; may be given several times", func(text string) (nn.Rename, error) {
		r, err := nn.ParseRename(text)
		if err != nil {
			err = errors.New("want OLD=NEW, parts of names with dots between them; module= takes a prefix off, =module puts it in front")
		}
		return r, err
	})
	s.StringArrayVar(&f.rules.Skip, "init-skip", nil, "`NAME` to leave out of --init, where * stands for any text, as fc.*; may be given several times")
	trainOnlyFlag(s, &f.trainOnly)
	s.BoolVar(&f.rules.Partial, "init-partial", false, "leave out what only --init has, or only the model")
}

// trainOnlyFlag is --train-only.
func trainOnlyFlag(s *pflag.FlagSet, to *[]string) {
	s.StringArrayVar(to, "train-only", nil, "`NAME` of the layers to train, where * stands for any text, as fc or heads.*; all others stay as they are and run as in evaluation; may be given several times")
}

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

// checkInit refuses rules without a file.
func (p *plan) checkInit(s *pflag.FlagSet) error {
	for _, name := range []string{"init-rename", "init-skip", "init-partial"} {
		if s.Changed(name) && p.weights.init == "" {
			return badUsage("--%s: it is for --init FILE, which is not there; want both, or neither", name)
		}
	}
	return nil
}

// matchInitEarly is matchInit before --out is made, for a run that begins whatever is there.
func (j *job) matchInitEarly(ctx context.Context, stderr io.Writer) error {
	if j.resume || j.autoresume {
		return nil
	}
	return j.matchInit(ctx, stderr)
}

// matchInit compares the file of --init with the model, before anything is measured, and says what
// will be loaded. The processes of a group must have the same file.
func (j *job) matchInit(ctx context.Context, stderr io.Writer) error {
	if j.weights.init == "" || j.from != nil || j.weights.matched {
		return nil
	}
	j.weights.matched = true
	report, err := nn.CheckWeights(j.weights.init, j.model, j.weights.rules)
	var mismatch *nn.WeightsError
	switch {
	case errors.As(err, &mismatch):
		return badUsage("--init %s\n  rename with --init-rename OLD=NEW, skip with --init-skip NAME, load in part with --init-partial%s", strings.TrimPrefix(err.Error(), "nn: "), j.textHint())
	case err != nil:
		return noWeights(j.weights.init, err)
	}
	if j.group != nil {
		sum, err := hashOf(j.weights.init)
		if err != nil {
			return fmt.Errorf("--init: %w", err)
		}
		if err := train.Agree(ctx, j.group, []train.Fact{{Name: "--init with the SHA-256", Value: sum}}); err != nil {
			return err
		}
	}
	fmt.Fprintf(stderr, "--init %s: %v\n", j.weights.init, report)
	return nil
}

// noWeights is the error of a path that is no file of weights, with what to give instead.
func noWeights(path string, err error) error {
	var format *safetensors.FormatError
	info, missing := os.Stat(path)
	switch {
	case errors.Is(missing, fs.ErrNotExist):
		return badUsage("--init %s: no such file; want a safetensors file, such as penstock export writes", path)
	case missing == nil && info.IsDir():
		c, err := findCheckpoint(path, false)
		if err != nil {
			return badUsage("--init %s: it is a directory; want a safetensors file in it", path)
		}
		return badUsage("--init %s: it is a directory; want the file that penstock export %s --out FILE.safetensors writes, or a model's file in %s",
			path, path, c.Path)
	case errors.As(err, &format):
		bare := *format
		bare.Path = ""
		return badUsage("--init %s: %s", path, strings.TrimPrefix(strings.TrimPrefix(bare.Error(), "safetensors: "), "byte 0: "))
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
	return fmt.Sprintf("\n  --data %s has %d tokens, --window %d: --set classes=N,context=N makes the model as large as the weights; with fewer tokens there, want the tokenizer of the weights",
		j.dataName, info.Classes, info.Input.Shape[0])
}

// hashOf is the SHA-256 of a file.
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
