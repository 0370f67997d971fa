package command

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/BurntSushi/toml"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"penstock.example/internal/arg"
	"penstock.example/internal/disk"
	"penstock.example/internal/option"
	"penstock.example/internal/system"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/pipe"
	"penstock.example/torch"
)

type trainFlags struct {
	modelFlags
	groupFlags
	weights weightFlags

	stages, virtual            int
	schedule, planFrom         string                 // names or files; "" is none
	allThreads, defaultThreads bool                   // --threads all, and no --threads
	config                     pipe.Config            // a nil Balance is found by timing the layers
	limit                      int64                  // bytes; 0 is none
	deviceLimits               map[torch.Device]int64 // limits of the plan's devices if limit is 0

	batch, accumulate     int
	dropLast              bool
	steps                 int64
	epochs, patience      int
	optimizerName         string
	update                optim.Config
	groups                []string // of parameters
	betas                 []float64
	lrSchedule            rateFlag
	warmup, scheduleSteps int
	clipNorm              float64
	validate              string // a share, test, or "" for none
	numerics              gpuFlags

	out, dashboardAt, tensorboard, traceFile, format string
	resume, autoresume, changedData                  bool
	saveEvery, testEvery                             int64
	keep                                             int // number of newest checkpoints
}

// groupFlags say which process of which group this one is. Launchers say it in the environment.
type groupFlags struct {
	rank, processes, replicas int
	rendezvous                string
	joinTimeout, silence      time.Duration
}

type weightFlags struct {
	init      string // "" is none
	adapter   string // a folder; "" is none
	rename    []string
	rules     nn.WeightsConfig
	trainOnly []string // layers; nil is all
}

func (f *trainFlags) register(cmd *cobra.Command) {
	s := cmd.Flags()
	s.SortFlags = false
	f.modelFlags.register(s)
	option.Path(s, &f.weights.init, "init", "`FILE` of safetensors with the weights to start from")
	s.StringArrayVar(&f.weights.rename, "init-rename", nil,
		"`OLD=NEW` parts of the names in --init; may be repeated")
	s.StringArrayVar(&f.weights.rules.Skip, "init-skip", nil,
		"`NAME` to skip in --init; * is any text; may be repeated")
	s.BoolVar(&f.weights.rules.Partial, "init-partial", false, "skip names that --init or the model lacks")
	option.Path(s, &f.weights.adapter, "adapter", "`FOLDER` of a LoRA adapter of PEFT to start from")
	trainOnlyFlag(s, &f.weights.trainOnly)
	option.Section(s, "Model")

	f.dataFlags.register(s, "")
	option.Count(s, &f.batch, "batch", 256, "`N` samples in a batch")
	s.BoolVar(&f.dropLast, "drop-last", false, "leave out the last batch of an epoch if it is short")
	s.Var(&option.Value{Read: func(text string) error {
		if text != partTest && arg.Share(new(float64))(text) != nil {
			return errors.New("want a share of the training samples between 0 and 1, such as 0.1, or test")
		}
		f.validate = text
		return nil
	}}, "validate", "`SHARE` of the training samples to validate on after each epoch; or test")
	option.Section(s, "Data")

	option.Count(s, &f.stages, "stages", 1, "`N` stages of the pipeline; several processes have one each")
	option.List(s, &f.config.Balance, "balance", "`N,N,...` layers of each stage (default: even by time)",
		option.Integer)
	devicesFlag(s, &f.config.Devices)
	option.Count(s, &f.config.Chunks, "chunks", 8, "`N` micro-batches of each batch")
	option.Path(s, &f.schedule, "schedule", "`NAME|FILE` of the pipeline's schedule: "+
		strings.Join(scheduleNames(), ", ")+"; or a file with a program (default gpipe)")
	option.Count(s, &f.virtual, "virtual", 0,
		"`N` stages on each device (default 2 if --schedule uses several)")
	option.Path(s, &f.planFrom, "plan", "`FILE` of penstock plan --model; or auto, to plan now")
	s.BoolVar(&f.config.DeferredBatchNorm, "deferred-batch-norm", false,
		"update running statistics of batch norms once a batch, not once a micro-batch")
	f.config.Threads = 1
	s.Var(&option.Value{Read: func(text string) (err error) {
		if f.allThreads = text == "all"; f.allThreads {
			return nil
		}
		if err = arg.Whole(&f.config.Threads, 1, system.MaxThreads)(text); err != nil {
			err = fmt.Errorf("%w, or all", err)
		}
		return err
	}}, "threads", "`N` threads of each device; or all, its share of the cores (default 1, or more if "+
		"measured to be faster)")
	f.numerics.register(s)
	option.Section(s, "Pipeline")

	limitFlag(s, &f.limit)
	f.config.Checkpoint = pipe.ExceptLast
	s.Var(&option.Value{Text: string(pipe.ExceptLast), Read: func(text string) error {
		f.config.Checkpoint = pipe.Checkpoint(text)
		return nil
	}}, "checkpoint", checkpointUsage)
	autocastFlag(s, &f.config.Autocast)
	option.Section(s, "Memory")

	option.Count(s, &f.steps, "steps", 0, "`N` steps in all, also of a resumed run (default: by --epochs)")
	option.Count(s, &f.epochs, "epochs", 0, "`N` times through the data in all (default: by --steps, or 1)")
	option.Count(s, &f.accumulate, "accumulate", 1, "`N` batches in a step, whose gradients are added up")
	optimizerFlags(s, &f.optimizerName, &f.update.Momentum)
	option.Amount(s, &f.update.LR, "lr", math.Inf(1),
		"learning `RATE` (default 0.1 for sgd, 0.01 for rmsprop, 0.001 for others)")
	s.BoolVar(&f.update.Nesterov, "nesterov", false, "Nesterov momentum")
	option.List(s, &f.betas, "betas", "`B,B` of adam and adamw (default 0.9,0.999)", option.Number)
	option.Amount(s, &f.update.Eps, "eps", math.Inf(1), "`E` of adam, adamw and rmsprop (default 1e-8)")
	option.Amount(s, &f.update.WeightDecay, "weight-decay", math.Inf(1), "`W` is the decay of weights "+
		"(default 0.01 for adamw)")
	s.StringArrayVar(&f.groups, "group", nil, "`RULE` PATTERN:scale=X,weight-decay=W gives parameters a "+
		"factor of --lr and their own decay; * is any text; may be repeated, the first match counts")
	f.lrSchedule.name = "constant"
	s.Var(&option.Value{Text: "constant", Read: f.lrSchedule.read}, "lr-schedule", "`NAME` of the learning "+
		"rate's schedule: "+strings.Join(rateSchedules, ", ")+"; with options as in step:size=30,gamma=0.1")
	option.Whole(s, &f.warmup, "warmup", 0, 0, math.MaxInt32, "`N` first steps, while the rate rises to --lr")
	option.Count(s, &f.scheduleSteps, "schedule-steps", 0, "`N` steps of --lr-schedule (default: the run's)")
	option.Amount(s, &f.clipNorm, "clip-norm", math.Inf(1), "largest `NORM` of all gradients together")
	option.Count(s, &f.patience, "patience", 0, "stop after `N` epochs without a lower loss of --validate")
	s.Uint64Var(&f.config.Seed, "seed", 1, "`SEED` of weights, order of the data and dropout")
	option.Section(s, "Training")

	option.Path(s, &f.out, "out", "`DIR` for checkpoints, metrics.jsonl and the report (default none)")
	s.BoolVar(&f.resume, "resume", false, "go on from the newest checkpoint in --out, with its flags")
	s.BoolVar(&f.autoresume, "autoresume", false, "--resume if --out has a checkpoint")
	s.BoolVar(&f.changedData, "changed-data", false, "let --resume go on with other samples than before")
	option.Count(s, &f.saveEvery, "save-every", 0, "save every `N` steps (default: after each epoch)")
	option.Count(s, &f.testEvery, "test-every", 0, "test every `N` steps and at the end")
	option.Count(s, &f.keep, "keep", 2, "keep the `N` newest checkpoints, and the best of --validate")
	option.Path(s, &f.tensorboard, "tensorboard", "`DIR` for event files of TensorBoard")
	option.Address(s, &f.dashboardAt, "dashboard", "127.0.0.1", "`HOST:PORT` of a page that shows the run")
	option.Path(s, &f.traceFile, "trace", "`FILE` for a step's timeline: Chrome trace, or picture with .svg")
	option.Word(s, &f.format, "format", "text", "`FORMAT` of stdout: text, or json in lines", "text", "json")
	option.Section(s, "Output")

	option.Count(s, &f.processes, "processes", 1, "`N` processes of the run, without a launcher")
	option.Whole(s, &f.rank, "rank", 0, 0, 1<<31-1, "`R` of this process among --processes, from 0")
	option.Count(s, &f.replicas, "replicas", 1, "`N` copies of the pipeline, each on its own rows of a batch")
	option.Address(s, &f.rendezvous, "rendezvous", "", "`HOST:PORT` of rank 0, where processes meet")
	option.Duration(s, &f.joinTimeout, "join-timeout", "`TIME` to wait for the other processes (default 5m)")
	option.Duration(s, &f.silence, "silence", "`TIME` after which a silent process is lost (default 5s)")
	option.Section(s, "Processes")
}

const checkpointUsage = "`POLICY` of recomputing activations to save memory: never, except_last, always, " +
	"optimal (the fastest within --memory-limit), or a list with one for each stage"

const plateau = "plateau"

var rateSchedules = append(optim.ScheduleNames(), plateau)

// rateFlag is --lr-schedule NAME:OPTION=VALUE,...
type rateFlag struct {
	name, options string // options as they were typed
	config        optim.ScheduleConfig
	plateau       optim.Plateau
}

func (f *rateFlag) read(text string) error {
	*f = rateFlag{plateau: optim.Plateau{Patience: 10}}
	f.name, f.options, _ = strings.Cut(text, ":")
	if !slices.Contains(rateSchedules, f.name) {
		return errors.New(arg.OneOf(f.name, rateSchedules))
	}
	option := func(name, byDefault string, to *float64) arg.Setting {
		return arg.Setting{Name: name, Default: byDefault, Read: arg.Amount(to, math.Inf(1))}
	}
	c := &f.config
	settings := map[string][]arg.Setting{
		"step": {{Name: "size", Default: "a third of the steps",
			Read: arg.Whole(&c.StepSize, 1, math.MaxInt32)}, option("gamma", "0.1", &c.Gamma)},
		"cosine": {option("min", "0", &c.MinLR)},
		"linear": {option("min", "0", &c.MinLR)},
		"one-cycle": {option("rise", "0.3", &c.Rise), option("div", "25", &c.DivFactor),
			option("final-div", "10000", &c.FinalDivFactor)},
		plateau: {option("factor", "0.1", &f.plateau.Factor),
			{Name: "patience", Default: "10", Read: arg.Whole(&f.plateau.Patience, 1, math.MaxInt32)},
			option("min", "0", &f.plateau.Lowest)},
	}
	if f.options == "" {
		return nil
	}
	return arg.Set(f.name, settings[f.name], []string{f.options})
}

func (f *modelFlags) register(s *pflag.FlagSet) {
	modelFlag(s, &f.modelName)
	s.StringArrayVar(&f.settings, "set", nil,
		"`NAME=VALUE,...` options of the model; see penstock models NAME")
	f.lora.register(s)
}

func optimizerFlags(s *pflag.FlagSet, optimizer *string, momentum *float64) {
	option.Word(s, optimizer, "optimizer", "sgd", "`NAME` of the optimizer: "+
		strings.Join(optim.Names(), ", "), optim.Names()...)
	option.Amount(s, momentum, "momentum", 1,
		"`M` of sgd and rmsprop, from 0 to below 1 (default 0.9 for sgd)")
}

func trainOnlyFlag(s *pflag.FlagSet, to *[]string) {
	s.StringArrayVar(to, "train-only", nil,
		"`NAME` of layers to train, * any text; may be repeated (default all)")
}

func devicesFlag(s *pflag.FlagSet, to *[]torch.Device) {
	option.List(s, to, "devices", "`LIST`, one for each of --stages (default cpu:0,cpu:1,...)", readDevice)
}

func limitFlag(s *pflag.FlagSet, to *int64) {
	option.Size(s, to, "memory-limit", "most memory of each device, as `SIZE` such as 512MiB (default none)")
}

// gpuFlags say how GPUs compute.
type gpuFlags struct{ deterministic, tf32 bool }

func (f *gpuFlags) register(s *pflag.FlagSet) {
	s.BoolVar(&f.deterministic, "deterministic", true,
		"have GPUs compute the same bits each time, but slower; CPUs always do")
	s.BoolVar(&f.tf32, "tf32", false, "have GPUs multiply and convolve float32 in TF32, which is faster")
}

func (f gpuFlags) check(s *pflag.FlagSet, devices []torch.Device) error {
	gpu := slices.ContainsFunc(devices, func(d torch.Device) bool { return d.Kind != torch.KindCPU })
	return refuseWithout(s, gpu, "a GPU among --devices", "deterministic", "tf32")
}

// apply must come before anything is computed.
func (f gpuFlags) apply() {
	torch.SetDeterministic(f.deterministic)
	torch.SetTF32(f.tf32)
}

func autocastFlag(s *pflag.FlagSet, to *torch.Autocast) {
	words := []string{"off", "bfloat16", "float16"}
	s.Var(&option.Value{Text: words[0], Words: words, Read: func(text string) (err error) {
		inFile := map[string]string{"true": words[1], "false": words[0]}[text] // autocast = true
		if *to, err = torch.ParseAutocast(cmp.Or(inFile, text)); err != nil {
			return errors.New(arg.OneOf(text, words))
		}
		return nil
	}}, "autocast", "run forwards in `TYPE` bfloat16 or float16 where that is safe; weights stay float32")
	s.Lookup("autocast").NoOptDefVal = words[1]
}

// joinAutocast joins --autocast and a type to one argument, as pflag wants it of a flag with NoOptDefVal.
func joinAutocast(args []string) []string {
	for i := len(args) - 1; i > 0; i-- {
		if _, err := torch.ParseAutocast(args[i]); err == nil && args[i-1] == "--autocast" {
			args = slices.Concat(args[:i-1], []string{"--autocast=" + args[i]}, args[i+1:])
		}
	}
	return args
}

func flagError(cmd *cobra.Command, err error) error { return badUsage("%w", option.Error(cmd, err)) }

func readDevice(word string) (torch.Device, error) {
	d, err := torch.ParseDevice(word)
	if err != nil {
		err = errors.New(message(err))
	}
	return d, err
}

const flagsFile = "config.toml"

// neverSaved are flags that are not kept in --out for --resume.
var neverSaved = []string{"resume", "autoresume", "changed-data"}

var neverInFiles = []string{"config", "help", "rank", "processes", "rendezvous"}

func configurable(cmd *cobra.Command) *cobra.Command {
	var file string
	option.Path(cmd.Flags(), &file, "config", "`FILE` of default flags in TOML, such as batch = 64")
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		if file != "" {
			err = readConfig(cmd, file, nil)
		}
		if err != nil {
			return badUsage("--config %w", err)
		}
		return run(cmd, args)
	}
	return cmd
}

// A given flag of flagGroups overrides all saved flags of its group.
var flagGroups = [][]string{{"steps", "epochs"},
	{"stages", "balance", "devices", "schedule", "virtual", "plan", "replicas"}}

func readSaved(cmd *cobra.Command, out string) error {
	file := filepath.Join(out, flagsFile)
	if _, err := os.Stat(file); out == "" || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var without []string
	for _, group := range flagGroups {
		if slices.ContainsFunc(group, cmd.Flags().Changed) {
			without = append(without, group...)
		}
	}
	err := readConfig(cmd, file, func(name string) bool { return !slices.Contains(without, name) })
	if err != nil {
		err = badUsage("--resume: %w", err)
	}
	return err
}

// readConfig sets flags from a file: those for which use is true, or all if use is nil.
func readConfig(cmd *cobra.Command, file string, use func(name string) bool) error {
	s := cmd.Flags()
	settings, err := readParsed(cmd, file, func(text []byte) (settings map[string]any, err error) {
		if len(text) > disk.MaxFlags {
			return nil, fmt.Errorf("it has %d bytes; want at most %d", len(text), disk.MaxFlags)
		}
		return settings, toml.Unmarshal(text, &settings)
	})
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		if use != nil && !use(name) {
			continue
		}
		if s.Lookup(name) == nil || slices.Contains(neverInFiles, name) {
			return fmt.Errorf("%s: %s is no flag there; want flags of %s, without --", file, name,
				cmd.CommandPath())
		}
		if err := setFlag(s, name, settings[name]); err != nil {
			return fmt.Errorf("%s: %w", file, disk.Short(flagError(cmd, err)))
		}
	}
	return nil
}

// setFlag sets a flag to a value in TOML, unless the flag is given. The elements of an array are joined by
// commas, or set one by one if the flag may be repeated.
func setFlag(s *pflag.FlagSet, name string, value any) (err error) {
	if s.Changed(name) {
		return nil
	}
	elements, several := value.([]any)
	if !several {
		elements = []any{value}
	}
	var texts []string
	for _, e := range elements {
		texts = append(texts, fmt.Sprint(e))
	}
	if s.Lookup(name).Value.Type() != option.Repeated {
		texts = []string{strings.Join(texts, ",")}
	}
	for _, text := range texts {
		err = cmp.Or(err, s.Set(name, text))
	}
	return err
}

// plainValue matches values that TOML has without quotes.
var plainValue = regexp.MustCompile(`^(true|false|-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?)$`)

// effectiveConfig returns the flags that were given, as a file for --config.
func effectiveConfig(cmd *cobra.Command) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# %s --config %s\n", cmd.CommandPath(), flagsFile)
	cmd.Flags().Visit(func(f *pflag.Flag) {
		list, several := f.Value.(pflag.SliceValue)
		switch text := f.Value.String(); {
		case slices.Contains(neverInFiles, f.Name), slices.Contains(neverSaved, f.Name):
		case several:
			_ = toml.NewEncoder(&b).Encode(map[string]any{f.Name: list.GetSlice()}) // texts can be encoded
		case plainValue.MatchString(text):
			fmt.Fprintf(&b, "%s = %s\n", f.Name, text)
		default:
			_ = toml.NewEncoder(&b).Encode(map[string]any{f.Name: text})
		}
	})
	return b.Bytes()
}
