package command

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"penstock.example/data"
	"penstock.example/internal/arg"
	"penstock.example/internal/option"
	"penstock.example/internal/planfile"
	"penstock.example/internal/progress"
	"penstock.example/internal/report"
	"penstock.example/nn"
	"penstock.example/plan"
	"penstock.example/profile"
	"penstock.example/schedule"
	"penstock.example/torch"
	"penstock.example/train"
)

type planFlags struct {
	measureFlags
	linkFlags
	numerics              gpuFlags
	stages, chunks, batch int
	devices               []torch.Device // by name; nil is any
	schedules             []string
	virtual, replicas     []int
	limit                 int64
	machine               string   // a file
	trainOnly             []string // layers; nil is all

	// Update, Machine, Threads and AtWork are set by penstock plan or by a run with --plan auto.
	config train.PlanConfig
}

func newPlan() *cobra.Command {
	cmd := planVerb(&cobra.Command{
		Use:   "plan CHAIN|--model NAME [flags]",
		Short: "Find the fastest way to train a model within devices' memory",
		Long: `Find the fastest training step that keeps every device within its memory limit: the
schedule, the layers of each stage, the number of micro-batches, and what is recomputed.

With --model the model is measured on all cores or on --devices. The limit of a GPU is its
free memory. penstock train --plan reads the file of --out.

CHAIN is a file of penstock profile, to plan for devices that are not here. With --chunks
alone, its costs are those of a micro-batch. With --batch they are scaled by rows.

--machine describes devices and links. A device of speed 2 takes half the measured time;
"from" and "to" limit a link to two devices:

  {"version":1,"devices":[{"name":"gpu","count":8,"bytes":80e9,"threads":1,"speed":1}],
  "links":[{"from":"gpu0","to":"gpu1","latency_us":5,"bytes_per_second":25e9}]}

If no plan keeps the limits the exit code is 64, and the least limits are printed.`,
		Example: `  penstock plan --model resnet20 --data fashion-mnist --batch 64 --devices 2 --out plan.json
  penstock plan --model gpt2 --batch 64 --devices cuda:0,cuda:1 --out plan.json
  penstock plan chain.json --stages 4 --chunks 8 --memory-limit 2GiB
  penstock plan chain.json --machine machine.json --batch 64`,
	}, false)
	cmd.AddCommand(planVerb(&cobra.Command{
		Use:   "explain CHAIN|--model NAME [flags]",
		Short: "Say what sets the time and memory of the fastest plan",
		Long: `Find the plan that penstock plan finds. Say which device and which layers set its time
and its memory, and how long a step takes with one more device, with 10 % more memory, and
with links of twice the bandwidth.`,
		Example: `  penstock plan explain chain.json --stages 4 --chunks 8 --memory-limit 2GiB`,
	}, true))
	return cmd
}

func planVerb(cmd *cobra.Command, explain bool) *cobra.Command {
	var f planFlags
	f.register(cmd.Flags())
	return resultVerb(cmd, "`FILE` to write the plan to, as JSON",
		func(cmd *cobra.Command, args []string) (r result, err error) {
			p, err := f.plan(cmd, args)
			if err != nil {
				return r, refusedPlan(cmd.Flags(), err)
			}
			line := p.line()
			if explain {
				line.Explained, err = plan.Explain(cmd.Context(), p.Profile, p.Machine, p.Wishes, p.Searched)
			}
			if err != nil {
				return r, err
			}
			r.line = line
			line.Page = report.DescribePlan(p.title+", planned", p.Result, p.Profile.Measured)
			line.Page.Facts = append([]report.Fact{
				{Name: "Step", Value: micros(line.Step) + "; " + p.bound()},
				{Name: "Plan", Value: line.inFlags()},
				{Name: "Devices", Value: strings.Join(line.Devices, ", ")}}, originFacts("Planned")...)
			r.text = func(w io.Writer) { p.show(w, line) }
			r.file, err = json.Marshal(line)
			return r, err
		})
}

func (f *planFlags) register(s *pflag.FlagSet) {
	f.modelFlags.register(s)
	f.dataFlags.register(s, " (default: made-up samples)")
	optimizerFlags(s, &f.optimizer, &f.momentum)
	trainOnlyFlag(s, &f.trainOnly)
	f.measureFlags.register(s, 0)
	f.numerics.register(s)
	option.Count(s, &f.stages, "stages", 0, "`P` devices side by side (default: any number of the machine's)")
	s.Var(&option.Value{Read: f.readDevices}, "devices",
		"`P|LIST`: as --stages, or names of devices to measure --model on, such as cuda:0,cuda:1")
	option.Count(s, &f.chunks, "chunks", 0, "`M` micro-batches of a batch")
	option.Count(s, &f.batch, "batch", 0,
		"`N` rows of a batch; without --chunks the best number of micro-batches is found")
	option.List(s, &f.schedules, "schedule", "`NAME,...` of schedules to choose from (default all): "+
		strings.Join(scheduleNames(), ", "), func(name string) (string, error) {
		if _, err := schedule.Named(name); err != nil {
			return "", errors.New(message(err))
		}
		return name, nil
	})
	option.List(s, &f.virtual, "virtual", "`V,...` stages of each device, if several "+
		"(default 2)", option.Integer)
	option.List(s, &f.replicas, "replicas", "`N,...` pipelines, with --machine and --batch "+
		"(default 1)", option.Integer)
	limitFlag(s, &f.limit)
	option.Path(s, &f.machine, "machine", "`FILE` of the devices and links to plan for, as JSON")
	f.linkFlags.register(s)
}

func (f *planFlags) readDevices(text string) error {
	f.devices = nil
	if n, err := strconv.Atoi(text); err == nil {
		if f.stages = n; n < 1 || n > math.MaxInt32 {
			return errors.New("want at least 1, or names of devices such as cuda:0,cuda:1")
		}
		return nil
	}
	for name := range strings.SplitSeq(text, ",") {
		d, err := readDevice(strings.TrimSpace(name))
		if err != nil {
			return fmt.Errorf("%w, or a number of CPU devices", err)
		}
		f.devices = append(f.devices, d)
	}
	f.stages = len(f.devices)
	return nil
}

// checkArguments refuses all but a CHAIN or --model, each with its own flags.
func (f *planFlags) checkArguments(cmd *cobra.Command, args []string) error {
	model, machine := f.modelName != "", f.machine != ""
	if !model {
		err := cmp.Or(arguments("CHAIN, or --model NAME,")(cmd, args), onlyFlags(cmd, "a CHAIN", "stages",
			"devices", "chunks", "batch", "schedule", "virtual", "replicas", "memory-limit", "machine",
			"latency", "bandwidth"))
		if err != nil {
			return err
		}
	}
	fixed := f.schedules != nil // the schedules fix the number of stages of each device
	for _, name := range f.schedules {
		s, _ := schedule.Named(name) // it was read before
		fixed = fixed && s.Virtual > 0
	}
	switch {
	case model && len(args) > 0:
		return badUsage("CHAIN and --model: want one of the two")
	case cmd.Flags().Changed("stages") && cmd.Flags().Changed("devices"):
		return badUsage("--stages and --devices: want one of the two")
	case model && f.batch == 0:
		return badUsage("--model: want --batch N with it")
	case machine && (f.Link != plan.Link{} || f.devices != nil):
		return badUsage("--machine has devices and links; want no --latency, --bandwidth or named --devices")
	case fixed && f.virtual != nil:
		return badUsage("--virtual %s has no effect with --schedule %s; leave it out",
			option.Joined(f.virtual), option.Joined(f.schedules))
	}
	return cmp.Or(
		refuseWithout(cmd.Flags(), !model, "a CHAIN", "machine", "latency", "bandwidth", "replicas"),
		f.numerics.check(cmd.Flags(), f.devices))
}

type foundPlan struct {
	*train.ModelPlan
	title string // of the model, or of the chain's file
	flags *planFlags
}

func (f *planFlags) plan(cmd *cobra.Command, args []string) (*foundPlan, error) {
	if err := f.checkArguments(cmd, args); err != nil {
		return nil, err
	}
	show := progress.New(cmd.ErrOrStderr(), "planning", "")
	defer show.End()
	if f.modelName == "" {
		return f.planChain(cmd, args[0], show)
	}
	if err := f.check(cmd.Flags()); err != nil {
		return nil, err
	}
	f.numerics.apply()
	var samples *data.Info
	if f.dataName != "" {
		f.data.OnText = progress.Texts(show)
		sets, err := f.open()
		if err != nil {
			return nil, err
		}
		if n := sets.training.Len(); f.batch > n {
			return nil, badUsage("--batch %d: --data %s has %d samples; want at most as many", f.batch,
				f.dataName, n)
		}
		samples = new(sets.training.Info())
	}
	m, err := f.fitModel(samples)
	if err != nil {
		return nil, err
	}
	cores := runtime.NumCPU()
	f.config.Threads, f.config.AtWork = f.threadsToTry(cores), cmp.Or(f.stages, cores)
	f.config.Update.Momentum = momentumOf(cmd.Flags(), f.optimizer, f.momentum)
	shared := max(cores, f.stages*max(f.measureFlags.threads, 1)) // by all devices
	f.config.Machine = plan.Machine{Devices: []plan.Device{{Name: "cpu", Threads: shared}}}
	return f.planModel(cmd.Context(), show, m)
}

func (f *planFlags) onGPUs() bool { return f.devices != nil && f.devices[0].Kind != torch.KindCPU }

// threadsToTry returns the numbers of threads of a device to choose from.
func (f *planFlags) threadsToTry(cores int) (list []int) {
	switch {
	case f.measureFlags.threads > 0:
		return []int{f.measureFlags.threads}
	case f.onGPUs():
		return []int{1}
	case f.stages > 0:
		return []int{max(cores/f.stages, 1)}
	}
	for n := cores; n >= 1; n /= 2 {
		list = append(list, n)
	}
	return list
}

func (f *planFlags) wishes(show *progress.Task) plan.Options {
	return plan.Options{Batch: f.batch, Devices: f.stages, Schedules: f.schedules, Virtual: f.virtual,
		Replicas: f.replicas, Limit: f.limit, Progress: func(schedule string, done, all int) {
			show.Note(fmt.Sprintf("schedule %d of %d, %s", done+1, all, schedule))
		}}
}

func (f *planFlags) planModel(ctx context.Context, show *progress.Task, m fittedModel) (*foundPlan, error) {
	devices, err := readHardware(f.devices)
	if err != nil {
		return nil, err
	}
	c := f.config
	c.Batch, c.Stages, c.Devices, c.Repeats = f.batch, f.stages, devices, f.repeats
	c.Optimizer, c.Loss, c.Clock, c.Note = f.optimizer, trainingLoss(m.samples.Task()), clock, show.Line
	c.Pipe.Seed, c.Pipe.Autocast = f.seed, f.autocast
	c.Measuring = func(what string) func(int, int) {
		return func(done, all int) {
			show.Note(fmt.Sprintf("measured %d of %d layers for %s", done, all, what))
		}
	}
	c.Wishes = f.wishes(show)
	c.Wishes.Plans = 60 // devices; 30 take two thirds of the time, and steps 0.1 % more
	if f.chunks > 0 {
		c.Chunks = []int{f.chunks}
	}
	build := func() (*nn.Sequential, error) {
		model, err := newModel(f.folder, m.options, f.lora)
		if err == nil {
			err = freeze(model, f.trainOnly)
		}
		return model, err
	}
	found, err := train.PlanModel(ctx, build, m.samples, c)
	if err != nil {
		return nil, err
	}
	warnOfTiming(show, found.Timing)
	return &foundPlan{found, f.modelName, f}, nil
}

// refusedPlan names flags in an error of planning.
func refusedPlan(s *pflag.FlagSet, err error) error {
	if short := (*plan.MemoryError)(nil); errors.As(err, &short) {
		return badUsage("no plan keeps the limits: %s; a limit of at least %s will do", short.Shortages(),
			arg.Size(short.Least()))
	}
	return inFlags(s, err)
}

// hardware reads the model and the memory of a device. Tests replace it.
var hardware = torch.Device.Hardware

func readHardware(devices []torch.Device) (list []train.PlanDevice, err error) {
	for i, d := range devices {
		h, problem := hardware(d)
		switch {
		case slices.Contains(devices[:i], d):
			problem = fmt.Errorf("%v is there twice; want each device once", d)
		case d.Kind != devices[0].Kind:
			problem = errors.New("a CPU and a GPU are not planned together; want devices of one of the two")
		case d.Usable() != nil:
			problem = d.Usable()
		}
		if problem != nil {
			return nil, badUsage("--devices %s: %s", option.Joined(devices), message(problem))
		}
		list = append(list, train.PlanDevice{Device: d, Hardware: h})
	}
	return list, nil
}

func (f *planFlags) planChain(cmd *cobra.Command, file string, show *progress.Task) (*foundPlan, error) {
	c, err := readParsed(cmd, file, planfile.ParseChain)
	if err != nil {
		return nil, err
	}
	threads, timing := max(c.Threads, 1), profile.Timing{Spread: c.Spread}
	if timing.Useless() {
		return nil, badUsage("%s: its times are of no use: %s; %s", file, timing.Warning(), measureAgain)
	}
	p := &train.ModelPlan{Wishes: f.wishes(show),
		Machine: linkedMachine("device ", f.stages, threads, f.Link)}
	if f.machine != "" {
		if p.Machine, err = readParsed(cmd, f.machine, plan.ParseMachine); err != nil {
			return nil, badUsage("--machine %w", err)
		}
	}
	if f.chunks > 0 {
		p.Wishes.MicroBatches = []int{f.chunks}
	}
	if f.batch == 0 {
		p.Profile.Measured = []plan.Costs{{Threads: threads, Chain: c}}
	}
	measuredRows := cmp.Or(c.Rows, f.batch/max(f.chunks, 1), 1)
	for rows := 1; rows <= f.batch; rows++ {
		if f.batch%rows == 0 {
			p.Profile.Measured = append(p.Profile.Measured, plan.Costs{Rows: rows, Threads: threads,
				Chain: plan.Scaled(c, measuredRows, rows)})
		}
	}
	warnOfTiming(show, timing)
	r, err := plan.Search(cmd.Context(), p.Profile, p.Machine, p.Wishes)
	switch {
	case err != nil:
		return nil, err
	case r.Short != nil:
		return nil, r.Short
	case r.Best == nil:
		return nil, badUsage("no schedule can be planned: %s: %s", r.Schedules[0].Schedule,
			r.Schedules[0].Lost)
	}
	p.Result, p.Searched = *r, r.Best
	return &foundPlan{p, chainTitle(c, file), f}, nil
}
