package command

import (
	"cmp"
	"fmt"
	"io"
	"runtime"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"penstock.example/internal/option"
	"penstock.example/internal/planfile"
	"penstock.example/internal/system"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/pipe"
	"penstock.example/plan"
	"penstock.example/profile"
	"penstock.example/remat"
	"penstock.example/torch"
	"penstock.example/train"
)

type measureFlags struct {
	modelFlags
	optimizer        string
	momentum         float64
	autocast         torch.Autocast
	threads, repeats int
	seed             uint64
}

// register adds the flags of every verb that measures. threads is the default of --threads.
func (f *measureFlags) register(s *pflag.FlagSet, threads int) {
	autocastFlag(s, &f.autocast)
	option.Whole(s, &f.threads, "threads", threads, 1, system.MaxThreads, "`N` threads of each device")
	option.Count(s, &f.repeats, "repeats", 0,
		"`N` timed runs of each layer (default 5, or fewer of slow layers)")
	s.Uint64Var(&f.seed, "seed", 1, "`SEED` of the made-up weights and samples")
}

func newProfile() *cobra.Command {
	var f measureFlags
	var size, batch, devices int
	cmd := &cobra.Command{
		Use:   "profile --model NAME [flags]",
		Short: "Measure a model's layers for plans of what to recompute",
		Long: `Measure each layer of a model in training, on a made-up batch: the times of its forward,
with and without gradients, and of its backward, and the bytes of its output, its saved
tensors, temporaries and gradients. The result is a chain, for penstock plan and penstock
remat. Adjacent layers are merged if splitting them would not help a plan.

While a layer is timed, the other cores work on other layers, as the stages of a pipeline
do. To plan for one device alone, give --devices 1.`,
		Example: `  penstock profile --model resnet18 --batch 32 --size 224 --out chain.json
  penstock profile --model vgg16_bn --batch 4 --format json | penstock remat explain - --limit 700MiB`,
		Args: noArguments,
	}
	s := cmd.Flags()
	f.modelFlags.register(s)
	option.Count(s, &size, "size", 0, "`N` pixels of an image's height and width, short for --set size=N")
	option.Count(s, &batch, "batch", 32, "`N` samples in a batch")
	option.Whole(s, &devices, "devices", 0, 1, torch.MaxCPU,
		"`N` devices that work at once (default: all cores)")
	f.register(s, 1)
	return resultVerb(cmd, "`FILE` to write the chain to, as JSON",
		func(cmd *cobra.Command, _ []string) (r result, err error) {
			if size > 0 {
				f.settings = append(f.settings, fmt.Sprint("size=", size))
			}
			if err := cmp.Or(need(cmd.Flags(), "model"), f.check(cmd.Flags())); err != nil {
				return r, err
			}
			m, err := f.fitModel(nil)
			if err != nil {
				return r, err
			}
			layers := len(m.Layers())
			measured, err := m.measure(cmd, batch, profile.Config{
				Threads: f.threads, Devices: cmp.Or(devices, runtime.NumCPU()), Repeats: f.repeats,
				Seed: f.seed, Autocast: f.autocast, Clock: clock, Balance: []int{layers}, Split: true,
				Loss: trainingLoss(m.samples.Task())})
			if err != nil {
				return r, err
			}
			c := measured.Chains[0]
			c.Model = strings.Join(append([]string{f.modelName}, f.settings...), " ")
			c.Rows, c.Threads = batch, f.threads
			c.Chain.Spread, c.Chain.Devices = c.Timing.Spread, c.Timing.Devices
			if r.file, err = planfile.FormatChain(c.Chain); err != nil {
				return r, err
			}
			plain, err := remat.Check(c.Chain, remat.None(len(c.Layers)))
			if err != nil {
				return r, err
			}
			state := int64(0)
			for _, l := range nn.Summary(m) {
				state += l.Bytes
			}
			_, least, err := leastLimit(c.Chain)
			r.line, r.text = r.file, func(w io.Writer) {
				row(w, "", "LAYER", "FORWARD", "NO GRADIENT", "BACKWARD", "OUTPUT", "SAVED", "TEMPORARY",
					"GRADIENT", "WEIGHTS")
				for i, l := range c.Layers {
					row(w, i, l.Name, micros(l.Forward), micros(l.ForwardNoGrad), micros(l.Backward),
						formatBytes(l.Output), formatBytes(l.Saved),
						formatBytes(max(l.ForwardTmp, l.ForwardNoGradTmp, l.BackwardTmp)),
						formatBytes(l.Gradient), formatBytes(l.WeightGradient))
				}
				fmt.Fprintf(w, "\n%s on %d samples of %v: %d layers\n", f.modelName, batch,
					m.samples.Input.Shape, layers)
				if c.Prologue > 0 {
					fmt.Fprintf(w, "the first %d units, which need %s, have no backward and are left out\n",
						c.Prologue, formatBytes(c.ProloguePeak))
				}
				fmt.Fprintf(w, "\nloss\t%s, and %s for a moment\n", micros(c.Loss.Backward),
					formatBytes(c.Loss.Tmp))
				fmt.Fprintf(w, "step\t%s if nothing is computed again\n", micros(c.Once()))
				showLimits(w, least, plain.Peak)
				fmt.Fprintf(w, "state\t%s of parameters and buffers, which limits of a chain do not count\n",
					formatBytes(state))
			}
			return r, err
		})
}

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
	option.List(s, &f.costs, "costs", "`N,N,...` costs of the layers, in any unit", option.Number)
	f.modelFlags.register(s)
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
		err = need(cmd.Flags(), "stages")
		if err == nil && f.modelName != "" {
			return f.cutModel(cmd)
		}
		if err = cmp.Or(err, onlyFlags(cmd, "--costs", "costs", "stages")); err != nil {
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

type balanceLine struct {
	Balance    []int         `json:"balance"`
	Bottleneck float64       `json:"bottleneck"`
	Unit       string        `json:"unit,omitempty"` // "s" or "bytes" for a model; "" for --costs
	Stages     []balanceCost `json:"stages"`
}

type balanceCost struct {
	First string  `json:"first,omitempty"` // layer of a model
	Last  string  `json:"last,omitempty"`
	Cost  float64 `json:"cost"`
}

func (f *balanceFlags) cutModel(cmd *cobra.Command) (r result, err error) {
	err = cmp.Or(refuseWithout(cmd.Flags(), f.by == "size", "--by size", "optimizer", "momentum"),
		f.check(cmd.Flags()))
	if err != nil {
		return r, err
	}
	m, err := f.fitModel(nil)
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
