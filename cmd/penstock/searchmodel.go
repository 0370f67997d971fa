package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"penstock.example/data"
	"penstock.example/models"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/pipe"
	"penstock.example/planner"
	"penstock.example/planner/search"
	"penstock.example/profile"
	"penstock.example/report"
	"penstock.example/schedule"
	"penstock.example/torch"
	"penstock.example/train"
)

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
	word(s, &f.modelName, "model", "", "`NAME` of a model, which is measured, in place of CHAIN; penstock models lists them", models.Names()...)
	s.StringArrayVar(&f.settings, "set", nil, "`OPTION=VALUE,...` of the model; penstock models lists them; may be repeated")
	f.dataFlags.register(s, " (default: samples as the model usually reads them)")
	word(s, &f.optimizer, "optimizer", "sgd", "`NAME` of the optimizer that will train the model: "+strings.Join(optim.Names(), ", "), optim.Names()...)
	amount(s, &f.momentum, "momentum", 1, "`M` of sgd and rmsprop, which takes state (default 0.9 for sgd)")
	trainOnlyFlag(s, &f.trainOnly)
	autocastFlag(s, &f.autocast, "plan for forwards of the model in fewer bits where that is safe")
	f.numerics.register(s)
	whole(s, &f.threads, "threads", 0, 1, pipe.MaxThreads, "`N` threads of each device on the model (default: as many as there are cores for each)")
	count(s, &f.repeats, "repeats", 0, "`N` timed runs of each layer of the model, of which the lower quartile counts (default 5, or fewer, at least 2, where they take long)")
	s.Uint64Var(&f.seed, "seed", 1, "`SEED` of the weights and samples that the model is measured with")
}

// modelOnly are the flags that go with --model.
var modelOnly = []string{"set", "data", "data-dir", "data-set", "window", "optimizer", "momentum", "train-only", "autocast", "deterministic", "tf32", "threads", "repeats", "seed"}

// modelSearch is a model that is planned for.
type modelSearch struct {
	measureFlags
	measuredModel
	update            optim.Config // what of it decides how much state there is
	deferredBatchNorm bool
	batch             int
	limit             int64            // bytes of each device; 0 is none
	units             []int            // layers of each unit of the chain
	atWork            int              // devices on this machine, at most, while the model trains
	on                []planDevice     // by name; nil is any CPU devices
	bytes             map[string]int64 // that they have, by name; 0 is no bound
	// What a page shows of the plan whose step was planned last.
	known  []report.Layer
	chains []report.Chain
	// profiles are by rows and threads: a step is planned by the times by which it was searched.
	profiles map[[2]int]*profile.Profile
	// searched is that plan as it was found, whose units are those of the chain. The step has the units of each
	// stage by itself, and the loss in the last.
	searched *search.Plan
}

// modelPlans is how many plans of a device are made for each schedule and number of micro-batches of a
// model, which is measured for several: some tenths of a second.
const modelPlans = 30

// mostChunks is the most micro-batches that a model is measured for, unless --chunks asks for more.
const mostChunks = 16

// ofModel checks the flags and makes a job of a model, which it measures.
func (f *searchFlags) ofModel(cmd *cobra.Command) (job searchJob, err error) {
	switch {
	case f.batch == 0:
		return job, badUsage("--model %s: want --batch N with it, the rows of a step", f.of.modelName)
	case f.rows > 0 || f.replicas != nil:
		return job, badUsage("--rows and --replicas are for a chain; want them left out with --model")
	case f.machine != "" && f.linked():
		return job, badUsage("--machine has the links; want --latency and --bandwidth left out")
	case f.stages == 0 && f.linked():
		return job, badUsage("--latency and --bandwidth: want --devices P with them, which links join, or --machine FILE")
	}
	if err := f.checkDevices(); err != nil {
		return job, err
	}
	if err := f.of.check(cmd.Flags()); err != nil {
		return job, err
	}
	f.of.numerics.apply()
	m := &modelSearch{measureFlags: f.of, atWork: cmp.Or(f.stages, runtime.NumCPU())}
	m.update.Momentum = momentumOf(cmd.Flags(), m.optimizer, m.momentum)
	if m.measuredModel, err = f.ofSamples(cmd.ErrOrStderr()); err != nil {
		return job, err
	}
	cores := runtime.NumCPU()
	var machine search.Machine
	threads := f.modelThreads(cores)
	switch {
	case f.machine != "":
		if machine, err = readMachine(cmd, f.machine); err != nil {
			return job, err
		}
	case f.devices != nil:
		if machine, err = f.named(m, slices.Max(threads)); err != nil {
			return job, err
		}
	case f.linked():
		machine = linkedMachine("cpu/", f.stages, slices.Max(threads), f.link())
	default:
		machine = thisMachine(max(cores, f.stages*max(m.threads, 1)))
	}
	if f.machine == "" && !f.onGPUs() && f.stages > cores {
		fmt.Fprintf(cmd.ErrOrStderr(), "--devices %s: there are %d cores, so that a step will take longer than planned\n", f.devicesText(), cores)
	}
	return f.measure(cmd.Context(), cmd.ErrOrStderr(), m, machine, threads)
}

// checkDevices checks the devices that are named.
func (f *searchFlags) checkDevices() error {
	switch {
	case f.devices == nil:
		return nil
	case f.machine != "":
		return badUsage("--devices %s and --machine: want one of the two, or how many devices of the machine there are", f.devicesText())
	}
	return checkNamed(f.devices)
}

// devicesText is --devices as it was given.
func (f *searchFlags) devicesText() string {
	if f.devices == nil {
		return fmt.Sprint(f.stages)
	}
	return deviceNames(f.devices)
}

// onGPUs says that the devices are named, and GPUs.
func (f *searchFlags) onGPUs() bool { return f.devices != nil && f.devices[0].Kind != torch.KindCPU }

// named is the machine of the devices that are named, and has the model measured on them. The links of GPUs are
// measured unless flags say what they cost; between CPU devices nothing is moved.
func (f *searchFlags) named(m *modelSearch, threads int) (machine search.Machine, err error) {
	if m.on, err = readDevices(f.devices); err != nil {
		return machine, err
	}
	var links []search.Link
	switch {
	case f.linked():
		links = append(links, f.link())
	case f.onGPUs() && len(f.devices) > 1:
		between, err := measureCopies(f.devices)
		if err != nil {
			return machine, fmt.Errorf("measuring the links of --devices %s: %w", f.devicesText(), err)
		}
		links = append(links, between)
	}
	machine, m.bytes = machineOf(m.on, f.limit, threads, links...), map[string]int64{}
	for _, d := range machineOf(m.on, 0, threads).Devices {
		m.bytes[d.Name] = d.Bytes
	}
	return machine, nil
}

// ofSamples makes the model for the samples of --data, or for those that it usually reads.
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
		return measuredModel{}, badUsage("--batch %d: --data %s has %d samples; want at most as many", f.batch, of.dataName, n)
	}
	return measuredOn(of, training.Info())
}

// thisMachine is a CPU of so many threads, which its devices share.
func thisMachine(threads int) search.Machine {
	return search.Machine{Devices: []search.Device{{Name: "cpu", Threads: threads}}}
}

// lightest is the schedule that needs fewest bytes as a rule.
const lightest = "1f1b"

// measure makes a job of a model for a machine: it measures the model for each number of micro-batches and
// of threads of a device, on a device of each kind.
func (f *searchFlags) measure(ctx context.Context, stderr io.Writer, m *modelSearch, machine search.Machine, threads []int) (job searchJob, err error) {
	if f.chunks > 0 && f.batch%f.chunks != 0 {
		return job, badUsage("--chunks %d: it does not divide the %d rows of --batch", f.chunks, f.batch)
	}
	if err := freeze(m.model, m.trainOnly); err != nil {
		return job, err
	}
	m.batch, m.limit, m.update.LR = f.batch, f.limit, 1
	slots, err := optim.Slots(m.optimizer, m.update)
	if err != nil {
		return job, err
	}
	layers := len(m.model.Layers())
	if f.stages > layers {
		return job, badUsage("--devices %s: %s has %d layers; want at most as many", f.devicesText(), m.name, layers)
	}
	sizes, weighs, small := f.modelChunks(), weigh(m.model, slots), false
	if why, remedy := weighs.refuse(m.optimizer, machine, f.stages, slices.Min(threads), f.limit); why != "" {
		if weighs.all > measuredSoon {
			return job, badUsage("no plan keeps the limits: %s; %s", why, remedy)
		}
		fmt.Fprintf(stderr, "no plan keeps the limits: %s; measuring the model for the least limit that will do\n", why)
		sizes, threads, m.repeats = sizes[:1], threads[len(threads)-1:], 1 // of the fewest bytes
		small = true
	}
	job.title, job.model, job.machine, job.elsewhere = m.name, m, machine, f.machine != ""
	job.wishes = search.Wishes{Batch: f.batch, Devices: f.stages, Schedules: f.schedules, Virtual: f.virtual, Limit: f.limit, State: slots, Plans: modelPlans}
	show := newCounter(stderr, "measuring", "layers")
	defer show.end()
	m.profiles = map[[2]int]*profile.Profile{}
	var timing profile.Timing
	kinds := m.kinds()
	took := make([]float64, len(kinds))
	for i, chunks := range sizes {
		rows := f.batch / chunks
		for t, n := range threads {
			profiles := make([]profile.Profile, len(kinds))
			for k, kind := range kinds {
				show.doing = fmt.Sprintf("measuring micro-batches of %s with %s", counted(rows, "row"), counted(n, "thread"))
				if all := len(sizes) * len(threads) * len(kinds); all > 1 {
					atMost := ""
					if machine.Largest(f.limit) > 0 && i+1 < len(sizes) {
						atMost = "at most "
					}
					show.doing += fmt.Sprintf(", measurement %d of %s%d", (i*len(threads)+t)*len(kinds)+k+1, atMost, all)
				}
				if profiles[k], err = m.measured(ctx, m.device(kind), rows, n, show); err != nil {
					return job, err
				}
			}
			p := profiles[0]
			if len(kinds) == 1 {
				m.profiles[[2]int{rows, n}] = &p
			}
			c := p.Chains[0]
			one, units := m.asUnits(p)
			switch {
			case len(c.Layers) == 0:
				return job, badUsage("--model %s: nothing in it is trained, so there is nothing to plan", m.name)
			case m.units != nil && !slices.Equal(units, m.units):
				left := rows
				if few := job.profile.Measured[0].Rows; rows > few && job.profile.Measured[len(job.profile.Measured)-1].Rows == few {
					left, job.profile.Measured = few, nil // the fewest rows alone are unlike the rest
					clear(took)
				}
				show.line(fmt.Sprintf("micro-batches of %d rows are left out: other layers of them are one unit", left))
				if left == rows {
					continue
				}
			}
			m.units = units
			one.Rows, one.Threads = rows, n
			job.profile.Measured = append(job.profile.Measured, one)
			for k, p := range profiles {
				took[k] += timeOf(p.Chains[0].Chain)
				timing.Spread = max(timing.Spread, p.Chains[0].Timing.Spread)
			}
		}
		if n := len(job.profile.Measured); n > 0 && i+1 < len(sizes) {
			if u, bytes, found := job.profile.Measured[n-1].Oversized(machine, job.wishes); found {
				show.line("micro-batches of more rows are not measured: " + job.oversized(job.profile.Measured[n-1], u, bytes))
				break
			}
		}
	}
	slices.SortStableFunc(job.profile.Measured, func(a, b search.Measured) int { return b.Rows - a.Rows })
	setSpeeds(machine, kinds, took)
	if small {
		return job.lighter(), nil
	}
	warnOfTiming(stderr, timing, searchAgain)
	return job, nil
}

// lighter is the job with what takes fewest bytes as a rule: the smallest micro-batches, and the lightest schedule
// if it may have that.
func (j *searchJob) lighter() searchJob {
	out := *j
	fewest := func(a, b search.Measured) int {
		return cmp.Or(cmp.Compare(a.Rows, b.Rows), cmp.Compare(a.Threads, b.Threads))
	}
	out.profile.Measured = []search.Measured{slices.MinFunc(j.profile.Measured, fewest)}
	if list := j.wishes.Schedules; len(list) == 0 || slices.Contains(list, lightest) {
		out.wishes.Schedules = []string{lightest}
	}
	return out
}

// modelChunks are the numbers of micro-batches that a model is measured for, those of the fewest rows first.
func (f *searchFlags) modelChunks() (list []int) {
	if f.chunks > 0 {
		return []int{f.chunks}
	}
	for m := 1; m <= min(f.batch, mostChunks); m *= 2 {
		if f.batch%m == 0 {
			list = append(list, m)
		}
	}
	slices.Reverse(list)
	return list
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

// kinds are the kinds of devices that there are; of devices without names one.
func (m *modelSearch) kinds() []deviceKind {
	if m.on == nil {
		return []deviceKind{{}}
	}
	return kindsOf(m.on)
}

// device is that on which the model is measured for a kind.
func (m *modelSearch) device(k deviceKind) torch.Device {
	if k.on == nil {
		return torch.CPU(0)
	}
	return m.on[k.on[0]].Device
}

// measured measures the model on micro-batches of so many rows.
func (m *modelSearch) measured(ctx context.Context, on torch.Device, rows, threads int, show *progress) (profile.Profile, error) {
	c := torch.NewCtx(torch.Options{Device: on, Seed: m.seed})
	defer c.Close()
	config := profile.Config{Device: on, Peer: on, Devices: m.atWork, Threads: threads, MicroBatches: m.batch / rows, Repeats: m.repeats, Seed: m.seed, Autocast: m.autocast, Clock: clock,
		Balance: []int{len(m.model.Layers())}, Split: true, FirstOnly: true, DeferredBatchNorm: m.deferredBatchNorm, Loss: m.loss(), Progress: show.at}
	if threads > 1 {
		config.Clock = nil // the time of day
	}
	var sample *torch.Tensor
	if err := torch.Try(func() {
		sample, config.Target = m.sample(c, rows), []*torch.Tensor{m.target(c, rows, m.seed)}
	}); err != nil {
		return profile.Profile{}, fmt.Errorf("not enough memory for a micro-batch of %d samples: %w; use a smaller --batch, or more --chunks", rows, err)
	}
	return profile.Measure(ctx, m.model, config, sample)
}

// layers is a balance of units as one of the model's layers.
func (m *modelSearch) layers(balance []int) (list []int) {
	at := 0
	for _, n := range balance {
		sum := 0
		for _, units := range m.units[at : at+n] {
			sum += units
		}
		list, at = append(list, sum), at+n
	}
	return list
}

// fits plans a step of the model itself by the plan that was found, and gives it the peaks that the step
// will have, to the byte. It returns a *planner.MemoryError where that takes more than the limits.
func (m *modelSearch) fits(ctx context.Context, p *search.Plan) error {
	o, err := m.open(p)
	if err != nil {
		return err
	}
	defer o.close()
	plan, err := o.pipe.PlanFor(ctx, o.batch, m.loss())
	var short *planner.MemoryError
	if err != nil && !errors.As(err, &short) {
		return err
	}
	o.freeBatch()
	if short = short.WithUpdates((&train.Loop{Pipe: o.pipe, Optimizer: o.optimizer}).Updates()); short != nil {
		return short
	}
	found := *p // with the peaks of the step, which it shares
	m.searched = &found
	for w := range p.Devices {
		p.Peaks[w], p.Limits[w] = plan.Devices[w].Peak, m.limitOf(p.Devices[w])
	}
	if plan.Program.String() == p.Planned.Program.String() {
		plan.Hold(p.Timeline)
	} else {
		line, _, err := plan.TimelineOver(p.Links)
		if err != nil {
			return err
		}
		p.Run(line)
	}
	p.Planned, m.known, m.chains = plan, describeLayers(o.model, o.pipe), describeChains(o.pipe)
	return nil
}

// openPlan is a pipe that is opened by a plan, as training opens it, with a made-up batch. The model is
// its own.
type openPlan struct {
	model     *nn.Sequential
	pipe      *pipe.Pipe
	optimizer optim.Optimizer
	batch     pipe.Batch
	data      []*torch.Ctx // own the batch, on the first and the last device
}

// deviceOf is the device of a worker of a plan.
func (m *modelSearch) deviceOf(p *search.Plan, worker int) torch.Device {
	at := slices.IndexFunc(m.on, func(d planDevice) bool { return d.String() == p.Devices[worker] })
	if at < 0 {
		return torch.CPU(worker)
	}
	return m.on[at].Device
}

// limitOf is how many bytes a device may hold; 0 is no bound.
func (m *modelSearch) limitOf(name string) int64 {
	if bytes := m.bytes[name]; bytes > 0 && (m.limit == 0 || bytes < m.limit) {
		return bytes
	}
	return m.limit
}

// open opens a pipe by a plan that was found. Its devices have the limit until it is closed.
func (m *modelSearch) open(p *search.Plan) (o *openPlan, err error) {
	named, err := schedule.Named(p.Schedule)
	if err != nil {
		return nil, err
	}
	workers, err := named.Workers(len(p.Devices), p.Virtual)
	if err != nil {
		return nil, err
	}
	config := pipe.Config{Balance: m.layers(p.Balance), Chunks: p.MicroBatches, Threads: max(p.Threads, 1), Autocast: m.autocast, Seed: m.seed,
		DeferredBatchNorm: m.deferredBatchNorm, Schedule: named.Generate, Checkpoint: pipe.Optimal, Profile: m.profiles[[2]int{p.Rows, p.Threads}]}
	for _, w := range workers {
		config.Devices = append(config.Devices, m.deviceOf(p, w))
	}
	o = &openPlan{}
	defer func() {
		if err != nil {
			o.close()
		}
	}()
	if config.Optimizer, err = optim.New(m.optimizer, m.update); err != nil {
		return nil, err
	}
	o.optimizer = config.Optimizer
	model, err := measuredWith(m.name, m.options, m.samples)
	if err != nil {
		return nil, err
	}
	if err := freeze(model.model, m.trainOnly); err != nil {
		return nil, err
	}
	for w, name := range p.Devices {
		m.deviceOf(p, w).SetLimit(m.limitOf(name))
	}
	if o.pipe, err = pipe.Open(model.model, config); err != nil {
		for w := range p.Devices {
			m.deviceOf(p, w).SetLimit(0)
		}
		return nil, err
	}
	o.model = model.model
	return o, o.makeBatch(m)
}

// makeBatch makes up a batch on the first and the last device.
func (o *openPlan) makeBatch(m *modelSearch) error {
	devices := o.pipe.Config().Devices // by stage
	for _, d := range []torch.Device{devices[0], devices[len(devices)-1]} {
		o.data = append(o.data, torch.NewCtx(torch.Options{Device: d}))
	}
	return torch.Try(func() {
		o.batch = pipe.Batch{Input: pipe.Rows(m.sample(o.data[0], m.batch)), Target: pipe.Rows(m.target(o.data[1], m.batch, m.seed))}
	})
}

func (o *openPlan) freeBatch() {
	for _, c := range o.data {
		c.Close()
	}
	o.data = nil
}

func (o *openPlan) close() {
	o.freeBatch()
	if o.optimizer != nil {
		o.optimizer.Close()
	}
	if o.pipe == nil {
		return
	}
	devices := o.pipe.Devices()
	o.pipe.Close()
	nn.Free(o.model)
	for _, d := range devices {
		d.SetLimit(0)
	}
}

// rounds is how often a plan is sought whose step fits.
const rounds = 5

// search finds the best plan, or says why there is none.
func (j *searchJob) search(ctx context.Context, stderr io.Writer) (*search.Result, error) {
	show := newPlanProgress(stderr, "planning")
	defer show.end()
	return j.searchTold(ctx, show)
}

// searchTold is search that tells how far it is, with whatever is searched after it.
func (j *searchJob) searchTold(ctx context.Context, show *progress) (*search.Result, error) {
	j.wishes.Progress = show.searching
	light := j.lighter()
	found, err := j.fitting(ctx, show.line)
	var short *planner.MemoryError
	if j.model != nil && !j.elsewhere && (len(j.profile.Measured) > 1 || len(j.wishes.Schedules) != 1) && (err == nil && found.Best == nil || errors.As(err, &short)) {
		// The step of the best may lack bytes that another has.
		if one, err := light.fitting(ctx, show.line); err == nil && one.Best != nil {
			show.line(fmt.Sprintf("planned with %s and the fewest rows alone, as nothing faster that was found fits", strings.Join(light.wishes.Schedules, ", ")))
			j.machine, j.wishes.Limit, j.spared = light.machine, light.wishes.Limit, light.spared
			one.LowerBound, one.Proved = 0, false // of what was left out nothing is known
			one.Best.LowerBound, one.Best.Proved = 0, false
			return one, nil
		}
	}
	if err == nil && found.Best == nil {
		return nil, j.refusal(found.Short)
	}
	return found, err
}

// fitting finds the best plan. A model's plan is one whose step is known to fit: the bytes that its step lacks are
// taken from the limit, and the search is repeated.
func (j *searchJob) fitting(ctx context.Context, tell func(line string)) (*search.Result, error) {
	found, err := j.once(ctx)
	for round := 1; ; round++ {
		if err != nil || found.Best == nil || j.model == nil || j.elsewhere {
			return found, err
		}
		searched := found.Best.Step
		err = j.model.fits(ctx, found.Best)
		var short *planner.MemoryError
		if !errors.As(err, &short) || round == rounds {
			if step := found.Best.Step; step != searched { // bounds are of what was searched
				found.LowerBound, found.Proved = min(found.LowerBound, step), false
				for i := range found.Schedules {
					if o := &found.Schedules[i]; o.Plan == found.Best {
						o.LowerBound, o.Proved = min(o.LowerBound, step), false
					}
				}
			}
			return found, err
		}
		more := int64(1)
		for _, s := range short.Stages {
			more = max(more, s.Least-s.Limit)
		}
		most := int64(0)
		for _, name := range found.Best.Devices {
			most = max(most, j.model.limitOf(name))
		}
		if !j.spare(more) {
			return found, err
		}
		tell(fmt.Sprintf("the plan found lacks %s of the limit of %s; planning again with %s less", formatBytes(more), formatBytes(most), formatBytes(j.spared)))
		found, err = j.again(ctx, found)
	}
}

// again searches within fewer bytes: the schedule of the best plan alone, as the others' steps get no shorter, or all
// of them if that does not stay the fastest.
func (j *searchJob) again(ctx context.Context, found *search.Result) (*search.Result, error) {
	one := j.wishes
	one.Schedules = []string{found.Best.Schedule}
	fewer, err := search.Search(ctx, j.profile, j.machine, one)
	if err != nil || fewer.Best == nil {
		return j.once(ctx)
	}
	for i, o := range found.Schedules {
		switch {
		case o.Plan == found.Best:
			found.Schedules[i] = fewer.Schedules[0]
		case o.Plan != nil && o.Plan.Step < fewer.Best.Step:
			return j.once(ctx)
		}
	}
	found.Best = fewer.Best
	found.LowerBound, found.Proved = min(found.LowerBound, found.Best.Step), found.Proved && found.LowerBound >= found.Best.Step
	return found, nil
}

// spare takes so many bytes more from what each device may hold, and says whether any are left.
func (j *searchJob) spare(bytes int64) bool {
	list := slices.Clone(j.machine.Devices)
	limits := []*int64{&j.wishes.Limit}
	for i := range list {
		limits = append(limits, &list[i].Bytes)
	}
	limits = slices.DeleteFunc(limits, func(n *int64) bool { return *n == 0 })
	if len(limits) == 0 || slices.ContainsFunc(limits, func(n *int64) bool { return *n <= bytes }) {
		return false
	}
	for _, n := range limits {
		*n -= bytes
	}
	j.machine.Devices = list
	j.spared += bytes
	return true
}
