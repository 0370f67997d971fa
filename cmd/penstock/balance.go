package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"penstock.example/optim"
	"penstock.example/pipe"
	"penstock.example/plan"
	"penstock.example/profile"
	"penstock.example/torch"
	"penstock.example/train"
)

// balanceFlags is the command line of penstock balance, as it was typed.
type balanceFlags struct {
	costs     []float64 // nil: a model is measured
	modelName string
	set       []string
	stages    int
	by        string

	batch         int
	chunks        int
	checkpoint    pipe.Checkpoint
	autocast      torch.Autocast
	optimizerName string
	momentum      float64
	threads       int
	repeats       int
	seed          uint64
	format        string
}

func (f *balanceFlags) register(cmd *cobra.Command) {
	s := cmd.Flags()
	s.SortFlags = false
	list(s, &f.costs, "costs", "`N,N,...` costs of the layers, in any unit", cost)
	namesFlags(s, &f.modelName, &f.set)
	count(s, &f.stages, "stages", 0, "`N` stages to cut into")
	word(s, &f.by, "by", "time", "what is to be even: `time` of a micro-batch, or size in memory", "time",
		"size")
	count(s, &f.batch, "batch", 256, "`N` samples in a batch")
	count(s, &f.chunks, "chunks", 8, "`N` micro-batches of each batch")
	s.StringVar((*string)(&f.checkpoint), "checkpoint", "except_last",
		"`POLICY` of recomputing activations: never, except_last, always or optimal; or a list with one for "+
			"each stage")
	autocastFlag(s, &f.autocast, "run forwards in fewer bits where that is safe")
	optimizerFlags(s, &f.optimizerName, &f.momentum)
	threadsOfMeasuring(s, &f.threads)
	repeatsFlag(s, &f.repeats)
	s.Uint64Var(&f.seed, "seed", 1, "`SEED` of weights and sample")
	formatFlag(s, &f.format)
}

func newBalance() *cobra.Command {
	var flags balanceFlags
	cmd := &cobra.Command{
		Use:   "balance (--costs N,N,... | --model NAME) --stages N [flags]",
		Short: "Cut layers into stages as evenly as can be",
		Long: `Cut layers into stages so that the slowest stage is as fast as can be: exactly,
with the evenest of the best cuts. Costs are given, or the layers of a model are
measured one by one on a made-up micro-batch; the model as a whole need not fit.

By time a stage costs what its worker does for a micro-batch: forward, backward,
recomputation, and receiving what crosses its boundaries. By size it costs the bytes
that it holds at most: parameters, gradients, the optimizer's state, and
activations of as many micro-batches as the policy keeps.`,
		Example: `  penstock balance --costs 4,2,2,2,2,4,6 --stages 3
  penstock balance --model resnet20 --stages 2
  penstock balance --model gpt --set depth=12 --stages 4 --by size --optimizer adamw --format json`,
		Args: noArguments,
		RunE: interruptible("layers were measured", func(cmd *cobra.Command, _ []string) error {
			costs := flags.costs != nil
			if costs == (flags.modelName != "") {
				return badUsage("want --costs N,N,... to cut, or --model NAME to measure: one of the two")
			}
			if err := need(cmd, "stages"); err != nil {
				return err
			}
			if costs {
				return flags.cutCosts(cmd)
			}
			return flags.cutModel(cmd)
		}),
	}
	flags.register(cmd)
	return cmd
}

// balanceLine is the JSON of a balance. Its fields stay. A stage has layers, first and last (names), cost and
// the parts of the cost.
type balanceLine struct {
	Balance    []int            `json:"balance"`
	Bottleneck float64          `json:"bottleneck"`
	Unit       string           `json:"unit,omitempty"` // of a measured model: "s" for a micro-batch, or "bytes"
	Stages     []map[string]any `json:"stages,omitempty"`
}

// costPart is a part of the cost of a stage.
type costPart struct {
	name  string
	value float64
}

// cutCosts cuts layers by given costs.
func (f *balanceFlags) cutCosts(cmd *cobra.Command) error {
	counts, err := plan.Partition(f.costs, f.stages)
	if err != nil {
		return badUsage("--costs: %s", message(err))
	}
	sums, at := make([]float64, len(counts)), 0
	for s, n := range counts {
		for range n {
			sums[s] += f.costs[at]
			at++
		}
	}
	line := balanceLine{Balance: counts, Bottleneck: slices.Max(sums)}
	return printResult(cmd, f.format, line, func(w io.Writer) {
		fmt.Fprintf(w, "--balance %s\n\n", numbers(counts))
		row(w, "STAGE", "LAYERS", "COST", "OF BOTTLENECK")
		for i, sum := range sums {
			row(w, i, counts[i], sum, share(sum, line.Bottleneck))
		}
	})
}

// cutModel measures a model and cuts it.
func (f *balanceFlags) cutModel(cmd *cobra.Command) error {
	m, err := newMeasuredModel(f.modelName, f.set)
	if err != nil {
		return err
	}
	if layers := len(m.model.Layers()); f.stages > layers {
		return badUsage("--stages %d: %s has %d layers; want at most as many stages", f.stages, f.modelName,
			layers)
	}
	policies, err := f.checkpoint.Stages(f.stages)
	if err != nil {
		return inFlags(cmd.Flags(), err)
	}
	microBatches := min(f.chunks, f.batch)
	config := profile.Config{
		Peer: torch.CPU(1), Devices: f.stages, Threads: f.threads, MicroBatches: microBatches,
		Repeats: f.repeats, Seed: f.seed, Autocast: f.autocast, Clock: clock, BytesOnly: f.by == "size",
	}
	measured, err := m.measure(cmd, (f.batch+microBatches-1)/microBatches, config)
	if err != nil {
		return err
	}
	var line balanceLine
	var parts [][]costPart // by stage
	if f.by == "time" {
		counts, times, err := train.CutByTime(measured, policies, microBatches)
		if err != nil {
			return err
		}
		line.Balance, line.Unit = counts, "s"
		for _, t := range times {
			parts = append(parts, []costPart{{"forward", t.Forward}, {"backward", t.Backward},
				{"recomputation", t.Recomputation},
				{"activations", t.Activations}, {"gradients", t.Gradients}})
		}
	} else {
		slots, err := optim.Slots(f.optimizerName, optim.Config{LR: 0.1,
			Momentum: momentumOf(cmd.Flags(), f.optimizerName, f.momentum)})
		if err != nil {
			return inFlags(cmd.Flags(), err)
		}
		counts, sizes, err := train.CutBySize(measured, policies, microBatches, slots)
		if err != nil {
			return err
		}
		line.Balance, line.Unit = counts, "bytes"
		for _, z := range sizes {
			parts = append(parts, []costPart{{"parameters", float64(z.Parameters)}, {"gradients",
				float64(z.Gradients)},
				{"state", float64(z.State)}, {"buffers", float64(z.Buffers)}, {"saved", float64(z.Saved)},
				{"inputs", float64(z.Inputs)}})
		}
	}
	layers := measured.Layers
	for i, n := range line.Balance {
		stage, cost := map[string]any{"layers": n, "first": layers[0].Name, "last": layers[n-1].Name}, 0.0
		for _, p := range parts[i] {
			stage[p.name] = p.value
			cost += p.value
		}
		stage["cost"] = cost
		line.Stages, line.Bottleneck, layers = append(line.Stages, stage), max(line.Bottleneck, cost),
			layers[n:]
	}
	return printResult(cmd, f.format, line, func(w io.Writer) { line.show(w, parts) })
}

func (l balanceLine) show(w io.Writer, parts [][]costPart) {
	text := func(x float64) string { return micros(1e6 * x) }
	if l.Unit == "bytes" {
		text = func(x float64) string { return formatBytes(int64(x)) }
	}
	fmt.Fprintf(w, "--balance %s\n\n", numbers(l.Balance))
	head := []any{"STAGE", "LAYERS", "FROM", "TO"}
	for _, p := range parts[0] {
		head = append(head, strings.ToUpper(p.name))
	}
	row(w, append(head, "ALL", "OF BOTTLENECK")...)
	for i, s := range l.Stages {
		cells := []any{i, s["layers"], s["first"], s["last"]}
		for _, p := range parts[i] {
			cells = append(cells, text(p.value))
		}
		cost := s["cost"].(float64)
		row(w, append(cells, text(cost), share(cost, l.Bottleneck))...)
	}
}

// share is a stage's cost as a part of the bottleneck's.
func share(cost, bottleneck float64) string {
	if bottleneck == 0 {
		return "100 %"
	}
	return fmt.Sprintf("%.0f %%", 100*cost/bottleneck)
}

// cost reads the cost of a layer.
func cost(word string) (float64, error) {
	x, err := strconv.ParseFloat(word, 64)
	if err != nil || !(x >= 0) || math.IsInf(x, 0) {
		return 0, errors.New("want finite numbers that are not negative, like 3,1,2.5")
	}
	return x, nil
}
