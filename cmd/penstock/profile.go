package main

import (
	"cmp"
	"fmt"
	"io"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"penstock.example/nn"
	"penstock.example/profile"
	"penstock.example/remat"
	"penstock.example/remat/planfile"
	"penstock.example/remat/solver"
	"penstock.example/torch"
)

// profileFlags is the command line of penstock profile, as it was typed.
type profileFlags struct {
	modelName string
	set       []string
	size      int
	batch     int
	autocast  torch.Autocast
	threads   int
	devices   int
	repeats   int
	seed      uint64
	out       string
	format    string
}

func (f *profileFlags) register(cmd *cobra.Command) {
	s := cmd.Flags()
	s.SortFlags = false
	namesFlags(s, &f.modelName, &f.set)
	count(s, &f.size, "size", 0, "`N` pixels of an image's height and width, short for --set size=N (default: the model's)")
	count(s, &f.batch, "batch", 32, "`N` samples in a batch")
	autocastFlag(s, &f.autocast, "run forwards in fewer bits where that is safe")
	threadsOfMeasuring(s, &f.threads)
	whole(s, &f.devices, "devices", 0, 1, torch.MaxCPU,
		"`N` devices with as many threads each that work while a layer is "+
			"timed, as far as there are cores (default: as many as there are cores for)")
	repeatsFlag(s, &f.repeats)
	s.Uint64Var(&f.seed, "seed", 1, "`SEED` of weights, sample and targets")
	path(s, &f.out, "out", "`FILE` to write the chain to, as JSON; - is standard output, instead of the "+
		"table")
	formatFlag(s, &f.format)
}

func newProfile() *cobra.Command {
	var flags profileFlags
	cmd := &cobra.Command{
		Use:   "profile --model NAME [flags]",
		Short: "Measure a model's layers for plans of what to recompute",
		Long: `Measure what each layer of a model costs in training, on a made-up batch: the time
of its forward, with and without gradients, and of its backward, and the bytes of its
output, of what it saves, and of temporaries and gradients, to the byte. The result is
a chain, which penstock remat plans for. Layers of which a plan would gain nothing by
keeping them apart are joined, and count as one.

Times are the lower quartile of the timed runs. While a layer is timed the other cores
work on other layers, as the stages of a pipeline do: a plan for one device alone is
measured with --devices 1.`,
		Example: `  penstock profile --model resnet18 --batch 32 --size 224 --out chain.json
  penstock profile --model gpt --set depth=12 --batch 8
  penstock profile --model vgg16_bn --batch 4 --out - | penstock remat explain - --limit 700MiB`,
		Args: noArguments,
		RunE: interruptible("layers were measured", func(cmd *cobra.Command, _ []string) error {
			if err := need(cmd, "model"); err != nil {
				return err
			}
			return flags.run(cmd)
		}),
	}
	flags.register(cmd)
	return cmd
}

// run measures the model, and writes its chain.
func (f profileFlags) run(cmd *cobra.Command) error {
	stdout, toFile := cmd.OutOrStdout(), f.out != "" && f.out != "-"
	if f.size > 0 {
		f.set = append(f.set, fmt.Sprint("size=", f.size))
	}
	m, err := newMeasuredModel(f.modelName, f.set)
	if err != nil {
		return err
	}
	if toFile {
		if err := probeOut(cmd, f.out); err != nil {
			return err
		}
	}
	measured, err := m.measure(cmd, f.batch, profile.Config{
		Threads: f.threads, Devices: cmp.Or(f.devices, runtime.NumCPU()),
		Repeats: f.repeats, Seed: f.seed, Autocast: f.autocast, Clock: clock,
		Balance: []int{len(m.model.Layers())}, MostUnits: 2000, Split: true, Loss: m.loss(),
	})
	if err != nil {
		return err
	}
	chain := measured.Chains[0]
	if len(chain.Layers) == 0 {
		return fmt.Errorf("--model %s: nothing in it is trained, so there is nothing to keep for a backward",
			m.name)
	}
	of := &chain.Chain
	of.Model, of.Rows, of.Threads = strings.Join(append([]string{m.name}, f.set...), " "), f.batch, f.threads
	of.Spread, of.Devices = chain.Timing.Spread, chain.Timing.Devices
	text, err := planfile.FormatChain(chain.Chain)
	if err != nil {
		return err
	}
	if toFile {
		if err := writeOut(cmd, f.out, text); err != nil {
			return err
		}
	}
	if f.format == "json" || f.out == "-" {
		_, err = stdout.Write(text)
		return err
	}
	plain, err := remat.Check(chain.Chain, remat.None(len(chain.Layers)))
	if err != nil {
		return err
	}
	least, err := solver.ExplainLeast(chain.Chain)
	if err != nil {
		return err
	}
	return printTable(stdout, func(w io.Writer) {
		showChain(w, chain)
		fmt.Fprintf(w, "\n%s on %d samples of %v: %d layers\n", m.name, f.batch, m.samples.Input.Shape,
			len(m.model.Layers()))
		for _, j := range chain.Merged {
			fmt.Fprintf(w, "%s is joined with the one before (%s)\n", j.Layer, j.Reason)
		}
		if chain.Prologue > 0 {
			fmt.Fprintf(w, "the first %d units have no backward, are run once, and are not in the chain; "+
				"they need %s\n",
				chain.Prologue, formatBytes(chain.ProloguePeak))
		}
		fmt.Fprintf(w, "\nloss\t%s, and %s for a moment\n", micros(chain.Loss.Backward),
			formatBytes(chain.Loss.Tmp))
		fmt.Fprintf(w, "step\t%s if nothing is computed again\n", micros(chain.Once()))
		fmt.Fprintf(w, "timed\twhile %s worked, with %s each\n", counted(of.Devices, "device"),
			counted(f.threads, "thread"))
		showLeast(w, chain.Chain, least)
		fmt.Fprintf(w, "greatest\t%s (%d bytes), from which on nothing is computed again\n",
			formatBytes(plain.Peak), plain.Peak)
		fmt.Fprintf(w, "state\t%s of parameters and buffers, which limits of a chain do not count\n",
			formatBytes(stateBytes(m.model)))
	})
}

func showChain(w io.Writer, c profile.Chain) {
	row(w, "", "LAYER", "FORWARD", "NO GRADIENT", "BACKWARD", "SPREAD", "OUTPUT", "SAVED", "TEMPORARY",
		"GRADIENT", "WEIGHTS")
	line := func(number any, name string, l remat.Layer, spread string) {
		row(w, number, name, micros(l.Forward), micros(l.ForwardNoGrad), micros(l.Backward), spread,
			formatBytes(l.Output),
			formatBytes(l.Saved), formatBytes(max(l.ForwardTmp, l.ForwardNoGradTmp, l.BackwardTmp)),
			formatBytes(l.Gradient), formatBytes(l.WeightGradient))
	}
	var all remat.Layer // the greatest of the temporaries, and sums of the others
	for i, l := range c.Layers {
		s := c.Spread[i]
		line(i, l.Name, l, fmt.Sprintf("%.0f %%", 100*max(s.Forward, s.ForwardNoGrad, s.Backward)))
		all.Forward, all.ForwardNoGrad = all.Forward+l.Forward, all.ForwardNoGrad+l.ForwardNoGrad
		all.Backward, all.Output, all.Saved = all.Backward+l.Backward, all.Output+l.Output, all.Saved+l.Saved
		all.Gradient, all.WeightGradient = all.Gradient+l.Gradient, all.WeightGradient+l.WeightGradient
		all.BackwardTmp = max(all.BackwardTmp, l.ForwardTmp, l.ForwardNoGradTmp, l.BackwardTmp)
	}
	line("", fmt.Sprint("all ", len(c.Layers)), all, "")
}

// stateBytes is the bytes of all parameters and buffers.
func stateBytes(model nn.Layer) (sum int64) {
	for _, s := range nn.State(model) {
		sum += s.Bytes()
	}
	return sum
}
