package main

import (
	"errors"
	"math"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"penstock.example/models"
	"penstock.example/optim"
	"penstock.example/pipe"
)

// balancePlan is a checked command line of penstock balance.
type balancePlan struct {
	balanceFlags
	measured     measuredModel
	policy       []pipe.Checkpoint // by stage
	slots        int               // of the optimizer
	rows         int               // of the largest micro-batch
	microBatches int
}

// plan checks flags that were read against each other. Its errors are usage errors of one line.
func (f balanceFlags) plan(s *pflag.FlagSet) (balancePlan, error) {
	p := balancePlan{balanceFlags: f}
	hasCosts, hasModel := s.Changed("costs"), s.Changed("model")
	switch {
	case hasCosts && hasModel:
		return p, badUsage("--costs %s and --model %s: want one of the two, costs of your own or a model to measure",
			s.Lookup("costs").Value, p.modelName)
	case !hasCosts && !hasModel:
		return p, badUsage("want --costs N,N,... to cut, or --model NAME to measure: one of %s", strings.Join(models.Names(), ", "))
	case !s.Changed("stages"):
		return p, badUsage("--stages is needed: how many stages to cut into, at least 1")
	case hasCosts:
		return p, p.checkCosts(s)
	}
	return p, p.checkModel(s)
}

// checkCosts refuses what is for measuring, and more stages than layers.
func (p *balancePlan) checkCosts(s *pflag.FlagSet) (err error) {
	s.Visit(func(f *pflag.Flag) {
		switch f.Name {
		case "costs", "stages", "format":
		default:
			err = badUsage("--%s with --costs: it is for measuring a --model; want it left out", f.Name)
		}
	})
	if err == nil && p.stages > len(p.costs) {
		err = badUsage("--stages %d: --costs has %d layers; want at most as many stages", p.stages, len(p.costs))
	}
	return err
}

// checkModel makes the model, without weights, and finds what the trained stages will hold and do.
func (p *balancePlan) checkModel(s *pflag.FlagSet) (err error) {
	if p.measured, err = newMeasuredModel(p.modelName, p.set); err != nil {
		return err
	}
	if layers := len(p.measured.model.Layers()); p.stages > layers {
		return badUsage("--stages %d: %s has %d layers; want at most as many stages", p.stages, p.modelName, layers)
	}
	p.microBatches = min(p.chunks, p.batch)
	p.rows = (p.batch + p.microBatches - 1) / p.microBatches
	if p.policy, err = p.checkpoint.Stages(p.stages); err != nil {
		return inFlags(s, err)
	}
	p.momentum = momentumOf(s, p.optimizerName, p.momentum)
	p.slots, err = optim.Slots(p.optimizerName, optim.Config{LR: 0.1, Momentum: p.momentum})
	return inFlags(s, err)
}

// cost reads what a layer costs.
func cost(word string) (float64, error) {
	x, err := strconv.ParseFloat(word, 64)
	switch {
	case errors.Is(err, strconv.ErrRange):
		return 0, errors.New("out of range; want it in a larger unit")
	case err != nil || !(x >= 0) || math.IsInf(x, 0):
		return 0, errors.New("want finite numbers that are not negative, like 3,1,2.5")
	}
	return x, nil
}
