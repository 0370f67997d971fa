package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"penstock/data"
	"penstock/models"
	"penstock/optim"
	"penstock/pipe"
)

// trainFlags is the command line of penstock train, as it was typed.
type trainFlags struct {
	modelName, dataName, dataDir string
	settings                     []string
	window                       int

	stages     int
	rawBalance string
	rawDevices string
	chunks     int
	policyName string
	deferred   bool
	autocast   bool
	threads    int
	rawLimit   string

	batch         int
	steps         int64
	epochs        int
	optimizerName string
	lr            float64
	momentum      float64
	nesterov      bool
	weightDecay   float64
	scheduleName  string
	warmup        int
	scheduleSteps int
	clipNorm      float64
	seed          uint64

	out       string
	resume    bool
	saveEvery int64
	traceFile string
	format    string
}

func (f *trainFlags) register(cmd *cobra.Command) {
	s := cmd.Flags()
	s.SortFlags = false
	s.StringVar(&f.modelName, "model", "", "`NAME` of the model: "+strings.Join(models.Names(), ", "))
	s.StringArrayVar(&f.settings, "set", nil, "`NAME=VALUE,...` options of the model, which penstock models NAME lists; what the data decides cannot be set")
	s.StringVar(&f.dataName, "data", "", "`NAME` of the data set: "+strings.Join(data.Names(), ", "))
	s.StringVar(&f.dataDir, "data-dir", "", "`PATH` of its files; fashion-mnist has a usual place, synthetic has none")
	s.IntVar(&f.window, "window", 128, "`N` bytes in a sample of text")

	s.IntVar(&f.stages, "stages", 1, "`N` stages to cut the model into")
	s.StringVar(&f.rawBalance, "balance", "", "`N,N,...` layers of each stage; left out, layers are timed and cut evenly")
	s.StringVar(&f.rawDevices, "devices", "", "`LIST` of devices, one for each stage (default cpu:0,cpu:1,...)")
	s.IntVar(&f.chunks, "chunks", 8, "`N` micro-batches of each batch")
	s.StringVar(&f.policyName, "checkpoint", "except_last", "`POLICY` of recomputing activations to save memory: never, except_last, always, or optimal, which plans what is fastest within --memory-limit; or a list with one for each stage")
	s.BoolVar(&f.deferred, "deferred-batch-norm", false, "move running statistics of batch norms once a batch, by all its rows, not once a micro-batch")
	s.BoolVar(&f.autocast, "autocast", false, "run forwards in bfloat16 where that is safe; weights, gradients and optimizer stay float32")
	s.IntVar(&f.threads, "threads", 1, fmt.Sprintf("`N` threads within an operator, on each stage, at most %d", pipe.MaxThreads))
	s.StringVar(&f.rawLimit, "memory-limit", "", "most memory of each device, as a `SIZE` such as 512MiB (default none)")

	s.IntVar(&f.batch, "batch", 256, "`N` samples in a batch")
	s.Int64Var(&f.steps, "steps", 0, "`N` steps in all, those before a resumed run counted (default: as many as --epochs take)")
	s.IntVar(&f.epochs, "epochs", 0, "`N` times through the data in all (default 1, or no limit with --steps)")
	s.StringVar(&f.optimizerName, "optimizer", "sgd", "`NAME` of the optimizer: "+strings.Join(optim.Names(), ", "))
	s.Float64Var(&f.lr, "lr", 0, "learning `RATE` (default 0.1 for sgd, 0.01 for rmsprop, 0.001 for others)")
	s.Float64Var(&f.momentum, "momentum", 0, "`M` of sgd and rmsprop, from 0 to below 1 (default 0.9 for sgd)")
	s.BoolVar(&f.nesterov, "nesterov", false, "Nesterov momentum")
	s.Float64Var(&f.weightDecay, "weight-decay", 0, "`W` that pulls weights to zero (default none)")
	s.StringVar(&f.scheduleName, "schedule", "constant", "`NAME` of the learning rate's schedule: "+strings.Join(optim.ScheduleNames(), ", "))
	s.IntVar(&f.warmup, "warmup", 0, "`N` first steps in which the rate rises to --lr (default none)")
	s.IntVar(&f.scheduleSteps, "schedule-steps", 0, "`N` steps that the schedule spans (default: the whole run)")
	s.Float64Var(&f.clipNorm, "clip-norm", 0, "greatest `NORM` of all gradients together (default any)")
	s.Uint64Var(&f.seed, "seed", 1, "`SEED` of weights, order of the data and dropout")

	s.StringVar(&f.out, "out", "", "`DIR` to save checkpoints in; without it nothing is saved")
	s.BoolVar(&f.resume, "resume", false, "go on from the newest checkpoint in --out")
	s.Int64Var(&f.saveEvery, "save-every", 0, "save every `N` steps (default: at the end of each epoch); always at the end")
	s.StringVar(&f.traceFile, "trace", "", "`FILE` for the timeline of one step, which chrome://tracing and ui.perfetto.dev open")
	s.StringVar(&f.format, "format", "text", "`FORMAT` of what stdout gets: text, or json for one object per line")
}

// flagOf is the flag that sets a field of a train.Recipe.
func flagOf(field string) string {
	switch top, _, _ := strings.Cut(field, "."); {
	case field == "clip_norm":
		return "--clip-norm"
	case field == "deferred_batch_norm":
		return "--deferred-batch-norm"
	case strings.HasPrefix(field, "data.settings"):
		return "--data-dir"
	case slices.Contains([]string{"model.settings.classes", "model.settings.channels", "model.settings.size", "model.settings.context"}, field):
		return "--data"
	case strings.HasPrefix(field, "model.settings"):
		return "--set"
	case strings.HasPrefix(field, "tensor "):
		return "--model"
	case strings.Contains(field, ".settings."):
		return "--" + field[strings.LastIndex(field, ".")+1:]
	default:
		return "--" + top
	}
}

// shellQuoted is words as a shell takes them.
func shellQuoted(words []string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=.,:/+@%"
	var out []string
	for _, w := range words {
		if w == "" || strings.Trim(w, plain) != "" {
			w = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
		out = append(out, w)
	}
	return strings.Join(out, " ")
}
