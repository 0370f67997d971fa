package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"penstock.example/optim"
	"penstock.example/pipe"
	"penstock.example/plan"
	"penstock.example/profile"
	"penstock.example/torch"
	"penstock.example/train"
)

// balanceFlags is the command line of penstock balance.
type balanceFlags struct {
	measureFlags
	costs         []float64 // nil: a model is measured
	stages        int
	by            string
	batch, chunks int
	checkpoint    pipe.Checkpoint
}

func newBalance() *cobra.Command {
	var f balanceFlags
	cmd := &cobra.Command{
		Use:   "balance (--costs N,N,... | --model NAME) --stages N [flags]",
		Short: "Cut layers into stages as evenly as can be",
		Long: `Cut layers into stages so that the costliest stage costs as little as can be. The
layers of a model are measured one by one on a made-up micro-batch. The model as a whole
need not fit.

By time a stage costs what it takes for a micro-batch: forward, backward, recomputation,
and receiving what crosses its boundaries. By size it costs the bytes that it holds:
parameters, gradients, the optimizer's state, and activations.`,
		Example: `  penstock balance --costs 4,2,2,2,2,4,6 --stages 3
  penstock balance --model gpt --set depth=12 --stages 4 --by size --optimizer adamw`,
		Args: noArguments,
	}
	s := cmd.Flags()
	list(s, &f.costs, "costs", "`N,N,...` costs of the layers, in any unit", cost)
	namesFlags(s, &f.modelName, &f.settings)
	count(s, &f.stages, "stages", 0, "`N` stages to cut into")
	word(s, &f.by, "by", "time", "what is to be even: `time`, or size in memory", "time", "size")
	count(s, &f.batch, "batch", 256, "`N` samples in a batch")
	count(s, &f.chunks, "chunks", 8, "`N` micro-batches of each batch")
	s.StringVar((*string)(&f.checkpoint), "checkpoint", "except_last",
		"`POLICY` of recomputing: never, except_last, always or optimal; or a list with one for each stage")
	optimizerFlags(s, &f.optimizer, &f.momentum)
	f.register(s, 1)
	return resultVerb(cmd, "", func(cmd *cobra.Command, _ []string) (r result, err error) {
		if (f.costs != nil) == (f.modelName != "") {
			return r, badUsage("want one of --costs N,N,... and --model NAME")
		}
		if err := need(cmd, "stages"); err != nil {
			return r, err
		}
		if f.modelName != "" {
			return f.cutModel(cmd)
		}
		counts, err := plan.Partition(f.costs, f.stages)
		if err != nil {
			return r, badUsage("--costs: %s", message(err))
		}
		sums, at := make([]float64, len(counts)), 0
		for s, n := range counts {
			for _, x := range f.costs[at : at+n] {
				sums[s] += x
			}
			at += n
		}
		return balanceResult(counts, sums, nil, ""), nil
	})
}

// balanceLine is the JSON of a balance.
type balanceLine struct {
	Balance    []int         `json:"balance"`
	Bottleneck float64       `json:"bottleneck"`
	Unit       string        `json:"unit,omitempty"` // of a measured model: "s" for a micro-batch, or "bytes"
	Stages     []balanceCost `json:"stages"`
}

// balanceCost is a stage of a balance.
type balanceCost struct {
	First string  `json:"first,omitempty"` // layer of a measured model
	Last  string  `json:"last,omitempty"`
	Cost  float64 `json:"cost"`
}

// cutModel measures a model and cuts it.
func (f *balanceFlags) cutModel(cmd *cobra.Command) (r result, err error) {
	if err := f.check(cmd.Flags()); err != nil {
		return r, err
	}
	m, err := f.measured(nil)
	if err != nil {
		return r, err
	}
	if layers := len(m.Layers()); f.stages > layers {
		return r, badUsage("--stages %d: %s has %d layers; want at most as many stages", f.stages,
			f.modelName, layers)
	}
	policies, err := f.checkpoint.Stages(f.stages)
	if err != nil {
		return r, inFlags(cmd.Flags(), err)
	}
	slots, err := optim.Slots(f.optimizer, optim.Config{LR: 0.1,
		Momentum: momentumOf(cmd.Flags(), f.optimizer, f.momentum)})
	if err != nil {
		return r, inFlags(cmd.Flags(), err)
	}
	chunks := min(f.chunks, f.batch)
	measured, err := m.measure(cmd, (f.batch+chunks-1)/chunks, profile.Config{
		Peer: torch.CPU(1), Devices: f.stages, Threads: f.threads, MicroBatches: chunks, Repeats: f.repeats,
		Seed: f.seed, Autocast: f.autocast, Clock: clock, BytesOnly: f.by == "size",
	})
	if err != nil {
		return r, err
	}
	var counts []int
	var costs []float64
	unit := "s"
	if f.by == "size" {
		var sizes []plan.StageSize
		unit = "bytes"
		counts, sizes, err = train.CutBySize(measured, policies, chunks, slots)
		for _, s := range sizes {
			costs = append(costs, float64(s.Total()))
		}
	} else {
		var times []plan.StageTime
		counts, times, err = train.CutByTime(measured, policies, chunks)
		for _, t := range times {
			costs = append(costs, t.Total())
		}
	}
	if err != nil {
		return r, err
	}
	return balanceResult(counts, costs, measured.Layers, unit), nil
}

// balanceResult is a cut with the cost of each stage.
func balanceResult(counts []int, costs []float64, layers []plan.Layer, unit string) result {
	line := balanceLine{Balance: counts, Unit: unit, Bottleneck: slices.Max(costs)}
	at := 0
	for i, n := range counts {
		stage := balanceCost{Cost: costs[i]}
		if layers != nil {
			stage.First, stage.Last = layers[at].Name, layers[at+n-1].Name
		}
		line.Stages, at = append(line.Stages, stage), at+n
	}
	return result{line: line, text: func(w io.Writer) {
		fmt.Fprintf(w, "--balance %s\n\n", joined(counts))
		row(w, "STAGE", "LAYERS", "FROM", "TO", "COST", "OF BOTTLENECK")
		for i, s := range line.Stages {
			cost := fmt.Sprint(s.Cost)
			switch unit {
			case "s":
				cost = micros(1e6 * s.Cost)
			case "bytes":
				cost = formatBytes(int64(s.Cost))
			}
			row(w, i, counts[i], s.First, s.Last, cost, fmt.Sprintf("%.0f %%", percentOf(s.Cost, line.Bottleneck)))
		}
	}}
}

// cost reads the cost of a layer.
func cost(word string) (float64, error) {
	x, err := strconv.ParseFloat(word, 64)
	if err != nil || !(x >= 0) || math.IsInf(x, 0) {
		return 0, errors.New("want finite numbers that are not negative, like 3,1,2.5")
	}
	return x, nil
}
