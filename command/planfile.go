package command

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"penstock.example/group"
	"penstock.example/internal/arg"
	"penstock.example/internal/option"
	"penstock.example/internal/progress"
	"penstock.example/internal/report"
	"penstock.example/internal/system"
	"penstock.example/pipe"
	"penstock.example/plan"
	"penstock.example/schedule"
	"penstock.example/torch"
	"penstock.example/train"
)

// planJSON is the JSON of a plan. penstock train --plan reads it.
type planJSON struct {
	Balance    []int    `json:"balance"` // layers of each stage
	Schedule   string   `json:"schedule"`
	Chunks     int      `json:"chunks"` // of each replica
	Step       float64  `json:"step_us"`
	LowerBound float64  `json:"lower_bound_us"` // no searched plan has a shorter step
	Peak       []int64  `json:"peak_bytes"`     // by device
	Proved     bool     `json:"proved"`         // no searched plan is faster
	Virtual    int      `json:"virtual"`        // stages of each device
	Replicas   int      `json:"replicas"`
	Threads    int      `json:"threads"` // of each device
	Devices    []string `json:"devices"`
	// Train has the flags of penstock train by name, for a model. "" is a flag left out.
	Train     map[string]string `json:"train,omitempty"`
	Bytes     []int64           `json:"bytes,omitempty"` // free memory of Devices, without --memory-limit
	Explained *plan.Explanation `json:"explained,omitempty"`
	Page      *report.Run       `json:"page,omitempty"` // in a file, for penstock report
}

func (p *foundPlan) line() planJSON {
	b, f := p.Best, p.flags
	line := planJSON{Balance: b.Balance, Schedule: b.Schedule, Chunks: b.MicroBatches, Step: us(b.Step),
		LowerBound: us(p.LowerBound), Peak: b.Peaks, Proved: p.Proved, Virtual: b.Virtual,
		Replicas: b.Replicas, Threads: b.Threads, Devices: b.Devices}
	if p.Units == nil { // a chain
		return line
	}
	line.Balance = p.Layers(b.Balance)
	line.Train = map[string]string{
		"model": f.modelName, "set": strings.Join(f.settings, ","), "lora": f.lora.String(),
		"batch": fmt.Sprint(f.batch), "optimizer": f.optimizer, "autocast": f.autocast.String(),
		"momentum": fmt.Sprint(f.config.Update.Momentum), "train-only": strings.Join(f.trainOnly, ","),
		"balance": option.Joined(line.Balance), "stages": fmt.Sprint(len(b.Devices)), "schedule": b.Schedule,
		"virtual": fmt.Sprint(b.Virtual), "chunks": fmt.Sprint(b.MicroBatches),
		"threads": fmt.Sprint(b.Threads), "checkpoint": string(pipe.Optimal), "memory-limit": "",
	}
	if f.limit > 0 {
		line.Train["memory-limit"] = fmt.Sprint(f.limit)
	}
	if f.dataName != "" {
		line.Train["data"], line.Train["data-dir"] = f.dataName, f.dataDir
		line.Train["data-set"] = strings.Join(f.dataSettings, ",")
	}
	if slices.Contains(windowed, f.dataName) {
		line.Train["window"] = fmt.Sprint(f.window)
	}
	if f.onGPUs() {
		line.Train["deterministic"], line.Train["tf32"] = fmt.Sprint(f.numerics.deterministic),
			fmt.Sprint(f.numerics.tf32)
	}
	if f.devices != nil {
		line.Train["devices"] = strings.Join(b.Devices, ",")
		if slices.ContainsFunc(b.Limits, func(n int64) bool { return n != f.limit }) {
			line.Bytes, line.Train["memory-limit"] = b.Limits, ""
		}
	}
	return line
}

// show prints the best plan, the other schedules, and line.Explained if there is one.
func (p *foundPlan) show(w io.Writer, line planJSON) {
	b, c, e := p.Best, p.Profile.Measured[0].Chain, line.Explained
	fmt.Fprintf(w, "step\t%s; %s\nplan\t%s\n", micros(us(b.Step)), p.bound(), line.inFlags())
	if b.Rows > 0 {
		fmt.Fprintf(w, "batch\t%s of %d rows, on %s\n", counted(b.MicroBatches, "micro-batch"), b.Rows,
			counted(b.Replicas, "pipeline"))
	}
	limit := func(device int, none string) string {
		if b.Limits[device] == 0 {
			return none
		}
		return formatBytes(b.Limits[device])
	}
	row(w, "\nSTAGE", "DEVICE", "LAYERS", "RECOMPUTED", "BUSY", "PEAK", "LIMIT")
	first := 0
	for s, n := range b.Balance {
		device, layers := b.Planned.Stages[s].Device, c.Layers[first].Name
		if n > 1 {
			layers += " to " + c.Layers[first+n-1].Name
		}
		row(w, s, b.Devices[device], fmt.Sprintf("%d: %s", line.Balance[s], layers),
			b.Planned.Stages[s].Recomputed(),
			fmt.Sprintf("%.1f %%", percentOf(float64(b.Busy[device]), float64(b.Step))),
			formatBytes(b.Peaks[device]), limit(device, "none"))
		first += n
	}
	row(w, "\nSCHEDULE", "CHUNKS", "STEP", "NONE BELOW", "HIGHEST PEAK", "WHY NOT")
	for _, o := range line.Page.Others {
		if o.Step == 0 {
			row(w, o.Schedule, "", "", "", "", o.Lost)
		} else {
			row(w, o.Schedule, o.MicroBatches, micros(1e6*o.Step), micros(1e6*o.Bound), formatBytes(o.Peak),
				cmp.Or(o.Lost, "the best"))
		}
	}
	if e == nil {
		return
	}
	shares := func(list []plan.Share) string {
		var words []string
		for _, s := range list {
			words = append(words, fmt.Sprintf("%.0f %% %s", 100*s.Part, s.Name))
		}
		return strings.Join(words, ", ")
	}
	fmt.Fprintf(w, "\ntime\t%s is busy for %.1f %% of the step; of that %s\n", b.Devices[e.Slowest],
		100*e.Busy, shares(e.Slow))
	fmt.Fprintf(w, "memory\t%s holds %s of %s; of what its layers hold %s\n", b.Devices[e.Fullest],
		formatBytes(b.Peaks[e.Fullest]), limit(e.Fullest, "any number"), shares(e.Full))
	for _, g := range e.Gains {
		fmt.Fprintf(w, "%s\t%s, %s\n", g.What, micros(us(g.Step)),
			percent(float64(g.Step-p.Searched.Step), float64(p.Searched.Step)))
	}
}

func (p *foundPlan) bound() string {
	if p.Proved {
		return "no plan of those searched takes less"
	}
	return fmt.Sprintf("no plan of those searched takes less than %s (%s)", micros(us(p.LowerBound)),
		percent(float64(p.LowerBound-p.Best.Step), float64(p.Best.Step)))
}

// takePlan sets flags from the file of --plan. With --plan auto applyAutoPlan sets them later.
func (f *trainFlags) takePlan(cmd *cobra.Command) error {
	if f.planFrom == "" || f.planFrom == auto {
		return nil
	}
	line, err := readParsed(cmd, f.planFrom, parsePlan)
	if err != nil {
		return badUsage("--plan %w; penstock plan --model --out writes plans", err)
	}
	return f.setFromPlan(cmd.Flags(), line)
}

// setFromPlan sets flags from a plan. A flag that is given must have the plan's value, except flags of data.
// With --plan auto the plan was made for the given flags, and may only reorder --devices.
func (f *trainFlags) setFromPlan(s *pflag.FlagSet, line planJSON) error {
	for _, name := range slices.Sorted(maps.Keys(line.Train)) {
		flag, has := s.Lookup(name), line.Train[name]
		if flag == nil {
			return badUsage("--plan %s: %s is %s: there is no such flag", f.planFrom, name, has)
		}
		given, automatic := strings.Trim(flag.Value.String(), "[]"), f.planFrom == auto
		switch {
		case !flag.Changed && has == "", flag.Changed && (given == has || name == "data" ||
			slices.Contains(dataOnly, name) || automatic && name != "devices"): // a plan may reorder devices
			continue
		case flag.Changed && !automatic:
			return badUsage("--%s %s: the plan of --plan %s has %s; want --%[1]s left out, or another plan",
				name, given, f.planFrom, cmp.Or(has, "none"))
		}
		values := []string{has}
		if flag.Value.Type() == option.Repeated {
			values = arg.SplitSettings(has)
		}
		for _, v := range values {
			if err := s.Set(name, v); err != nil {
				return badUsage("--plan %s: %s is %s: %w", f.planFrom, name, v, errors.Unwrap(err))
			}
		}
	}
	f.deviceLimits = map[torch.Device]int64{}
	for i := range min(len(line.Bytes), len(f.config.Devices)) {
		f.deviceLimits[f.config.Devices[i]] = line.Bytes[i]
	}
	return nil
}

func parsePlan(text []byte) (line planJSON, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err = d.Decode(&line); err == nil && line.Train == nil {
		err = errors.New("it is of a chain, whose layers are not those of a model")
	}
	return line, err
}

// With --plan auto rank 0 measures the model, searches, and sends the plan to all. Checkpoints keep it. A run
// that is resumed under the same circumstances keeps its plan, for the results of an uninterrupted run.

// planWorld is the circumstances of a plan. Flags that were left out are zero.
type planWorld struct {
	Processes int    `json:"processes"`
	Cores     int    `json:"cores"` // of the process that has the fewest
	Limit     int64  `json:"memory_limit,omitempty"`
	Devices   string `json:"devices,omitempty"` // --devices with their models
	Stages    int    `json:"stages,omitempty"`
	Chunks    int    `json:"chunks,omitempty"`
	Threads   int    `json:"threads,omitempty"`
	Schedule  string `json:"schedule,omitempty"`
}

// devices returns the number of devices that the plan must have; 0 is any.
func (w planWorld) devices() int {
	if w.Stages == 0 && w.Processes > 1 {
		return w.Processes
	}
	return w.Stages
}

type madePlan struct {
	World planWorld `json:"world"`
	Plan  planJSON  `json:"plan"`
}

const auto = "auto" // value of --plan

func (o *runOptions) checkAuto(s *pflag.FlagSet) (err error) {
	if o.planFrom != auto {
		return nil
	}
	for _, name := range []string{"balance", "virtual", "checkpoint", "replicas", "threads"} {
		if s.Changed(name) && (name != "threads" || o.allThreads) {
			return badUsage("--%s %s: --plan auto decides it; leave it out", name, s.Lookup(name).Value)
		}
	}
	if o.config.Devices != nil && o.grouped {
		return badUsage("--devices %s: with --plan auto several processes have CPU devices; want it left out",
			option.Joined(o.config.Devices))
	}
	if _, err := schedule.Named(o.schedule); err != nil && o.schedule != "" {
		return badUsage("--schedule %s with --plan auto: %s", o.schedule, message(err))
	}
	o.world = planWorld{Processes: max(o.member.Size, 1), Limit: o.limit, Schedule: o.schedule}
	for name, n := range map[string][2]*int{"stages": {&o.world.Stages, &o.stages},
		"chunks": {&o.world.Chunks, &o.config.Chunks}, "threads": {&o.world.Threads, &o.config.Threads}} {
		if s.Changed(name) {
			*n[0] = *n[1]
		}
	}
	if o.autoDevices = o.config.Devices; o.autoDevices == nil {
		return nil
	}
	list, err := readHardware(o.autoDevices)
	for _, d := range list {
		o.world.Devices += strings.TrimSpace(d.String()+" "+d.Hardware.Model) + ","
	}
	o.world.Stages, o.config.Devices = len(o.autoDevices), nil // the plan gives them their stages
	return err
}

// applyAutoPlan applies the plan of the checkpoint, or a new one if the circumstances have changed.
func (j *job) applyAutoPlan(ctx context.Context, stderr io.Writer) (err error) {
	if j.planFrom != auto {
		return nil
	}
	if j.world.Cores, err = j.coresPerProcess(ctx); err != nil {
		return err
	}
	var saved madePlan
	if j.from == nil || json.Unmarshal([]byte(j.from.Recipe.Plan), &saved) != nil {
		saved = madePlan{}
	}
	line, note := saved.Plan, "as before, "
	if line.Train == nil || saved.World != j.world {
		if note = ""; line.Train != nil {
			note = "planned again, as processes, cores or flags are others: "
		}
		var link plan.Link
		if j.world.Processes > 1 {
			if link, err = train.MeasureLinks(ctx, j.group); err != nil {
				return err
			}
			fmt.Fprintf(stderr, "from process to process: %s and %s/s, as measured\n",
				micros(us(link.Latency)), formatBytes(int64(link.Bandwidth)))
		}
		line, err = group.FromFirst(ctx, j.group, "plan", func() (planJSON, error) {
			return j.findPlan(ctx, stderr, link)
		})
		if err != nil {
			return err
		}
	}
	fmt.Fprintf(stderr, "--plan auto: %s%s, %s a step\n", note, line.inFlags(), micros(line.Step))
	kept, err := json.Marshal(madePlan{j.world, line})
	planned, refused := j.decide(line)
	if err = cmp.Or(err, refused); err != nil {
		return err
	}
	planned.startup, planned.world = j.startup, j.world
	planned.config.Group, planned.config.Replicas = j.config.Group, j.config.Replicas
	j.runOptions = planned
	j.recipe.Chunks, j.recipe.Threads, j.recipe.Plan = j.config.Chunks, j.config.Threads, string(kept)
	return nil
}

func (l planJSON) inFlags() string {
	return fmt.Sprintf("%s with --balance %s --chunks %d --threads %d", l.Schedule, option.Joined(l.Balance),
		l.Chunks, l.Threads)
}

// coresPerProcess returns the smallest number of cores of a process. Processes of a machine share its cores.
func (j *job) coresPerProcess(ctx context.Context) (int, error) {
	type host struct {
		Name  string
		Cores int
	}
	name, _ := os.Hostname() // processes without one count as of one machine
	all, err := group.Meet(ctx, j.group, "cores", host{name, runtime.NumCPU()}, nil)
	processes, least := map[string]int{}, math.MaxInt
	for _, h := range all {
		processes[h.Name]++
	}
	for _, h := range all {
		least = min(least, max(h.Cores/processes[h.Name], 1))
	}
	return least, err
}

func linkedMachine(name string, devices, threads int, links ...plan.Link) plan.Machine {
	m := plan.Machine{Links: links}
	for i := range devices {
		m.Devices = append(m.Devices, plan.Device{Name: fmt.Sprint(name, i), Threads: threads})
	}
	return m
}

// devicesPerProcess returns the largest number of the plan's devices in a process.
func (w planWorld) devicesPerProcess() int { return (w.devices() + w.Processes - 1) / w.Processes }

// machine returns the machine of the plan: the cores of one process, or processes with links between them.
func (w planWorld) machine(threads []int, link plan.Link) plan.Machine {
	cores := max(w.Cores, w.devicesPerProcess()*slices.Max(threads))
	if w.Processes == 1 {
		return plan.Machine{Devices: []plan.Device{{Name: "cpu", Threads: cores}}}
	}
	return linkedMachine("process ", w.Processes, cores, link)
}

func (j *job) findPlan(ctx context.Context, stderr io.Writer, link plan.Link) (planJSON, error) {
	w, atWork := j.world, runtime.NumCPU()
	if w.devices() > 0 { // devices of all processes on this machine
		atWork = w.devicesPerProcess() * min(max(atWork/w.Cores, 1), w.Processes)
	}
	f := planFlags{batch: min(j.batch, j.training.Len()), limit: w.Limit, stages: w.devices(),
		devices: j.autoDevices, chunks: w.Chunks, trainOnly: j.weights.trainOnly, numerics: j.numerics,
		config: train.PlanConfig{Update: j.update, AtWork: atWork,
			Pipe: pipe.Config{DeferredBatchNorm: j.config.DeferredBatchNorm}},
		measureFlags: measureFlags{modelFlags: j.modelFlags, optimizer: j.optimizerName,
			autocast: j.config.Autocast, threads: w.Threads, seed: j.config.Seed}}
	f.config.Threads = f.threadsToTry(w.Cores * w.Processes)
	f.config.Machine = w.machine(f.config.Threads, link)
	if w.Schedule != "" {
		f.schedules = []string{w.Schedule}
	}
	info := j.training.Info()
	show := progress.New(stderr, "planning", "")
	defer show.End()
	m, err := j.fitModel(&info)
	if err != nil {
		return planJSON{}, err
	}
	found, err := f.planModel(ctx, show, m)
	if err != nil {
		return planJSON{}, refusedPlan(j.flags, err)
	}
	system.TrimProcess()
	return found.line(), nil
}
