package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"penstock.example/balance"
	"penstock.example/models"
	"penstock.example/optim"
	"penstock.example/pipe"
	"penstock.example/profile"
	"penstock.example/torch"
	"penstock.example/train"
)

// balanceFlags is the command line of penstock balance, as it was typed.
type balanceFlags struct {
	costs     []float64 // nil: those of a model
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
	word(s, &f.modelName, "model", "",
		"`NAME` of the model whose layers are measured; penstock models lists them", models.Names()...)
	s.StringArrayVar(&f.set, "set", nil, "`OPTION=VALUE,...` of the model; penstock models lists them; may be repeated")
	count(s, &f.stages, "stages", 0, "`N` stages to cut into")
	word(s, &f.by, "by", "time", "what is to be even: `time` of a micro-batch, or size in memory", "time", "size")
	count(s, &f.batch, "batch", 256, "`N` samples in a batch")
	count(s, &f.chunks, "chunks", 8, "`N` micro-batches of each batch")
	s.StringVar((*string)(&f.checkpoint), "checkpoint", "except_last",
		"`POLICY` of recomputing activations: never, except_last, always or optimal; or a list with one for each stage")
	autocastFlag(s, &f.autocast, "run forwards in fewer bits where that is safe")
	word(s, &f.optimizerName, "optimizer", "sgd",
		"`NAME` of the optimizer, whose state counts by size: "+strings.Join(optim.Names(), ", "), optim.Names()...)
	amount(s, &f.momentum, "momentum", 1, "`M` of sgd and rmsprop, which takes state (default 0.9 for sgd)")
	whole(s, &f.threads, "threads", 1, 1, pipe.MaxThreads,
		fmt.Sprintf("`N` threads within an operator, at most %d", pipe.MaxThreads))
	count(s, &f.repeats, "repeats", 0, "`N` timed runs of each layer, of which the lower quartile counts (default 5, or fewer, at least 2, where they take long)")
	s.Uint64Var(&f.seed, "seed", 1, "`SEED` of weights and sample")
	word(s, &f.format, "format", "text", "`FORMAT` of the output: text or json", "text", "json")
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
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := flags.plan(cmd.Flags())
			if err != nil {
				return err
			}
			if p.costs != nil {
				return p.cutCosts(cmd.OutOrStdout())
			}
			err = p.cutModel(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
			if stop := cmd.Context().Err(); stop != nil && errors.Is(err, stop) {
				return errors.New("interrupted while layers were measured; there is no balance yet")
			}
			return err
		},
	}
	flags.register(cmd)
	return cmd
}

// cutCosts cuts layers whose costs were given.
func (p balancePlan) cutCosts(stdout io.Writer) error {
	counts, err := balance.Partition(p.costs, p.stages)
	if err != nil {
		return badUsage("--costs: %s", message(err))
	}
	sums, err := balance.Sums(p.costs, counts)
	if err != nil {
		return badUsage("--costs: %s", message(err))
	}
	return showCosts(stdout, p.format, counts, sums)
}

// cutModel measures a model and cuts it.
func (p balancePlan) cutModel(ctx context.Context, stdout, stderr io.Writer) error {
	if err := checkOutput(stdout); err != nil {
		return err
	}
	if p.chunks > p.batch {
		fmt.Fprintln(stderr, fewerChunks(p.chunks, p.batch))
	}
	c := torch.NewCtx(torch.Options{Seed: p.seed})
	defer c.Close()
	var sample *torch.Tensor
	if err := torch.Try(func() { sample = p.measured.sample(c, p.rows) }); err != nil {
		return fmt.Errorf("not enough memory for a micro-batch of %d samples: %w; use more --chunks or a smaller --batch",
			p.rows, err)
	}
	show := newLayerProgress(stderr)
	measured, err := profile.Measure(ctx, p.measured.model, profile.Config{
		Peer: torch.CPU(1), Devices: p.stages, Threads: p.threads, MicroBatches: p.microBatches, Repeats: p.repeats, Seed: p.seed, Autocast: p.autocast,
		Clock: clock, BytesOnly: p.by == "size", Progress: show.layer,
	}, sample)
	show.end()
	if err != nil {
		return err
	}
	warnOfTiming(stderr, measured.Timing, measureAgain)
	if p.by == "time" {
		counts, times, err := train.CutByTime(measured, p.policy, p.microBatches)
		if err != nil {
			return err
		}
		return showTimes(stdout, p.format, measured.Layers, counts, times)
	}
	counts, sizes, err := train.CutBySize(measured, p.policy, p.microBatches, p.slots)
	if err != nil {
		return err
	}
	return showSizes(stdout, p.format, measured.Layers, counts, sizes)
}

// layerProgress tells on stderr how far measuring is, as soon as it takes long: on a terminal in
// place, elsewhere in a line now and then.
type layerProgress struct {
	w     io.Writer
	what  string // of what the layers are, where they are measured several times, such as " of 8 rows"
	live  bool   // on a terminal
	next  time.Time
	shown bool
}

func newLayerProgress(w io.Writer) *layerProgress {
	_, live := terminalWidth(w)
	p := &layerProgress{w: w, live: live}
	p.next = time.Now().Add(p.every())
	return p
}

func (p *layerProgress) every() time.Duration {
	if p.live {
		return barEvery
	}
	return lineEvery
}

func (p *layerProgress) layer(done, layers int) {
	now := time.Now()
	if now.Before(p.next) {
		return
	}
	p.next = now.Add(p.every())
	if p.live {
		p.shown = true
		fmt.Fprintf(p.w, "\r\x1b[Kmeasured %d of %d layers%s", done, layers, p.what)
		return
	}
	fmt.Fprintf(p.w, "measured %d of %d layers%s\n", done, layers, p.what)
}

// line writes a line that stays.
func (p *layerProgress) line(text string) {
	p.end()
	fmt.Fprintln(p.w, text)
}

// end clears the line.
func (p *layerProgress) end() {
	if p.shown {
		p.shown = false
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}
