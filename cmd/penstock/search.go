package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"penstock.example/internal/arg"
	"penstock.example/planner"
	"penstock.example/planner/search"
	"penstock.example/profile"
	"penstock.example/remat"
	"penstock.example/report"
	"penstock.example/schedule"
	"penstock.example/torch"
)

// searchFlags say what is planned from a chain, and on what.
type searchFlags struct {
	stages, chunks, batch, rows int
	devices                     []torch.Device // by name; nil is any
	schedules                   []string
	virtual, replicas           []int
	limit                       int64
	machine                     string
	of                          measureFlags
	latency                     time.Duration
	bandwidth                   float64
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
all its cores: one device with all threads, or several with a part of them. The fewest
rows come first. Where one layer alone takes more than any device may hold, micro-batches
of more rows are not measured. --devices names devices of
this machine instead, CPU devices or GPUs: one of each kind is measured, copies between
GPUs are timed, and without --memory-limit a GPU may hold what it has free; the run then
has these devices, in the plan's order. The plan is for samples of --data, and training
on samples of another shape is refused; without --data it is for those that the model
usually reads. With --train-only layers that are frozen hold nothing for a backward, and
have no state. The step of the best plan is then planned as penstock train --plan does
it, so that its peaks are known to the byte.
Without a limit nothing is recomputed. With --out the plan is for penstock train --plan.

Otherwise only a chain is known (penstock profile).

With --chunks alone the chain is of one micro-batch. With --batch it is of as many rows
as it says, or else of --rows, or of the whole batch, and the numbers of micro-batches
are divisors of the batch; what they take is taken to grow with their rows. Transfers
cost nothing unless --latency or --bandwidth is given, or a machine:

  {"version":1,
  "devices":[{"name":"gpu","count":8,"bytes":80e9,"threads":1,"speed":1}],
  "links":[{"latency_us":5,"bytes_per_second":25e9}]}

A device that is twice as fast as what was measured has the speed 2. It needs as many
threads as the chain was measured with; one that has several times as many is shared by
stages, in equal parts, where there are more stages than devices. A link that has
"from" and "to" joins two devices by name, gpu0 and gpu1 here. Stages are placed on
devices in their order in the file.

Peaks of a chain are those of penstock schedule compare; of the optimizer's state they
have nothing. If no plan keeps the limits the exit code is 2, the least limits are told,
and nothing is written. Where a model's parameters, their gradients and the optimizer's
state do not fit, that is said at once, and the model is measured for the least limit
if it is small.`,
		Example: `  penstock plan --model resnet20 --data fashion-mnist --batch 64 --devices 2 --memory-limit 10MiB --out plan.json
  penstock plan --model resnet50 --batch 64 --devices 2 --memory-limit 300MiB
  penstock plan --model gpt2 --batch 64 --devices cuda:0,cuda:1 --out plan.json
  penstock plan chain.json --stages 4 --chunks 8 --memory-limit 2GiB
  penstock plan chain.json --stages 2 --chunks 8 --schedule 1f1b --format json
  penstock plan chain.json --machine machine.json --batch 64 --out plan.json
  penstock plan explain chain.json --stages 4 --chunks 8 --memory-limit 2GiB`,
		Args: chainOrModel(&f),
		RunE: interruptible("planning", func(cmd *cobra.Command, args []string) error {
			if err := keepInputs(cmd.InOrStdin(), "out", out, append(args, f.machine)...); err != nil {
				return err
			}
			if err := checkOutput(cmd.OutOrStdout()); err != nil {
				return err
			}
			if out != "" {
				if err := probeOut(cmd, out); err != nil {
					return err
				}
			}
			job, err := f.read(cmd, args)
			if err != nil {
				return err
			}
			found, err := job.search(cmd.Context(), cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			line := job.line(found)
			if out != "" {
				page := job.page(found)
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
			if format == "json" {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(line)
			}
			return showSearch(cmd.OutOrStdout(), job.profile.Measured[0].Chain, found)
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
	whole(s, &f.chunks, "chunks", 0, 1, search.MostMicroBatches, fmt.Sprintf("`M` micro-batches of a batch, each as the chain says, at most %d", search.MostMicroBatches))
	count(s, &f.batch, "batch", 0, "`N` rows of a batch, which are cut into any number of micro-batches")
	count(s, &f.rows, "rows", 0, "`N` rows that the chain is of, with --batch (default all)")
	list(s, &f.schedules, "schedule", "`NAME,...` of the schedules to choose from (default all): "+strings.Join(scheduleNames(), ", "), func(text string) (string, error) {
		if _, err := schedule.Named(text); err != nil {
			return "", errors.New(arg.OneOf(text, scheduleNames()))
		}
		return text, nil
	})
	list(s, &f.virtual, "virtual", "`V,...` stages of each device, for schedules of several (default 2)", number)
	list(s, &f.replicas, "replicas", "`N,...` pipelines side by side, with --machine and --batch (default 1)", number)
	size(s, &f.limit, "memory-limit", "most memory of each device, as a `SIZE` such as 512MiB (default none, or the machine's)")
	path(s, &f.machine, "machine", "`FILE` of the devices and links to plan for, as JSON")
	s.Var(&value{read: func(text string) (err error) {
		if f.latency, err = time.ParseDuration(text); err != nil || f.latency < 0 || f.latency > time.Hour {
			return errors.New("want a time such as 1ms or 50us, at most 1h")
		}
		return nil
	}}, "latency", "`TIME` that a value is on its way between two devices, such as 1ms (default none)")
	s.Var(&value{read: func(text string) (err error) {
		f.bandwidth, err = parseRate(text)
		return err
	}}, "bandwidth", "`RATE` of a link between two devices, such as 1.25GB/s or 10Gbit/s (default no bound)")
}

func scheduleNames() (names []string) {
	for _, s := range schedule.Schedules() {
		names = append(names, s.Name)
	}
	return names
}

// searchJob is what is searched for what.
type searchJob struct {
	title   string // of the model, or of the chain's file
	profile search.Profile
	machine search.Machine
	wishes  search.Wishes
	model   *modelSearch // nil where only a chain is known
	// elsewhere says that the devices are not here, so that a model's step cannot be planned.
	elsewhere bool
	spared    int64 // bytes of each device that are left for what a model's chain does not say
}

// read checks the flags and reads the files.
func (f *searchFlags) read(cmd *cobra.Command, args []string) (searchJob, error) {
	var job searchJob
	if cmd.Flags().Changed("stages") && cmd.Flags().Changed("devices") {
		return job, badUsage("--stages and --devices are the same; want one of them")
	}
	if f.of.modelName != "" {
		return f.ofModel(cmd)
	}
	switch {
	case f.devices != nil:
		return job, badUsage("--devices %s: a chain is of no device; want how many there are, or --model NAME, which is measured on them", f.devicesText())
	case f.chunks == 0 && f.batch == 0:
		return job, badUsage("want --chunks M, how many micro-batches of the chain there are, or --batch N, to have their number chosen")
	case f.stages == 0 && f.machine == "":
		return job, badUsage("want --stages P, how many devices there are, or --machine FILE")
	case f.rows > 0 && (f.batch == 0 || f.chunks > 0):
		return job, badUsage("--rows %d: with --chunks the chain is of one micro-batch; want --rows with --batch alone", f.rows)
	case f.batch > 0 && f.chunks > 0 && f.batch%f.chunks != 0:
		return job, badUsage("--chunks %d: it does not divide the %d rows of --batch", f.chunks, f.batch)
	case f.replicas != nil && (f.machine == "" || f.batch == 0):
		return job, badUsage("--replicas: want --machine FILE and --batch N with it")
	case f.machine != "" && f.linked():
		return job, badUsage("--machine has the links; want --latency and --bandwidth left out")
	}
	c, err := readChain(cmd, args[0])
	if err != nil {
		return job, err
	}
	job.title = strings.TrimSuffix(chainTitle(c, args[0]), ", ")
	if job.title == "" {
		job.title = "a chain"
	}
	timing := profile.Timing{Spread: c.Spread}
	if timing.Useless() {
		return job, badUsage("%s: its times are of no use: %s; %s", args[0], timing.Warning(), profileAgain)
	}
	job.wishes = search.Wishes{Devices: f.stages, Schedules: f.schedules, Virtual: f.virtual, Replicas: f.replicas, Limit: f.limit}
	threads := max(c.Threads, 1)
	switch {
	case f.rows > 0 && c.Rows > 0 && f.rows != c.Rows:
		return job, badUsage("--rows %d: %s was measured with %d; want --rows left out", f.rows, args[0], c.Rows)
	case f.chunks > 0 && f.replicas == nil && (f.batch == 0 || c.Rows == 0):
		job.wishes.MicroBatches, job.profile.Measured = []int{f.chunks}, []search.Measured{{Threads: threads, Chain: c}}
	default:
		if job.wishes.Batch = f.batch; f.chunks > 0 {
			job.wishes.MicroBatches = []int{f.chunks}
		}
		from := cmp.Or(f.rows, c.Rows, f.batch/max(f.chunks, 1))
		for _, rows := range divisors(f.batch) {
			job.profile.Measured = append(job.profile.Measured, search.Measured{Rows: rows, Threads: threads, Chain: search.Scaled(c, from, rows)})
		}
	}
	if f.machine != "" {
		if job.machine, err = readMachine(cmd, f.machine); err != nil {
			return job, err
		}
		switch n := job.machine.Parts(threads); {
		case n == 0:
			return job, badUsage("--machine %s: no device has the %d threads that %s was measured with; want such a device, or a chain that was measured with fewer (penstock profile --threads)", f.machine, threads, args[0])
		case f.stages > n:
			return job, badUsage("--stages %d: the machine has devices for %d, with %s each, as many as %s was measured with", f.stages, n, counted(threads, "thread"), args[0])
		}
	} else {
		for i := range f.stages {
			job.machine.Devices = append(job.machine.Devices, search.Device{Name: fmt.Sprint("device ", i), Threads: threads})
		}
		if f.linked() {
			job.machine.Links = []search.Link{f.link()}
		}
	}
	if f.stages > len(c.Layers) {
		return job, badUsage("--stages %d: the chain has %d layers; want at most as many", f.stages, len(c.Layers))
	}
	if warnOfTiming(cmd.ErrOrStderr(), timing, profileAgain) {
		fmt.Fprintln(cmd.ErrOrStderr(), "another plan may be faster than the one that is found; limits hold")
	}
	if f.machine != "" && c.Threads == 0 {
		fmt.Fprintf(cmd.ErrOrStderr(), "%s does not say with how many threads it was measured; it is read as 1\n", inputName(args[0]))
	}
	return job, nil
}

// divisors are those of a number, ascending.
func divisors(n int) (list []int) {
	for d := 1; d <= n/d; d++ {
		if n%d == 0 {
			list = append(list, d, n/d)
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// linked says whether --latency or --bandwidth say what links cost, and link is what they say.
func (f *searchFlags) linked() bool { return f.latency > 0 || f.bandwidth > 0 }

func (f *searchFlags) link() search.Link {
	return search.Link{Latency: f.latency, Bandwidth: f.bandwidth}
}

// chainOrModel wants the file of a chain, or --model.
func chainOrModel(f *searchFlags) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if f.of.modelName != "" {
			if len(args) > 0 {
				return badUsage("%s and --model %s: want one of the two", args[0], f.of.modelName)
			}
			return nil
		}
		for _, name := range modelOnly {
			if cmd.Flags().Changed(name) {
				return badUsage("--%s is for a model that is measured; want --model NAME with it", name)
			}
		}
		if len(args) > 1 && cmd.HasSubCommands() && arg.Nearest(args[0], []string{"explain"}) != "" {
			return badUsage("unknown command %q for %q; did you mean explain? see %[2]s --help", args[0], cmd.CommandPath())
		}
		return filesNamed("CHAIN, or --model NAME,")(cmd, args)
	}
}

// readMachine reads the file of a machine. What is wrong in it is a usage error.
func readMachine(cmd *cobra.Command, path string) (search.Machine, error) {
	text, err := readInput(cmd, path)
	if err != nil {
		return search.Machine{}, badUsage("--machine %w", err)
	}
	m, err := search.ParseMachine(text)
	if err != nil {
		return m, badUsage("--machine %s: %s", path, message(err))
	}
	return m, nil
}

// once finds the best plan, which is nil where none keeps the limits.
func (j *searchJob) once(ctx context.Context) (*search.Result, error) {
	r, err := search.Search(ctx, j.profile, j.machine, j.wishes)
	var refused *arg.ConfigError
	switch {
	case errors.As(err, &refused):
		return nil, j.inFlags(refused)
	case err != nil:
		return nil, err
	case r.Best == nil && r.Short == nil:
		var whys []string
		for _, o := range r.Schedules {
			whys = append(whys, o.Schedule+": "+message(errors.New(o.Lost)))
		}
		return nil, badUsage("no schedule can be planned: %s", strings.Join(whys, "; "))
	}
	return r, nil
}

// flagOfWish is the flag that says a field of search.Wishes.
var flagOfWish = map[string]string{"Batch": "batch", "MicroBatches": "chunks", "Devices": "stages", "Schedules": "schedule", "Virtual": "virtual", "Replicas": "replicas", "Limit": "memory-limit"}

// inFlags is the refusal of a setting as a usage error in words of the command line.
func (j *searchJob) inFlags(e *arg.ConfigError) error {
	why := e.Remedy
	if e.Problem != "" {
		why = e.Problem + "; " + why
	}
	if flag := flagOfWish[e.Field]; flag != "" {
		return badUsage("--%s %v: %s", flag, e.Value, why)
	}
	return badUsage("%s: %v, %s", j.title, e.Value, why)
}

// refusal says what the devices lack, and which limit to give. A model's step takes more than its chain says.
func (j *searchJob) refusal(short *planner.MemoryError) error {
	lacks := &planner.MemoryError{Stages: slices.Clone(short.Stages)}
	for i := range lacks.Stages {
		lacks.Stages[i].Least += j.spared
		lacks.Stages[i].Limit += j.spared
	}
	what, will := "a limit of", "will"
	if m := j.model; m != nil {
		if will = "may"; m.bytes != nil && m.limit == 0 {
			what = "devices with"
		}
	}
	text := fmt.Sprintf("no plan keeps the limits: %s; %s at least %s %s do", lacks.Shortages(), what, arg.Size(lacks.Least()), will)
	one := slices.MinFunc(j.profile.Measured, func(a, b search.Measured) int { return cmp.Compare(a.Rows, b.Rows) })
	if u, bytes, found := one.Oversized(j.machine, j.wishes); found {
		text += "; more devices will not, as " + j.oversized(one, u, bytes)
	}
	return badUsage("%s", text)
}

// oversized says that a unit alone takes more than a device may have.
func (j *searchJob) oversized(one search.Measured, unit int, bytes int64) string {
	rows := ""
	if one.Rows > 0 {
		rows = " with " + counted(one.Rows, "row")
	}
	return fmt.Sprintf("layer %q alone takes %s%s, and a device may have %s", one.Chain.Layers[unit].Name, arg.Size(bytes), rows, arg.Size(j.machine.Largest(j.wishes.Limit)+j.spared))
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

func (j *searchJob) line(r *search.Result) searchLine {
	p := r.Best
	line := searchLine{Balance: p.Balance, Schedule: p.Schedule, Chunks: p.MicroBatches, Step: us(p.Step), LowerBound: us(r.LowerBound), Peak: p.Peaks, Proved: r.Proved}
	more := func(n int) int {
		if n == 1 {
			return 0
		}
		return n
	}
	if m := j.model; m != nil {
		line.Balance = m.layers(p.Balance)
		line.Model, line.Settings, line.Batch, line.Optimizer, line.Autocast = m.modelName, m.settings, m.batch, m.optimizer, m.autocast
		line.TrainOnly = m.trainOnly
		line.Rows, line.Input = p.Rows, describeData(m.dataFlags, m.samples)
		if m.bytes != nil && slices.Max(p.Limits) > 0 && slices.ContainsFunc(p.Limits, func(n int64) bool { return n != m.limit }) {
			line.Bytes = p.Limits
		} else {
			line.Limit = m.limit
		}
		if m.update.Momentum != usualMomentum(m.optimizer) {
			line.Momentum = &m.update.Momentum
		}
	}
	line.Virtual, line.Replicas, line.Threads = more(p.Virtual), more(p.Replicas), more(p.Threads)
	if p.Devices[0] != "device 0" {
		line.Devices, line.Elsewhere = p.Devices, j.elsewhere
	}
	return line
}

// showSearch prints the best plan and the others.
func showSearch(w io.Writer, c remat.Chain, r *search.Result) error {
	p := r.Best
	t := newTable(w)
	fmt.Fprintf(t, "step\t%s, ", micros(us(p.Step)))
	switch {
	case r.Proved:
		fmt.Fprintf(t, "and no plan of those searched takes less\n")
	case r.LowerBound == 0:
		fmt.Fprintf(t, "and how much less another takes is not known\n")
	default:
		fmt.Fprintf(t, "and no plan of those searched takes less than %s (%s)\n", micros(us(r.LowerBound)), percent(float64(r.LowerBound-p.Step), float64(p.Step)))
	}
	fmt.Fprintf(t, "schedule\t%s, %s", p.Schedule, counted(p.MicroBatches, "micro-batch"))
	if p.Rows > 0 {
		fmt.Fprintf(t, " of %s", counted(p.Rows, "row"))
	}
	if p.Threads > 1 {
		fmt.Fprintf(t, ", %d threads", p.Threads)
	}
	if p.Replicas > 1 {
		fmt.Fprintf(t, ", %d replicas", p.Replicas)
	}
	fmt.Fprintln(t)
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(t, "\nSTAGE\tDEVICE\tLAYERS\tRECOMPUTED\tBUSY\tPEAK\tLIMIT\n")
	at := 0
	for s, n := range p.Balance {
		on := p.Planned.Stages[s].Device
		limit := "none"
		if p.Limits[on] > 0 {
			limit = formatBytes(p.Limits[on])
		}
		fmt.Fprintf(t, "%d\t%s\t%d: %s\t%d\t%.1f %%\t%s\t%s\n", s, p.Devices[on], n, namesOf(c, at, at+n), p.Planned.Stages[s].Recomputed(),
			part(float64(p.Busy[on]), float64(p.Step)), formatBytes(p.Peaks[on]), limit)
		at += n
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(t, "\nSCHEDULE\tCHUNKS\tSTEP\tNONE BELOW\tHIGHEST PEAK\tWHY NOT\n")
	for _, o := range r.Schedules {
		if o.Plan == nil {
			fmt.Fprintf(t, "%s\t\t\t\t\t%s\n", o.Schedule, o.Lost)
			continue
		}
		most := int64(0)
		for _, n := range o.Plan.Peaks {
			most = max(most, n)
		}
		fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%s\t%s\n", o.Schedule, o.Plan.MicroBatches, micros(us(o.Plan.Step)), micros(us(o.LowerBound)), formatBytes(most), cmp.Or(o.Lost, whyNot(o.Plan, p)))
	}
	return t.Flush()
}

// whyNot compares a plan with the best by their steps.
func whyNot(plan, best *search.Plan) string {
	switch {
	case plan == best:
		return "the best"
	case plan.Step == best.Step:
		return "the same time"
	}
	return fmt.Sprintf("time: %.1f %% more", 100*(float64(plan.Step)/float64(best.Step)-1))
}

// namesOf names the layers from first up to but not including last.
func namesOf(c remat.Chain, first, last int) string {
	if last-first == 1 {
		return c.Layers[first].Name
	}
	return c.Layers[first].Name + " to " + c.Layers[last-1].Name
}
