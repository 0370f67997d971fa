package command

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"penstock.example/group"
	"penstock.example/internal/option"
	"penstock.example/internal/progress"
	"penstock.example/internal/system"
	"penstock.example/plan"
	"penstock.example/schedule"
	"penstock.example/train"
)

// With --plan auto a run plans itself after its processes have met and its checkpoint has been found. Rank 0
// measures the model, searches, and sends the plan to all. Checkpoints keep the plan with its circumstances.
// A run that is resumed under the same circumstances keeps its plan, so that its results equal an
// uninterrupted run's.

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

// madePlan is a plan as checkpoints keep it.
type madePlan struct {
	World planWorld `json:"world"`
	Plan  planJSON  `json:"plan"`
}

const auto = "auto" // value of --plan

// keptByAuto are flags that --plan auto takes as they are given.
var keptByAuto = []string{"model", "set", "lora", "batch", "optimizer", "momentum", "train-only", "autocast",
	"memory-limit", "chunks", "threads", "schedule"}

// checkAuto checks the flags that are given with --plan auto and records the circumstances of the plan.
func (o *runOptions) checkAuto(s *pflag.FlagSet) (err error) {
	if o.planned != auto || o.decided {
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
	ifGiven := func(name string, n int) int {
		if s.Changed(name) {
			return n
		}
		return 0
	}
	o.world = planWorld{Processes: max(o.member.Size, 1), Limit: o.limit, Schedule: o.schedule,
		Stages: ifGiven("stages", o.stages), Chunks: ifGiven("chunks", o.config.Chunks),
		Threads: ifGiven("threads", o.config.Threads)}
	if o.named = o.config.Devices; o.named == nil {
		return nil
	}
	list, err := readDevices(o.named)
	for _, d := range list {
		o.world.Devices += strings.TrimSpace(d.String()+" "+d.Hardware.Model) + ","
	}
	o.world.Stages, o.config.Devices = len(o.named), nil // the plan gives them their stages
	return err
}

// applyAutoPlan applies the plan of the checkpoint, or a new one if the circumstances have changed.
func (j *job) applyAutoPlan(ctx context.Context, stderr io.Writer) (err error) {
	if j.planned != auto {
		return nil
	}
	if j.world.Cores, err = j.coresOfEach(ctx); err != nil {
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
		var between plan.Link
		if j.world.Processes > 1 {
			if between, err = train.MeasureLinks(ctx, j.group); err != nil {
				return err
			}
			fmt.Fprintf(stderr, "from process to process: %s and %s/s, as measured\n",
				micros(us(between.Latency)), formatBytes(int64(between.Bandwidth)))
		}
		line, err = group.FromFirst(ctx, j.group, "plan", func() (planJSON, error) {
			return j.findPlan(ctx, stderr, between)
		})
		if err != nil {
			return err
		}
	}
	fmt.Fprintf(stderr, "--plan auto: %s%s, %s a step\n", note, line.inFlags(), micros(line.Step))
	kept, err := json.Marshal(madePlan{j.world, line})
	if err != nil {
		return err
	}
	planned, err := j.decide(line)
	if err != nil {
		return err
	}
	planned.startup, planned.world = j.startup, j.world
	planned.config.Group, planned.config.Replicas = j.config.Group, j.config.Replicas
	j.runOptions = planned
	j.recipe.Chunks, j.recipe.Threads, j.recipe.Plan = j.config.Chunks, j.config.Threads, string(kept)
	return nil
}

// inFlags is the plan as flags of penstock train.
func (l planJSON) inFlags() string {
	return fmt.Sprintf("%s with --balance %s --chunks %d --threads %d", l.Schedule, option.Joined(l.Balance),
		l.Chunks, l.Threads)
}

// coresOfEach returns the smallest number of cores of a process. Processes of a machine share its cores.
func (j *job) coresOfEach(ctx context.Context) (int, error) {
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

// devicesOfEach returns how many devices of the plan a process has, where one has most.
func (w planWorld) devicesOfEach() int { return (w.devices() + w.Processes - 1) / w.Processes }

// machine returns the machine of the plan: the cores of one process, or processes with links between them.
func (w planWorld) machine(threads []int, between plan.Link) plan.Machine {
	cores := max(w.Cores, w.devicesOfEach()*slices.Max(threads))
	if w.Processes == 1 {
		return thisMachine(cores)
	}
	return linkedMachine("process ", w.Processes, cores, between)
}

// findPlan plans the model for processes with these links between them.
func (j *job) findPlan(ctx context.Context, stderr io.Writer, between plan.Link) (planJSON, error) {
	w, busy := j.world, runtime.NumCPU()
	if w.devices() > 0 { // of the processes on this machine
		busy = w.devicesOfEach() * min(max(busy/w.Cores, 1), w.Processes)
	}
	f := planFlags{batch: min(j.batch, j.training.Len()), limit: w.Limit, stages: w.devices(),
		devices: j.named, chunks: w.Chunks, trainOnly: j.weights.trainOnly, update: j.update,
		deferredBatchNorm: j.config.DeferredBatchNorm, busyDevices: busy, numerics: j.numerics,
		measureFlags: measureFlags{modelFlags: j.modelFlags, optimizer: j.optimizerName,
			autocast: j.config.Autocast, threads: w.Threads, seed: j.config.Seed}}
	f.threadCounts = f.threadsToTry(w.Cores * w.Processes)
	f.target = w.machine(f.threadCounts, between)
	if w.Schedule != "" {
		f.schedules = []string{w.Schedule}
	}
	info := j.training.Info()
	m, err := j.measured(&info)
	if err != nil {
		return planJSON{}, err
	}
	show := progress.New(stderr, "planning", "")
	defer show.End()
	found, err := f.planModel(ctx, show, m)
	if err != nil {
		return planJSON{}, err
	}
	system.TrimProcess()
	return found.line(), nil
}
