package main

import (
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"

	"penstock/models"
	"penstock/optim"
	"penstock/pipe"
)

// balancePlan is what a command line of penstock balance asks for.
type balancePlan struct {
	balanceFlags
	given func(flag string) bool

	costs []float64 // nil: those of a model

	measured     measuredModel
	policy       []pipe.Checkpoint // one, or one for each stage
	slots        int               // of the optimizer
	rows         int               // of a micro-batch
	microBatches int
}

// plan checks the flags. Its errors are usage errors of one line.
func (f balanceFlags) plan(given func(flag string) bool) (balancePlan, error) {
	p := balancePlan{balanceFlags: f, given: given}
	if err := checkFormat(p.format); err != nil {
		return p, err
	}
	hasCosts, hasModel := given("costs"), given("model")
	switch {
	case hasCosts && hasModel:
		return p, badUsage("--costs %s and --model %s: want one of the two, costs of your own or a model to measure", p.rawCosts, p.modelName)
	case !hasCosts && !hasModel:
		return p, badUsage("want --costs N,N,... to cut, or --model NAME to measure: one of %s", strings.Join(models.Names(), ", "))
	case !given("stages"):
		return p, badUsage("--stages is needed: how many stages to cut into, at least 1")
	case p.stages < 1:
		return p, badUsage("--stages %d: want at least 1", p.stages)
	}
	checks := []func() error{p.checkModel, p.checkMeasurement, p.checkTraining}
	if hasCosts {
		checks = []func() error{p.checkCosts}
	}
	for _, check := range checks {
		if err := check(); err != nil {
			return p, err
		}
	}
	return p, nil
}

// checkCosts reads "3,1,2.5".
func (p *balancePlan) checkCosts() error {
	for _, flag := range []string{"set", "by", "batch", "chunks", "checkpoint", "autocast", "optimizer", "momentum", "threads", "repeats", "seed"} {
		if p.given(flag) {
			return badUsage("--%s with --costs: it is for measuring a --model; want it left out", flag)
		}
	}
	words := strings.Split(p.rawCosts, ",")
	for i, word := range words {
		cost, err := strconv.ParseFloat(strings.TrimSpace(word), 64)
		switch {
		case errors.Is(err, strconv.ErrRange):
			return badUsage("--costs %s: %q, of layer %d, is out of range; want it in a larger unit", p.rawCosts, word, i)
		case err != nil:
			return badUsage("--costs %s: %q, of layer %d, is no number; want numbers like 3,1,2.5", p.rawCosts, word, i)
		case math.IsNaN(cost) || math.IsInf(cost, 0) || cost < 0:
			return badUsage("--costs %s: %s, of layer %d; want finite numbers that are not negative", p.rawCosts, word, i)
		}
		p.costs = append(p.costs, cost)
	}
	if p.stages > len(p.costs) {
		return badUsage("--stages %d: --costs has %d layers; want at most as many stages", p.stages, len(p.costs))
	}
	return nil
}

// checkModel makes the model, without weights.
func (p *balancePlan) checkModel() (err error) {
	if p.measured, err = newMeasuredModel(p.modelName, p.set); err != nil {
		return err
	}
	if layers := len(p.measured.model.Layers()); p.stages > layers {
		return badUsage("--stages %d: %s has %d layers; want at most as many stages", p.stages, p.modelName, layers)
	}
	return nil
}

// checkMeasurement checks what is measured and how.
func (p *balancePlan) checkMeasurement() error {
	if p.by != "time" && p.by != "size" {
		return badUsage("--by %q: want time or size", p.by)
	}
	for _, n := range []struct {
		flag        string
		value, most int
	}{{"batch", p.batch, math.MaxInt32}, {"chunks", p.chunks, math.MaxInt32}, {"threads", p.threads, pipe.MaxThreads}, {"repeats", p.repeats, math.MaxInt32}} {
		if n.value < 1 {
			return badUsage("--%s %d: want at least 1", n.flag, n.value)
		}
		if n.value > n.most {
			return badUsage("--%s %d: want at most %d", n.flag, n.value, n.most)
		}
	}
	p.microBatches = min(p.chunks, p.batch)
	p.rows = (p.batch + p.microBatches - 1) / p.microBatches // of the largest
	return nil
}

// checkTraining checks what the trained stages will hold and do.
func (p *balancePlan) checkTraining() (err error) {
	if p.policy, err = pipe.Checkpoint(p.policyName).Stages(p.stages); err != nil {
		return badUsage("--checkpoint %s: %s", p.policyName, message(err))
	}
	if !slices.Contains(optim.Names(), p.optimizerName) {
		return badUsage("--optimizer %q: want one of %s", p.optimizerName, strings.Join(optim.Names(), ", "))
	}
	if !(p.momentum >= 0 && p.momentum < 1) {
		return badUsage("--momentum %v: want a number from 0 to below 1", p.momentum)
	}
	if !p.given("momentum") && p.optimizerName == "sgd" {
		p.momentum = 0.9 // as penstock train
	}
	if p.slots, err = optim.Slots(p.optimizerName, optim.Config{LR: 0.1, Momentum: p.momentum}); err != nil {
		return badUsage("--optimizer %s: %s", p.optimizerName, message(err))
	}
	return nil
}
