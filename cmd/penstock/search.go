package main

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
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"penstock.example/data"
	"penstock.example/internal/arg"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/pipe"
	"penstock.example/plan"

	"penstock.example/profile"
	"penstock.example/remat"
	"penstock.example/report"
	"penstock.example/schedule"
	"penstock.example/torch"
	"penstock.example/train"
)

// searchFlags are the flags of penstock plan.
type searchFlags struct {
	stages, chunks, batch int
	devices               []torch.Device // by name; nil is any
	schedules             []string
	virtual, replicas     []int
	limit                 int64
	machine               string
	of                    measureFlags
	latency               time.Duration
	bandwidth             float64
}

// measureFlags say which model is measured for a plan, and how it will be trained.
type measureFlags struct {
	modelFlags
	optimizer string
	momentum  float64
	autocast  torch.Autocast
	numerics  gpuFlags
	trainOnly []string // layers; nil is all
	threads   int
	repeats   int
	seed      uint64
}

func (f *measureFlags) register(s *pflag.FlagSet) {
	namesFlags(s, &f.modelName, &f.settings)
	f.dataFlags.register(s, " (default: samples as the model usually reads them)")
	optimizerFlags(s, &f.optimizer, &f.momentum)
	trainOnlyFlag(s, &f.trainOnly)
	autocastFlag(s, &f.autocast, "plan for forwards of the model in fewer bits where that is safe")
	f.numerics.register(s)
	whole(s, &f.threads, "threads", 0, 1, pipe.MaxThreads, "`N` threads of each device on the model (default: as many as there are cores for each)")
	repeatsFlag(s, &f.repeats)
	s.Uint64Var(&f.seed, "seed", 1, "`SEED` of the weights and samples that the model is measured with")
}

func newPlan() *cobra.Command {
	var f searchFlags
	var format, out string
	cmd := &cobra.Command{
		Use:   "plan CHAIN|--model NAME [flags]",
		Short: "Find the fastest way to train a model within devices' memory",
		Long: `Find the fastest way to train a model: the schedule, the layers of each stage, the
number of micro-batches, and what is recomputed, so that no device holds more than its
limit. A bound says how much faster any plan of those that are searched could be; where
it is the step, that is proved to be the best.

With --model the model is measured on this machine, for up to 16 micro-batches, and on
all its cores, or on the devices that --devices names: GPUs may then hold what they have
free. The plan is for samples of --data, or those that the model usually reads. Its peaks
are known to the byte. With --out it is for penstock train --plan.

Otherwise a chain is planned for (penstock profile). With --chunks alone the chain is of
one micro-batch; with --batch what micro-batches take grows with their rows. Transfers
cost nothing unless --latency or --bandwidth is given, or a machine:

  {"version":1,
  "devices":[{"name":"gpu","count":8,"bytes":80e9,"threads":1,"speed":1}],
  "links":[{"latency_us":5,"bytes_per_second":25e9}]}

A device that is twice as fast as what was measured has the speed 2. One with several
times the threads is shared by stages. A link with "from" and "to" joins two devices by
name, gpu0 and gpu1 here.

If no plan keeps the limits the exit code is 2, the least limits are told, and nothing
is written.`,
		Example: `  penstock plan --model resnet20 --data fashion-mnist --batch 64 --devices 2 --memory-limit 10MiB --out plan.json
  penstock plan --model resnet50 --batch 64 --devices 2 --memory-limit 300MiB
  penstock plan --model gpt2 --batch 64 --devices cuda:0,cuda:1 --out plan.json
  penstock plan chain.json --stages 4 --chunks 8 --memory-limit 2GiB
  penstock plan chain.json --machine machine.json --batch 64 --out plan.json
  penstock plan explain chain.json --stages 4 --chunks 8 --memory-limit 2GiB`,
		Args: chainOrModel(&f),
		RunE: interruptible("planning", func(cmd *cobra.Command, args []string) error {
			if out != "" {
				if err := checkOut(cmd, out, append(args, f.machine)...); err != nil {
					return err
				}
			}
			show := newPlanProgress(cmd.ErrOrStderr(), "planning")
			defer show.end()
			p, err := f.plan(cmd, args, show)
			if err != nil {
				return err
			}
			show.end()
			line := p.line()
			if out != "" {
				page := p.page()
				file := line
				file.Page = &page
				text, err := json.Marshal(file)
				if err != nil {
					return err
				}
				if err := writeOut(cmd, out, append(text, '\n')); err != nil {
					return err
				}
			}
			return printResult(cmd, format, line, p.show)
		}),
	}
	f.register(cmd)
	path(cmd.Flags(), &out, "out", "`FILE` to write the plan to, as JSON")
	formatFlag(cmd.Flags(), &format)
	cmd.AddCommand(newPlanExplain())
	return cmd
}

func (f *searchFlags) register(cmd *cobra.Command) {
	s := cmd.Flags()
	s.SortFlags = false
	number := func(text string) (int, error) {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return 0, errors.New("want a number from 1")
		}
		return n, nil
	}
	f.of.register(s)
	count(s, &f.stages, "stages", 0, "`P` devices side by side (default: any number of the machine's)")
	devicesFlag(s, &f.stages, &f.devices)
	whole(s, &f.chunks, "chunks", 0, 1, plan.MostMicroBatches, fmt.Sprintf("`M` micro-batches of a batch, "+
		"each as the chain says, at most %d", plan.MostMicroBatches))
	count(s, &f.batch, "batch", 0, "`N` rows of a batch, which are cut into any number of micro-batches")
	list(s, &f.schedules, "schedule", "`NAME,...` of the schedules to choose from (default all): "+
		strings.Join(scheduleNames(), ", "), func(text string) (string, error) {
		if _, err := schedule.Named(text); err != nil {
			return "", errors.New(arg.OneOf(text, scheduleNames()))
		}
		return text, nil
	})
	list(s, &f.virtual, "virtual", "`V,...` stages of each device, for schedules of several (default 2)",
		number)
	list(s, &f.replicas, "replicas", "`N,...` pipelines side by side, with --machine and --batch (default 1)",
		number)
	size(s, &f.limit, "memory-limit", "most memory of each device, as a `SIZE` such as 512MiB (default "+
		"none, or the machine's)")
	path(s, &f.machine, "machine", "`FILE` of the devices and links to plan for, as JSON")
	latencyFlag(s, &f.latency)
	bandwidthFlag(s, &f.bandwidth)
}

func scheduleNames() (names []string) {
	for _, s := range schedule.Schedules() {
		names = append(names, s.Name)
	}
	return names
}

// devicesFlag is --devices: a number, or a list of devices.
func devicesFlag(s *pflag.FlagSet, stages *int, devices *[]torch.Device) {
	s.Var(&value{read: func(text string) error {
		n, err := strconv.Atoi(text)
		switch {
		case err == nil && n < 1:
			return errors.New("want at least 1, or names of devices such as cuda:0,cuda:1")
		case err == nil && n > math.MaxInt32:
			return fmt.Errorf("want at most %d", math.MaxInt32)
		case err == nil:
			*stages, *devices = n, nil
			return nil
		}
		var list []torch.Device
		for word := range strings.SplitSeq(text, ",") {
			d, err := device(strings.TrimSpace(word))
			if err != nil {
				return fmt.Errorf("%w, or a number of CPU devices", err)
			}
			list = append(list, d)
		}
		*stages, *devices = len(list), list
		return nil
	}}, "devices", "`P|LIST` as --stages; or, with --model, names of devices of this machine, such as "+
		"cuda:0,cuda:1, on which it is measured")
}

// deviceNames is devices as --devices takes them.
func deviceNames(devices []torch.Device) string {
	var list []string
	for _, d := range devices {
		list = append(list, d.String())
	}
	return strings.Join(list, ",")
}

// chainOrModel wants the file of a chain, or --model.
func chainOrModel(f *searchFlags) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if f.of.modelName != "" && len(args) > 0 {
			return badUsage("%s and --model %s: want one of the two", args[0], f.of.modelName)
		}
		if f.of.modelName != "" {
			return nil
		}
		// that matter most
		for _, name := range []string{"data", "train-only", "autocast", "threads", "optimizer"} {
			if cmd.Flags().Changed(name) {
				return badUsage("--%s is for a model that is measured; want --model NAME with it", name)
			}
		}
		return filesNamed("CHAIN, or --model NAME,")(cmd, args)
	}
}

// foundPlan is the fastest plan of a model or a chain.
type foundPlan struct {
	*train.ModelPlan
	title     string // of the model, or of the chain's file
	flags     *searchFlags
	model     *measuredModel // nil where only a chain is known
	momentum  float64
	elsewhere bool // the devices are not here
	// For a page.
	layers []report.Layer
	chains []report.Chain
}

// plan finds the fastest plan.
func (f *searchFlags) plan(cmd *cobra.Command, args []string, show *progress) (*foundPlan, error) {
	if err := checkOutput(cmd.OutOrStdout()); err != nil {
		return nil, err
	}
	linked := f.latency > 0 || f.bandwidth > 0
	var machine plan.Machine
	switch {
	case cmd.Flags().Changed("stages") && cmd.Flags().Changed("devices"):
		return nil, badUsage("--stages and --devices are the same; want one of them")
	case f.batch > 0 && f.chunks > 0 && f.batch%f.chunks != 0:
		return nil, badUsage("--chunks %d: it does not divide the %d rows of --batch", f.chunks, f.batch)
	case f.machine != "" && (linked || f.devices != nil):
		return nil, badUsage("--machine has devices and links; want --latency and --bandwidth left out, and " +
			"no names of --devices")
	case f.stages == 0 && linked:
		return nil, badUsage("--latency and --bandwidth: want --devices P with them, which links join, or " +
			"--machine FILE")
	case f.machine != "":
		text, err := readInput(cmd, f.machine)
		if err != nil {
			return nil, badUsage("--machine %w", err)
		}
		if machine, err = plan.ParseMachine(text); err != nil {
			return nil, badUsage("--machine %s: %s", f.machine, message(err))
		}
	}
	if f.of.modelName == "" {
		return f.planChain(cmd, args[0], machine, show)
	}
	if f.batch == 0 || f.replicas != nil {
		return nil, badUsage("--model %s: want --batch N with it, the rows of a step, and no --replicas", f.of.modelName)
	}
	if err := checkNamed(f.devices); err != nil {
		return nil, err
	}
	if err := f.of.check(cmd.Flags()); err != nil {
		return nil, err
	}
	f.of.numerics.apply()
	m, err := f.ofSamples(show)
	if err != nil {
		return nil, err
	}
	cores := runtime.NumCPU()
	r := planRequest{machine: machine, threads: f.modelThreads(cores), atWork: cmp.Or(f.stages, cores)}
	r.update.Momentum = momentumOf(cmd.Flags(), f.of.optimizer, f.of.momentum)
	switch {
	case f.machine != "" || f.devices != nil:
	case linked:
		r.machine = linkedMachine("cpu/", f.stages, slices.Max(r.threads), f.link())
	default:
		r.machine = thisMachine(max(cores, f.stages*max(f.of.threads, 1)))
	}
	if f.machine == "" && !f.onGPUs() && f.stages > cores {
		show.line(fmt.Sprintf("there are %d cores for %d devices, so that a step will take longer than "+
			"planned", cores, f.stages))
	}
	return f.planModel(cmd.Context(), show, m, r)
}

func (f *searchFlags) link() plan.Link {
	return plan.Link{Latency: f.latency, Bandwidth: f.bandwidth}
}

// onGPUs reports whether the devices are named, and GPUs.
func (f *searchFlags) onGPUs() bool { return f.devices != nil && f.devices[0].Kind != torch.KindCPU }

// ofSamples makes the model for the samples of --data, or for its usual samples.
func (f *searchFlags) ofSamples(stderr io.Writer) (measuredModel, error) {
	of := &f.of.modelFlags
	if of.dataName == "" {
		return newMeasuredModel(of.modelName, of.settings)
	}
	of.data.OnText = showText(stderr)
	training, _, err := data.Open(of.dataName, of.dataDir, of.data)
	if err != nil {
		return measuredModel{}, wrongInput(ofData(err))
	}
	torch.TrimProcess() // reading took more than what was read
	if n := training.Len(); f.batch > n {
		return measuredModel{}, badUsage("--batch %d: --data %s has %d samples; want at most as many",
			f.batch, of.dataName, n)
	}
	return measuredOn(of, training.Info())
}

// thisMachine is a CPU with threads that its devices share.
func thisMachine(threads int) plan.Machine {
	return plan.Machine{Devices: []plan.Device{{Name: "cpu", Threads: threads}}}
}

// modelThreads are the numbers of threads of a device that a model is measured for.
func (f *searchFlags) modelThreads(cores int) (list []int) {
	switch {
	case f.of.threads > 0:
		return []int{f.of.threads}
	case f.machine != "", f.onGPUs():
		return []int{1}
	case f.stages > 0:
		return []int{max(cores/f.stages, 1)}
	}
	for n := cores; n >= 1; n /= 2 {
		list = append(list, n)
	}
	return list
}

// planRequest is the part of a request for a plan that is not in flags.
type planRequest struct {
	update            optim.Config
	deferredBatchNorm bool
	machine           plan.Machine // not where devices are named
	threads           []int        // of a device, to choose from
	atWork            int          // devices of this machine that work at once
}

// planModel measures a model, and finds the fastest plan for it.
func (f *searchFlags) planModel(ctx context.Context, show *progress, m measuredModel,
	r planRequest) (*foundPlan, error) {
	const mostChunks, plansOfADevice = 16, 30
	found := &foundPlan{title: m.name, flags: f, model: &m, momentum: r.update.Momentum,
		elsewhere: f.machine != ""}
	r.update.LR = 1 // which takes no memory
	slots, err := optim.Slots(f.of.optimizer, r.update)
	if err != nil {
		return nil, badUsage("--optimizer %s: %s", f.of.optimizer, message(err))
	}
	c := train.PlanConfig{
		Batch: f.batch, Threads: r.threads, Stages: f.stages, Machine: r.machine, Predicts: found.elsewhere,
		Wishes: plan.Options{Schedules: f.schedules, Virtual: f.virtual, Limit: f.limit,
			Plans: plansOfADevice, Progress: show.searching},
		Pipe:  pipe.Config{Seed: f.of.seed, Autocast: f.of.autocast, DeferredBatchNorm: r.deferredBatchNorm},
		Slots: slots, Loss: m.loss(), Repeats: f.of.repeats, AtWork: r.atWork, Clock: clock,
		Optimizer: func() (optim.Optimizer, error) { return optim.New(f.of.optimizer, r.update) },
		Note:      show.line,
		Measuring: func(what string) func(int, int) {
			return func(done, of int) {
				show.note(fmt.Sprintf("measured %d of %d layers for %s", done, of,
					what))
			}
		},
		Opened: func(p *pipe.Pipe, model *nn.Sequential) {
			found.layers, found.chains = describeLayers(model, p), describeChains(p)
		},
	}
	for n := 1; n <= min(f.batch, mostChunks) && f.chunks == 0; n *= 2 {
		if f.batch%n == 0 {
			c.Chunks = append(c.Chunks, n)
		}
	}
	if f.chunks > 0 {
		c.Chunks = []int{f.chunks}
	}
	if c.Devices, err = readDevices(f.devices); err != nil {
		return nil, err
	}
	switch {
	case f.devices == nil:
	case f.latency > 0 || f.bandwidth > 0:
		c.Links = []plan.Link{f.link()}
	case f.onGPUs() && len(f.devices) > 1:
		between, err := measureCopies(f.devices)
		if err != nil {
			return nil, fmt.Errorf("measuring the links of --devices %s: %w", deviceNames(f.devices), err)
		}
		c.Links = []plan.Link{between}
	}
	build := func() (*nn.Sequential, error) {
		model, err := measuredWith(m.name, m.options, m.samples)
		if err != nil {
			return nil, err
		}
		return model.model, freeze(model.model, f.of.trainOnly)
	}
	if found.ModelPlan, err = train.PlanModel(ctx, build, m.samples, c); err != nil {
		return nil, f.refusal(err)
	}
	warnOfTiming(show, found.Timing)
	return found, nil
}

// refusal is an error of planning in words of the command line.
func (f *searchFlags) refusal(err error) error {
	var short *plan.MemoryError
	var refused *arg.ConfigError
	switch {
	case errors.As(err, &short):
		return badUsage("no plan keeps the limits: %s; a limit of at least %s will do", short.Shortages(),
			arg.Size(short.Least()))
	case !errors.As(err, &refused):
		return err
	}
	why := strings.TrimPrefix(refused.Problem+"; "+refused.Remedy, "; ")
	flag := map[string]string{"Batch": "batch", "MicroBatches": "chunks", "Chunks": "chunks",
		"Devices": "stages", "Stages": "stages", "Schedules": "schedule",
		"Virtual": "virtual", "Replicas": "replicas", "Limit": "memory-limit"}[refused.Field]
	if flag == "" {
		return badUsage("%v: %s", refused.Value, why)
	}
	return badUsage("--%s %v: %s", flag, refused.Value, why)
}

// planChain finds the fastest plan of a chain.
func (f *searchFlags) planChain(cmd *cobra.Command, file string, machine plan.Machine,
	show *progress) (*foundPlan, error) {
	switch {
	case f.devices != nil:
		return nil, badUsage("--devices %s: a chain is of no device; want how many there are, or --model "+
			"NAME", deviceNames(f.devices))
	case f.chunks == 0 && f.batch == 0:
		return nil, badUsage("want --chunks M, how many micro-batches of the chain there are, or --batch N, " +
			"to have their number chosen")
	case f.stages == 0 && f.machine == "":
		return nil, badUsage("want --stages P, how many devices there are, or --machine FILE")
	case f.replicas != nil && (f.machine == "" || f.batch == 0):
		return nil, badUsage("--replicas: want --machine FILE and --batch N with it")
	}
	c, err := readChain(cmd, file)
	if err != nil {
		return nil, err
	}
	threads, timing := max(c.Threads, 1), profile.Timing{Spread: c.Spread}
	switch {
	case timing.Useless():
		return nil, badUsage("%s: its times are of no use: %s; %s", file, timing.Warning(), measureAgain)
	case f.stages > len(c.Layers):
		return nil, badUsage("--stages %d: the chain has %d layers; want at most as many", f.stages,
			len(c.Layers))
	case f.machine != "" && max(f.stages, 1) > machine.Parts(threads):
		return nil, badUsage("--machine %s: it has devices for %d stages with %s each, as many as %s was "+
			"measured with", f.machine,
			machine.Parts(threads), counted(threads, "thread"), file)
	}
	p := &train.ModelPlan{Machine: machine, Wishes: plan.Options{Devices: f.stages, Schedules: f.schedules,
		Virtual:  f.virtual,
		Replicas: f.replicas, Limit: f.limit, Progress: show.searching}}
	if f.chunks > 0 {
		p.Wishes.MicroBatches = []int{f.chunks}
	}
	if f.chunks > 0 && f.replicas == nil && (f.batch == 0 || c.Rows == 0) {
		p.Profile.Measured = []plan.Costs{{Threads: threads, Chain: c}}
	} else {
		p.Wishes.Batch = f.batch
		from := cmp.Or(c.Rows, f.batch/max(f.chunks, 1))
		for rows := 1; rows <= f.batch; rows++ {
			if f.batch%rows == 0 {
				p.Profile.Measured = append(p.Profile.Measured, plan.Costs{Rows: rows, Threads: threads,
					Chain: plan.Scaled(c, from, rows)})
			}
		}
	}
	if f.machine == "" {
		p.Machine = linkedMachine("device ", f.stages, threads, f.link())
	}
	if warnOfTiming(show, timing) {
		show.line("another plan may be faster than the one that is found; limits hold")
	}
	r, err := plan.Search(cmd.Context(), p.Profile, p.Machine, p.Wishes)
	switch {
	case err != nil:
		return nil, f.refusal(err)
	case r.Best == nil && r.Short != nil:
		return nil, f.refusal(r.Short)
	case r.Best == nil:
		return nil, badUsage("no schedule can be planned: %s: %s", r.Schedules[0].Schedule,
			r.Schedules[0].Lost)
	}
	p.Result, p.Searched = *r, r.Best
	return &foundPlan{ModelPlan: p, title: cmp.Or(chainTitle(c, file), "a chain"), flags: f,
		elsewhere: f.machine != ""}, nil
}

// searchLine is the JSON of a plan. Its fields stay.
type searchLine struct {
	Balance    []int    `json:"balance"` // layers of each stage
	Schedule   string   `json:"schedule"`
	Chunks     int      `json:"chunks"` // of each replica
	Step       float64  `json:"step_us"`
	LowerBound float64  `json:"lower_bound_us"` // no plan of those searched takes less
	Peak       []int64  `json:"peak_bytes"`     // by device
	Proved     bool     `json:"proved"`
	Virtual    int      `json:"virtual,omitempty"`   // stages of each device, if more than 1
	Replicas   int      `json:"replicas,omitempty"`  // if more than 1
	Threads    int      `json:"threads,omitempty"`   // of each device, if more than 1
	Devices    []string `json:"devices,omitempty"`   // of a machine; those of this one that were named are those of the run
	Elsewhere  bool     `json:"elsewhere,omitempty"` // the devices are those of a machine's file
	// Of a model that was measured, for penstock train.
	Model     string         `json:"model,omitempty"`
	Settings  []string       `json:"set,omitempty"`
	Batch     int            `json:"batch,omitempty"`
	Rows      int            `json:"rows,omitempty"` // of a micro-batch
	Input     *dataLine      `json:"input,omitempty"`
	Limit     int64          `json:"memory_limit,omitempty"` // bytes of each device
	Bytes     []int64        `json:"bytes,omitempty"`        // of each device, without a limit: what GPUs had
	Optimizer string         `json:"optimizer,omitempty"`
	Momentum  *float64       `json:"momentum,omitempty"`   // of the optimizer, if not the usual one
	TrainOnly []string       `json:"train_only,omitempty"` // layers, if not all
	Autocast  torch.Autocast `json:"autocast,omitempty"`
	// Page is the plan itself, in a file, for penstock report.
	Page *report.Run `json:"page,omitempty"`
}

// line is the JSON of the plan.
func (p *foundPlan) line() searchLine {
	b := p.Best
	unlessOne := func(n int) int {
		if n == 1 {
			return 0
		}
		return n
	}
	line := searchLine{Balance: b.Balance, Schedule: b.Schedule, Chunks: b.MicroBatches, Step: us(b.Step),
		LowerBound: us(p.LowerBound),
		Peak:       b.Peaks, Proved: p.Proved, Virtual: unlessOne(b.Virtual), Replicas: unlessOne(b.Replicas),
		Threads: unlessOne(b.Threads)}
	if b.Devices[0] != "device 0" {
		line.Devices, line.Elsewhere = b.Devices, p.elsewhere
	}
	if p.model == nil {
		return line
	}
	f := p.flags
	line.Balance, line.Model, line.Settings, line.Batch = p.Layers(b.Balance), f.of.modelName, f.of.settings,
		f.batch
	line.Optimizer, line.Autocast, line.TrainOnly = f.of.optimizer, f.of.autocast, f.of.trainOnly
	line.Rows, line.Input, line.Limit = b.Rows, describeData(f.of.dataFlags, p.model.samples), f.limit
	if f.devices != nil && slices.ContainsFunc(b.Limits, func(n int64) bool { return n != f.limit }) {
		line.Bytes, line.Limit = b.Limits, 0
	}
	if p.momentum != usualMomentum(f.of.optimizer) {
		line.Momentum = &p.momentum
	}
	return line
}

// show prints the best plan and the others.
func (p *foundPlan) show(w io.Writer) {
	b, c := p.Best, p.Profile.Measured[0].Chain
	fmt.Fprintf(w, "step\t%s, %s\n", micros(us(b.Step)), p.bound())
	fmt.Fprintf(w, "schedule\t%s, %s", b.Schedule, counted(b.MicroBatches, "micro-batch"))
	for _, part := range []struct {
		n     int
		text  string
		least int
	}{{b.Rows, " of %d rows", 1}, {b.Threads, ", %d threads", 2}, {b.Replicas, ", %d replicas", 2}} {
		if part.n >= part.least {
			fmt.Fprintf(w, part.text, part.n)
		}
	}
	fmt.Fprint(w, "\n\n")
	row(w, "STAGE", "DEVICE", "LAYERS", "RECOMPUTED", "BUSY", "PEAK", "LIMIT")
	at := 0
	for s, n := range b.Balance {
		on, layers := b.Planned.Stages[s].Device, c.Layers[at].Name
		if n > 1 {
			layers += " to " + c.Layers[at+n-1].Name
		}
		limit := "none"
		if b.Limits[on] > 0 {
			limit = formatBytes(b.Limits[on])
		}
		row(w, s, b.Devices[on], fmt.Sprintf("%d: %s", n, layers), b.Planned.Stages[s].Recomputed(),
			fmt.Sprintf("%.1f %%", part(float64(b.Busy[on]), float64(b.Step))), formatBytes(b.Peaks[on]),
			limit)
		at += n
	}
	fmt.Fprintln(w)
	row(w, "SCHEDULE", "CHUNKS", "STEP", "NONE BELOW", "HIGHEST PEAK", "WHY NOT")
	for _, o := range p.others() {
		if o.Step == 0 {
			row(w, o.Schedule, "", "", "", "", o.Lost)
			continue
		}
		row(w, o.Schedule, o.MicroBatches, micros(1e6*o.Step), micros(1e6*o.Bound), formatBytes(o.Peak),
			cmp.Or(o.Lost, "the best"))
	}
}

// bound says how much faster another plan could be.
func (p *foundPlan) bound() string {
	switch {
	case p.Proved:
		return "and no plan of those searched takes less"
	case p.LowerBound == 0:
		return "and how much less another takes is not known"
	}
	return fmt.Sprintf("and no plan of those searched takes less than %s (%s)", micros(us(p.LowerBound)),
		percent(float64(p.LowerBound-p.Best.Step), float64(p.Best.Step)))
}

// others are the schedules that were searched, and why each is not the best.
func (p *foundPlan) others() (list []report.Other) {
	for _, o := range p.Schedules {
		other := report.Other{Schedule: o.Schedule, Lost: o.Lost}
		if b := o.Plan; b != nil {
			switch {
			case b == p.Best || o.Lost != "":
			case b.Step == p.Best.Step:
				other.Lost = "the same time"
			default:
				other.Lost = fmt.Sprintf("time: %.1f %% more", 100*(float64(b.Step)/float64(p.Best.Step)-1))
			}
			other.MicroBatches, other.Step, other.Bound = b.MicroBatches, b.Step.Seconds(),
				o.LowerBound.Seconds()
			if len(b.Peaks) > 0 {
				other.Peak = slices.Max(b.Peaks)
			}
		}
		list = append(list, other)
	}
	return list
}

// page is what penstock report shows of the plan.
func (p *foundPlan) page() report.Run {
	b := p.Best
	balance, unit := b.Balance, "units"
	if p.model != nil {
		balance, unit = p.Layers(b.Balance), "layers"
	}
	out := report.Run{Title: p.title + ", planned", Plan: b.Planned, Planned: &b.Timeline, Limits: b.Limits,
		Others: p.others(),
		Layers: p.layers, Chains: p.chains, Facts: []report.Fact{
			{Name: "Step", Value: micros(us(b.Step)) + "; " + strings.TrimPrefix(p.bound(), "and ")},
			{Name: "Schedule", Value: b.Schedule},
			{Name: "Batch", Value: fmt.Sprintf("%s of %d rows", counted(b.MicroBatches, "micro-batch"),
				b.Rows)},
			{Name: "Cut", Value: fmt.Sprintf("%s %s", strings.ReplaceAll(numbers(balance), ",", " + "),
				unit)},
			{Name: "Devices", Value: strings.Join(b.Devices, ", ")},
			{Name: "Threads", Value: fmt.Sprintf("%d within an operator", b.Threads)},
			{Name: "Versions", Value: fmt.Sprintf("penstock %s, libtorch %s", ownVersion(), torch.Version())},
			{Name: "Planned", Value: time.Now().Format("2 January 2006, 15:04 MST")},
		}}
	if out.Layers != nil {
		return out
	}
	c := p.chain()
	for _, l := range c.Layers {
		out.Layers = append(out.Layers, report.Layer{Name: l.Name, Parameters: l.WeightGradient,
			Forward:  l.Forward / 1e6,
			Backward: l.Backward / 1e6, Saved: l.Saved})
	}
	at := 0
	for s, n := range b.Balance {
		out.Chains = append(out.Chains, report.Chain{Stage: s, Chain: plan.ChainStage(c, at,
			at+n).Costs.Chain(remat.Adds)})
		at += n
	}
	return out
}

// chain is the measured chain of the plan.
func (p *foundPlan) chain() remat.Chain {
	for _, m := range p.Profile.Measured {
		if max(m.Threads, 1) == p.Best.Threads && (p.Best.Rows == 0 || m.Rows == p.Best.Rows) {
			return m.Chain
		}
	}
	return p.Profile.Measured[0].Chain
}
