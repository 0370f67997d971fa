package main

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"penstock.example/models"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// trainFlags is the command line of penstock train, as it was typed.
type trainFlags struct {
	modelFlags
	groupFlags
	weights weightFlags

	stages     int
	schedule   string // of the pipeline: a name or a file
	virtual    int
	planned    string                 // a file, or auto; "" is no plan
	decided    bool                   // the plan of auto has given its flags
	allThreads bool                   // --threads all
	anyThreads bool                   // no --threads
	config     pipe.Config            // its Balance is nil if the cut is to be found by timing the layers
	limit      int64                  // bytes; 0 is none
	bytes      map[torch.Device]int64 // the limits of a plan's devices, where limit is 0; nil is none

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
	validate      string // a share, test, or "" for none
	patience      int

	numerics gpuFlags

	out         string
	resume      bool
	autoresume  bool // resume, or begin without a checkpoint
	saveEvery   int64
	newest      int // checkpoints that are kept
	testEvery   int64
	dashboardAt string
	tensorboard string
	traceFile   string
	format      string
}

// groupFlags say which process of which group this one is. Launchers say it in the environment.
type groupFlags struct {
	rank, processes, replicas int
	rendezvous                string
	joinTimeout, silence      time.Duration
}

// weightFlags say which weights a run starts from, and how their names become the model's.
type weightFlags struct {
	init      string // "" is none
	rename    []string
	rules     nn.WeightsConfig
	trainOnly []string // layers; nil is all
}

func (f *trainFlags) register(cmd *cobra.Command) {
	s := cmd.Flags()
	s.SortFlags = false
	namesFlags(s, &f.modelName, &f.settings)
	f.dataFlags.register(s, "")

	count(s, &f.stages, "stages", 1, "`N` stages side by side (default: as many as there are processes)")
	list(s, &f.config.Balance, "balance", "`N,N,...` layers of each stage (default: even by measured time)",
		integer)
	list(s, &f.config.Devices, "devices", "`LIST` of devices, one for each of --stages (default "+
		"cpu:0,cpu:1,...)", torch.ParseDevice)
	count(s, &f.config.Chunks, "chunks", 8, "`N` micro-batches of each batch")
	path(s, &f.schedule, "schedule", "`NAME|FILE` of the order in which stages run micro-batches: "+
		strings.Join(scheduleNames(), ", ")+", or a file with a program (default gpipe)")
	count(s, &f.virtual, "virtual", 0,
		"`N` stages on each device, N times as many in all (default 2 for schedules of several, 1 otherwise)")
	path(s, &f.planned, "plan", "`FILE` with a plan of penstock plan --model; or auto, to make one now")
	s.StringVar((*string)(&f.config.Checkpoint), "checkpoint", "except_last",
		"`POLICY` of recomputing activations to save memory: never, except_last, always, optimal (the "+
			"fastest within --memory-limit), or a list with one for each stage")
	s.BoolVar(&f.config.DeferredBatchNorm, "deferred-batch-norm", false,
		"update running statistics of batch norms once a batch, not once a micro-batch")
	autocastFlag(s, &f.config.Autocast, "run forwards in fewer bits where that is safe; weights stay float32")
	f.numerics.register(s)
	threadsFlag(s, &f.config.Threads, &f.allThreads, "1, or more if they are measured to be faster")
	size(s, &f.limit, "memory-limit", "most memory of each device, as a `SIZE` such as 512MiB (default none)")

	count(s, &f.batch, "batch", 256, "`N` samples in a batch")
	count(s, &f.accumulate, "accumulate", 1, "`N` batches in a step, whose gradients are added up")
	count(s, &f.steps, "steps", 0, "`N` steps in all, with those before a resumed run (default: as many "+
		"as --epochs take)")
	count(s, &f.epochs, "epochs", 0, "`N` times through the data in all (default 1, or no limit with "+
		"--steps)")
	optimizerFlags(s, &f.optimizerName, &f.update.Momentum)
	amount(s, &f.update.LR, "lr", math.Inf(1),
		"learning `RATE` (default 0.1 for sgd, 0.01 for rmsprop, 0.001 for others)")
	s.BoolVar(&f.update.Nesterov, "nesterov", false, "Nesterov momentum")
	amount(s, &f.update.WeightDecay, "weight-decay", math.Inf(1),
		"`W` that pulls weights to zero (default none)")
	texts(s, &f.groups, "group", "`RULE` PATTERN:scale=X,weight-decay=W for parameters with these names: "+
		"factor of --lr, and other --weight-decay; * is any text; may be repeated, the first that fits "+
		"counts")
	word(s, &f.lrSchedule, "lr-schedule", "constant",
		"`NAME` of the learning rate's schedule: "+strings.Join(optim.ScheduleNames(), ", "),
		optim.ScheduleNames()...)
	whole(s, &f.warmup, "warmup", 0, 0, math.MaxInt32, "`N` first steps in which the rate rises to --lr "+
		"(default none)")
	count(s, &f.scheduleSteps, "schedule-steps", 0, "`N` steps that --lr-schedule spans (default: the "+
		"whole run)")
	amount(s, &f.clipNorm, "clip-norm", math.Inf(1), "greatest `NORM` of all gradients together "+
		"(default any)")
	s.Uint64Var(&f.config.Seed, "seed", 1, "`SEED` of weights, order of the data and dropout")

	path(s, &f.weights.init, "init", "`FILE` of weights to start from, as safetensors; a resumed run has "+
		"its own")
	texts(s, &f.weights.rename, "init-rename", "`OLD=NEW` parts of the names in --init; may be repeated")
	texts(s, &f.weights.rules.Skip, "init-skip", "`NAME` to leave out of --init; * is any text; may be "+
		"repeated")
	trainOnlyFlag(s, &f.weights.trainOnly)
	s.BoolVar(&f.weights.rules.Partial, "init-partial", false, "leave out what only --init has, or only "+
		"the model")

	count(s, &f.processes, "processes", 1, "`N` processes of the run, if they are started one by one "+
		"(default: as penstock launch, torchrun, srun or mpirun says)")
	whole(s, &f.rank, "rank", 0, 0, 1<<31-1, "`R` of this process among --processes, from 0")
	count(s, &f.replicas, "replicas", 1, "`N` copies of the pipeline, each on its own rows of a batch, "+
		"one in an equal share of the processes or several in each")
	address(s, &f.rendezvous, "rendezvous", "", "`HOST:PORT` of rank 0, where processes meet")
	duration(s, &f.joinTimeout, "join-timeout", "`TIME` to wait for the others at a start, such as 90s "+
		"(default 5m)")
	duration(s, &f.silence, "silence", "`TIME` after which a silent process is lost, such as 30s "+
		"(default 5s)")

	path(s, &f.out, "out", "`DIR` for checkpoints, metrics.jsonl and the report; without it nothing is saved")
	s.BoolVar(&f.resume, "resume", false, "go on from the newest checkpoint in --out")
	s.BoolVar(&f.autoresume, "autoresume", false, "go on from the newest checkpoint in --out if there is "+
		"one, or begin")
	count(s, &f.saveEvery, "save-every", 0, "save every `N` steps (default: at the end of each epoch); "+
		"always at the end")
	count(s, &f.testEvery, "test-every", 0, "test every `N` steps (default: at the end)")
	s.Var(&value{read: func(text string) error {
		if x, err := strconv.ParseFloat(text, 64); text != partTest && (err != nil || !(x > 0 && x < 1)) {
			return errors.New("want a share of the training samples between 0 and 1, such as 0.1, or test " +
				"for the test data")
		}
		f.validate = text
		return nil
	}}, "validate", "`SHARE` of the training samples to hold out and validate on after each epoch; or "+
		"test, for the test data")
	count(s, &f.patience, "patience", 0,
		"stop after `N` whole epochs in a row in which --validate found no lower loss (default: never)")
	count(s, &f.newest, "keep", 2, "`N` newest checkpoints that are kept, besides the best of --validate")
	path(s, &f.tensorboard, "tensorboard", "`DIR` for event files of TensorBoard")
	address(s, &f.dashboardAt, "dashboard", "127.0.0.1",
		"`HOST:PORT` of a page that shows the run; without a host only for this machine; port 0 is any")
	path(s, &f.traceFile, "trace", "`FILE` for the timeline of one step, as a Chrome trace; a picture if "+
		"it ends in .svg")
	word(s, &f.format, "format", "text", "`FORMAT` of stdout: text, or json for one object per line", "text",
		"json")
}

// namesFlags are --model and --set.
func namesFlags(s *pflag.FlagSet, model *string, set *[]string) {
	word(s, model, "model", "", "`NAME` of the model; penstock models lists them", models.Names()...)
	texts(s, set, "set", "`NAME=VALUE,...` options of the model; penstock models NAME lists them")
}

// optimizerFlags are --optimizer and --momentum, on which the bytes of the optimizer's state depend.
func optimizerFlags(s *pflag.FlagSet, optimizer *string, momentum *float64) {
	word(s, optimizer, "optimizer", "sgd", "`NAME` of the optimizer: "+strings.Join(optim.Names(), ", "),
		optim.Names()...)
	amount(s, momentum, "momentum", 1, "`M` of sgd and rmsprop, from 0 to below 1 (default 0.9 for sgd)")
}

// trainOnlyFlag is --train-only.
func trainOnlyFlag(s *pflag.FlagSet, to *[]string) {
	texts(s, to, "train-only", "`NAME` of the layers to train, others are frozen; * is any text; may be "+
		"repeated")
}
