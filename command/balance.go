package command

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"penstock.example/internal/option"
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
		Short: "Cut layers into stages of even cost",
		Long: `Cut layers into stages so that the largest cost of a stage is as small as possible.
The layers of a model are measured one by one on a made-up micro-batch. The model as a
whole may be larger than the memory.

By time, the cost is a micro-batch's forward, backward, recomputation, and transfers from
the stage before. By size, it is the bytes of parameters, gradients, the optimizer's
state, and activations.`,
		Example: `  penstock balance --costs 4,2,2,2,2,4,6 --stages 3
  penstock balance --model gpt --set depth=12 --stages 4 --by size --optimizer adamw`,
		Args: noArguments,
	}
	s := cmd.Flags()
	option.List(s, &f.costs, "costs", "`N,N,...` costs of the layers, in any unit", cost)
	namesFlags(s, &f.modelFlags)
	option.Count(s, &f.stages, "stages", 0, "`N` stages to cut into")
	option.Word(s, &f.by, "by", "time", "balanced `COST`: time, or size in memory", "time", "size")
	option.Count(s, &f.batch, "batch", 256, "`N` samples in a batch")
	option.Count(s, &f.chunks, "chunks", 8, "`N` micro-batches of each batch")
	s.StringVar((*string)(&f.checkpoint), "checkpoint", "except_last", checkpointUsage)
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
		if err := onlyFlags(cmd, "--costs", "costs", "stages"); err != nil {
			return r, err
		}
		counts, err := plan.Partition(f.costs, f.stages)
		if err != nil {
			return r, badUsage("--costs: %s", message(err))
		}
		at, costs := 0, make([]float64, len(counts))
		for i, n := range counts {
			for range n {
				costs[i] += f.costs[at]
				at++
			}
		}
		return balanceResult(counts, costs, nil, ""), nil
	})
}

// balanceLine is the JSON of a balance.
type balanceLine struct {
	Balance    []int         `json:"balance"`
	Bottleneck float64       `json:"bottleneck"`
	Unit       string        `json:"unit,omitempty"` // "s" or "bytes" for a model; "" for --costs
	Stages     []balanceCost `json:"stages"`
}

// balanceCost is a stage of a balance.
type balanceCost struct {
	First string  `json:"first,omitempty"` // layer of a model
	Last  string  `json:"last,omitempty"`
	Cost  float64 `json:"cost"`
}

// cutModel measures a model and cuts it.
func (f *balanceFlags) cutModel(cmd *cobra.Command) (r result, err error) {
	err = cmp.Or(checkPair(cmd.Flags(), f.by == "size", "--by size", "optimizer", "momentum"),
		f.check(cmd.Flags()))
	if err != nil {
		return r, err
	}
	m, err := f.measured(nil)
	if err != nil {
		return r, err
	}
	if layers := len(m.Layers()); f.stages > layers {
		return r, badUsage("--stages %d: %s has %d layers", f.stages, f.modelName, layers)
	}
	policies, err := f.checkpoint.Stages(f.stages)
	slots, wrong := optim.Slots(f.optimizer, optim.Config{LR: 0.1,
		Momentum: momentumOf(cmd.Flags(), f.optimizer, f.momentum)})
	if err = cmp.Or(err, wrong); err != nil {
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
	counts, costs, err := train.Cut(measured, policies, chunks, slots, f.by == "size")
	unit := map[string]string{"time": "s", "size": "bytes"}[f.by]
	return balanceResult(counts, costs, measured.Layers, unit), err
}

// balanceResult presents a cut with the cost of each stage. layers is nil for --costs.
func balanceResult(counts []int, costs []float64, layers []plan.Layer, unit string) result {
	line := balanceLine{Balance: counts, Unit: unit}
	at := 0
	for i, cost := range costs {
		stage := balanceCost{Cost: cost}
		if layers != nil {
			stage.First, stage.Last = layers[at].Name, layers[at+counts[i]-1].Name
		}
		line.Stages, at = append(line.Stages, stage), at+counts[i]
		line.Bottleneck = max(line.Bottleneck, cost)
	}
	return result{line: line, text: func(w io.Writer) {
		fmt.Fprintf(w, "--balance %s\n\n", option.Joined(counts))
		columns := 6
		if layers == nil { // without names
			columns = 4
		}
		row(w, []any{"STAGE", "LAYERS", "COST", "OF BOTTLENECK", "FROM", "TO"}[:columns]...)
		for i, s := range line.Stages {
			cost := fmt.Sprint(s.Cost)
			switch unit {
			case "s":
				cost = micros(1e6 * s.Cost)
			case "bytes":
				cost = formatBytes(int64(s.Cost))
			}
			share := fmt.Sprintf("%.0f %%", percentOf(s.Cost, line.Bottleneck))
			row(w, []any{i, counts[i], cost, share, s.First, s.Last}[:columns]...)
		}
	}}
}

// cost reads the cost of a layer. Its bound keeps sums finite.
func cost(word string) (float64, error) {
	x, err := strconv.ParseFloat(word, 64)
	if err != nil || !(x >= 0 && x <= 1e100) {
		return 0, errors.New("want numbers from 0 to 1e100, like 3,1,2.5")
	}
	return x, nil
}
