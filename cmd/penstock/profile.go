package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"penstock.example/models"
	"penstock.example/pipe"
	"penstock.example/profile"
	"penstock.example/remat/planfile"

	"penstock.example/torch"
)

// profileFlags is the command line of penstock profile, as it was typed.
type profileFlags struct {
	modelName string
	set       []string
	size      int
	batch     int
	lossName  string
	autocast  torch.Autocast
	maxUnits  int
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
	word(s, &f.modelName, "model", "", "`NAME` of the model; penstock models lists them", models.Names()...)
	s.StringArrayVar(&f.set, "set", nil, "`OPTION=VALUE,...` of the model; penstock models lists them; may be repeated")
	s.IntVar(&f.size, "size", 0, "`N` pixels of an image's height and width, short for --set size=N (default: the model's)")
	count(s, &f.batch, "batch", 32, "`N` samples in a batch")
	word(s, &f.lossName, "loss", "cross-entropy", "`LOSS` after the last layer: cross-entropy or none", "cross-entropy", "none")
	autocastFlag(s, &f.autocast, "run forwards in fewer bits where that is safe")
	count(s, &f.maxUnits, "max-units", 2000, "`N` layers of the chain at most; beyond that layers of the model are joined")
	whole(s, &f.threads, "threads", 1, 1, pipe.MaxThreads,
		fmt.Sprintf("`N` threads within an operator, at most %d", pipe.MaxThreads))
	whole(s, &f.devices, "devices", 0, 1, torch.MaxCPU,
		"`N` devices with as many threads each that work while a layer is timed, as far as there are cores (default: as many as there are cores for)")
	count(s, &f.repeats, "repeats", 0, "`N` timed runs of each layer, of which the lower quartile counts (default 5, or fewer, at least 2, where they take long)")
	s.Uint64Var(&f.seed, "seed", 1, "`SEED` of weights, sample and targets")
	path(s, &f.out, "out", "`FILE` to write the chain to, as JSON; - is standard output, instead of the table")
	word(s, &f.format, "format", "table",
		"`FORMAT` of standard output: table, or json for the chain as --out has it", "table", "json")
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
keeping them apart are joined, and count as one. They are timed in the order of a
step, as many together as fit in 256 MiB; beyond that only one at a time has to fit.

Bytes are the same on every run. Times are those of this machine, with so many threads:
the lower quartile of the timed runs, and how much longer the median took. With one
thread they are its processor time, to which other programs add little. While a layer
is timed the other cores work on other layers, as the stages of a pipeline do: a plan
for one device alone is measured with --devices 1.`,
		Example: `  penstock profile --model resnet18 --batch 32 --size 224 --out chain.json
  penstock profile --model gpt --set depth=12 --batch 8
  penstock profile --model vgg16_bn --batch 4 --out - | penstock remat explain - --limit 700MiB`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := flags.plan(cmd.Flags())
			if err != nil {
				return err
			}
			err = p.run(cmd)
			if stop := cmd.Context().Err(); stop != nil && errors.Is(err, stop) {
				return errors.New("interrupted while layers were measured; nothing is written")
			}
			return err
		},
	}
	flags.register(cmd)
	return cmd
}

// run measures, and writes what was found.
func (p profilePlan) run(cmd *cobra.Command) error {
	stdout, toFile := cmd.OutOrStdout(), p.out != "" && p.out != "-"
	if err := checkOutput(stdout); err != nil {
		return err
	}
	if toFile {
		if err := probeOut(cmd, p.out); err != nil {
			return err
		}
	}
	chain, err := p.measure(cmd.Context(), cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	of := &chain.Chain
	of.Spread, of.Model, of.Rows, of.Threads = chain.Timing.Spread, strings.Join(append([]string{p.name}, p.set...), " "), p.batch, p.threads
	of.Devices = chain.Timing.Devices
	text, err := planfile.FormatChain(chain.Chain)
	if err != nil {
		return err
	}
	report := profileReport{profilePlan: p, chain: chain}
	if p.format == "table" { // before the file is there: finding the limits may still be interrupted
		if err := report.findLimits(); err != nil {
			return err
		}
	}
	if toFile {
		if err := writeOut(cmd, p.out, text); err != nil {
			return err
		}
	}
	if p.format == "json" {
		_, err = stdout.Write(text)
		return err
	}
	return report.show(stdout)
}

// auxiliaryWeight is the weight of the losses of auxiliary classifiers. What is measured does not
// depend on it.
const auxiliaryWeight = 0.3

// measure measures the model in one stage.
func (p profilePlan) measure(ctx context.Context, stderr io.Writer) (profile.Chain, error) {
	c := torch.NewCtx(torch.Options{Seed: p.seed})
	defer c.Close()
	config := profile.Config{
		Threads: p.threads, Devices: cmp.Or(p.devices, runtime.NumCPU()), Repeats: p.repeats, Seed: p.seed, Autocast: p.autocast, Clock: clock,
		Balance: []int{len(p.model.Layers())}, MostUnits: p.maxUnits, Split: true,
	}
	var sample *torch.Tensor
	err := torch.Try(func() {
		sample = p.sample(c, p.batch)
		if p.lossName != "none" {
			config.Loss = p.loss()
			config.Target = []*torch.Tensor{p.target(c, p.batch, p.seed)}
		}
	})
	if err != nil {
		return profile.Chain{}, fmt.Errorf("not enough memory for a batch of %d samples: %w; use a smaller --batch", p.batch, err)
	}
	show := newLayerProgress(stderr)
	config.Progress = show.layer
	measured, err := profile.Measure(ctx, p.model, config, sample)
	show.end()
	if err != nil {
		return profile.Chain{}, err
	}
	chain := measured.Chains[0]
	warnOfTiming(stderr, chain.Timing, measureAgain)
	if len(chain.Layers) == 0 {
		return chain, fmt.Errorf("--model %s: nothing in it is trained, so there is nothing to keep for a backward", p.name)
	}
	return chain, nil
}
