package main

import (
	"math"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"penstock.example/models"
	"penstock.example/optim"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// trainFlags is the command line of penstock train, as it was typed.
type trainFlags struct {
	modelFlags
	groupFlags
	weights weightFlags
	validateFlags

	stages     int
	schedule   string // of the pipeline: a name or a file
	virtual    int
	planned    string                 // a file, or auto; "" is no plan
	plannedFor *dataLine              // what the plan of a file is for; nil is not known
	ofFile     planFile               // the file, and the flags that it has given
	decided    bool                   // the plan of auto has given its flags
	allThreads bool                   // --threads all
	anyThreads bool                   // no --threads
	config     pipe.Config            // its Balance is nil if the cut is to be found by timing the layers
	limit      int64                  // bytes; 0 is none
	bytes      map[torch.Device]int64 // the limits of a plan's devices, where limit is 0; nil is none
	foreseen   []int64                // the peaks of a plan, by device; nil is not known

	batch         int
	accumulate    int // batches of a step
	steps         int64
	epochs        int
	optimizerName string
	update        optim.Config
	groups        []string // of parameters
	lrSchedule    string
	warmup        int
	scheduleSteps int
	clipNorm      float64

	numerics gpuFlags

	out         string
	resume      bool
	autoresume  bool // if there is a checkpoint
	saveEvery   int64
	testEvery   int64
	dashboardAt string
	tensorboard string
	traceFile   string
	format      string
}

func (f *trainFlags) register(cmd *cobra.Command) {
	s := cmd.Flags()
	s.SortFlags = false
	word(s, &f.modelName, "model", "", "`NAME` of the model; penstock models lists them", models.Names()...)
	s.StringArrayVar(&f.settings, "set", nil,
		"`NAME=VALUE,...` options of the model, which penstock models NAME lists; what the data decides cannot be set")
	f.dataFlags.register(s, "")

	count(s, &f.stages, "stages", 1, "`N` stages side by side, which the model is cut into (default: as many as there are processes)")
	list(s, &f.config.Balance, "balance", "`N,N,...` layers of each stage; left out, layers are timed and cut evenly", layers)
	list(s, &f.config.Devices, "devices", "`LIST` of devices, one for each of --stages (default cpu:0,cpu:1,...)", device)
	count(s, &f.config.Chunks, "chunks", 8, "`N` micro-batches of each batch")
	path(s, &f.schedule, "schedule", "`NAME|FILE` of the order in which stages run micro-batches: "+strings.Join(pipelineSchedules(), ", ")+
		", or a file with a program (default gpipe)")
	count(s, &f.virtual, "virtual", 0, "`N` parts of the model on each device, which --schedule places: N times as many stages (default 2 for schedules of several, 1 otherwise)")
	path(s, &f.planned, "plan", "`FILE` with a plan of penstock plan --model, which says model, batch, balance, schedule, chunks, threads, limit and policy; or auto, to make one now")
	s.StringVar((*string)(&f.config.Checkpoint), "checkpoint", "except_last",
		"`POLICY` of recomputing activations to save memory: never, except_last, always, or optimal, which plans what is fastest within --memory-limit; or a list with one for each stage")
	s.BoolVar(&f.config.DeferredBatchNorm, "deferred-batch-norm", false,
		"move running statistics of batch norms once a batch, by all its rows, not once a micro-batch")
	autocastFlag(s, &f.config.Autocast, "run forwards in fewer bits where that is safe; weights, gradients and optimizer stay float32")
	f.numerics.register(s)
	threadsFlag(s, &f.config.Threads, &f.allThreads, "1, or as many as train the model faster, by measured time")
	size(s, &f.limit, "memory-limit", "most memory of each device, as a `SIZE` such as 512MiB (default none)")

	count(s, &f.batch, "batch", 256, "`N` samples in a batch")
	count(s, &f.accumulate, "accumulate", 1, "`N` batches in a step, run one after the other, whose gradients are added up; the last step of an epoch takes those that are left")
	count(s, &f.steps, "steps", 0, "`N` steps in all, those before a resumed run counted (default: as many as --epochs take)")
	count(s, &f.epochs, "epochs", 0, "`N` times through the data in all (default 1, or no limit with --steps)")
	word(s, &f.optimizerName, "optimizer", "sgd", "`NAME` of the optimizer: "+strings.Join(optim.Names(), ", "), optim.Names()...)
	amount(s, &f.update.LR, "lr", math.Inf(1), "learning `RATE` (default 0.1 for sgd, 0.01 for rmsprop, 0.001 for others)")
	amount(s, &f.update.Momentum, "momentum", 1, "`M` of sgd and rmsprop, from 0 to below 1 (default 0.9 for sgd)")
	s.BoolVar(&f.update.Nesterov, "nesterov", false, "Nesterov momentum")
	amount(s, &f.update.WeightDecay, "weight-decay", math.Inf(1), "`W` that pulls weights to zero (default none)")
	s.StringArrayVar(&f.groups, "group", nil, "`RULE` PATTERN:scale=X,weight-decay=W for the parameters with these names, where * stands for any text: what --lr is multiplied by, and another --weight-decay; may be given several times, and the first that fits counts")
	word(s, &f.lrSchedule, "lr-schedule", "constant",
		"`NAME` of the learning rate's schedule: "+strings.Join(optim.ScheduleNames(), ", "), optim.ScheduleNames()...)
	whole(s, &f.warmup, "warmup", 0, 0, math.MaxInt32, "`N` first steps in which the rate rises to --lr (default none)")
	count(s, &f.scheduleSteps, "schedule-steps", 0, "`N` steps that --lr-schedule spans (default: the whole run)")
	amount(s, &f.clipNorm, "clip-norm", math.Inf(1), "greatest `NORM` of all gradients together (default any)")
	s.Uint64Var(&f.config.Seed, "seed", 1, "`SEED` of weights, order of the data and dropout")

	f.weights.register(s)
	f.groupFlags.register(s)

	path(s, &f.out, "out", "`DIR` to save checkpoints, metrics.jsonl and what penstock report needs in; without it nothing is saved")
	s.BoolVar(&f.resume, "resume", false, "go on from the newest checkpoint in --out")
	s.BoolVar(&f.autoresume, "autoresume", false, "go on from the newest checkpoint in --out if there is one, or begin: the same command line for every start of a job")
	count(s, &f.saveEvery, "save-every", 0, "save every `N` steps (default: at the end of each epoch); always at the end")
	count(s, &f.testEvery, "test-every", 0, "test every `N` steps (default: at the end)")
	f.validateFlags.register(s)
	path(s, &f.tensorboard, "tensorboard", "`DIR` for event files with the numbers of each step, which TensorBoard reads")
	listenAddress(s, &f.dashboardAt, "dashboard", "`HOST:PORT` at which a page shows the run as it goes on; without a host only to this machine, and port 0 is any")
	path(s, &f.traceFile, "trace", "`FILE` for the timeline of one step, which chrome://tracing and ui.perfetto.dev open; a picture if it ends in .svg")
	word(s, &f.format, "format", "text", "`FORMAT` of what stdout gets: text, or json for one object per line", "text", "json")
}

// flagOf is the flag that sets a field of a train.Recipe.
func flagOf(field string) string {
	switch top, _, _ := strings.Cut(field, "."); {
	case field == "clip_norm":
		return "--clip-norm"
	case field == "schedule.name":
		return "--lr-schedule"
	case field == "deferred_batch_norm":
		return "--deferred-batch-norm"
	case field == "train_only":
		return "--train-only"
	case field == "save_every":
		return "--save-every"
	case field == "data.settings.validation":
		return "--validate"
	case strings.HasPrefix(field, "data.settings.chosen"), field == "the SHA-256 of the tokenizer":
		return "--data-set"
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

// assigned is what assignments such as "B=6,C=12" say, the last one for a name.
func assigned(lists []string) map[string]any {
	out := map[string]any{}
	for _, list := range lists {
		for assignment := range strings.SplitSeq(list, ",") {
			name, value, _ := strings.Cut(assignment, "=")
			out[name] = value
		}
	}
	return out
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
