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
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/profile"
	"penstock.example/remat"
	"penstock.example/torch"
)

// measureFlags say which model is measured and how.
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
	option.Whole(s, &f.threads, "threads", threads, 1, pipe.MaxThreads, "`N` threads of each device")
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
	namesFlags(s, &f.modelFlags)
	option.Count(s, &size, "size", 0, "`N` pixels of an image's height and width, short for --set size=N")
	option.Count(s, &batch, "batch", 32, "`N` samples in a batch")
	option.Whole(s, &devices, "devices", 0, 1, torch.MaxCPU,
		"`N` devices that work at once (default: all cores)")
	f.register(s, 1)
	return resultVerb(cmd, "`FILE` to write the chain to, as JSON",
		func(cmd *cobra.Command, _ []string) (r result, err error) {
			if err := need(cmd, "model"); err != nil {
				return r, err
			}
			if size > 0 {
				f.settings = append(f.settings, fmt.Sprint("size=", size))
			}
			if err := f.check(cmd.Flags()); err != nil {
				return r, err
			}
			m, err := f.measured(nil)
			if err != nil {
				return r, err
			}
			layers := len(m.Layers())
			measured, err := m.measure(cmd, batch, profile.Config{
				Threads: f.threads, Devices: cmp.Or(devices, runtime.NumCPU()), Repeats: f.repeats,
				Seed: f.seed, Autocast: f.autocast, Clock: clock, Balance: []int{layers}, Split: true,
				Loss: m.loss()})
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
			least, err := leastLimitOf(c.Chain)
			r.line, r.text = r.file, func(w io.Writer) {
				showChain(w, c)
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
					formatBytes(stateBytes(m)))
			}
			return r, err
		})
}

func showChain(w io.Writer, c profile.Chain) {
	row(w, "", "LAYER", "FORWARD", "NO GRADIENT", "BACKWARD", "OUTPUT", "SAVED", "TEMPORARY",
		"GRADIENT", "WEIGHTS")
	for i, l := range c.Layers {
		row(w, i, l.Name, micros(l.Forward), micros(l.ForwardNoGrad), micros(l.Backward),
			formatBytes(l.Output), formatBytes(l.Saved),
			formatBytes(max(l.ForwardTmp, l.ForwardNoGradTmp, l.BackwardTmp)), formatBytes(l.Gradient),
			formatBytes(l.WeightGradient))
	}
}

func stateBytes(model nn.Layer) (sum int64) {
	for _, s := range nn.State(model) {
		sum += s.Bytes()
	}
	return sum
}
