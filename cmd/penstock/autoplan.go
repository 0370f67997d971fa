package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"penstock.example/group"
	"penstock.example/internal/system"
	"penstock.example/plan"
	"penstock.example/schedule"
)

// With --plan auto a run plans itself when its processes have met and its checkpoint has been found: rank 0
// measures the model, searches, and sends the plan to all. Checkpoints keep the plan and its circumstances.
// Resumed under the same circumstances the run keeps its plan, so that its results are those of an
// uninterrupted run. Otherwise it plans again.

// planWorld is the circumstances of a plan.
type planWorld struct {
	Processes int   `json:"processes"`
	Cores     int   `json:"cores"` // of each process, where one has fewest
	Limit     int64 `json:"memory_limit,omitempty"`
	// Devices is --devices with their models; "" is any.
	Devices string `json:"devices,omitempty"`
	// From the flags; zero is any.
	Stages   int    `json:"stages,omitempty"`
	Chunks   int    `json:"chunks,omitempty"`
	Threads  int    `json:"threads,omitempty"`
	Schedule string `json:"schedule,omitempty"`
}

// devices returns how many devices the plan is to have; 0 is any number.
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

// auto as the value of --plan has the run make its plan.
const auto = "auto"

// decidedByAuto are the flags that --plan auto decides. keptByAuto are flags that it plans by if they
// are given.
var (
	decidedByAuto = []string{"balance", "virtual", "checkpoint", "replicas"}
	keptByAuto    = []string{"model", "set", "batch", "optimizer", "momentum", "train-only", "autocast",
		"memory-limit", "chunks", "threads", "schedule"}
)

// checkAuto checks the flags beside --plan auto and notes the circumstances of the plan. The plan decides
// which stages the devices get.
func (o *runOptions) checkAuto(s *pflag.FlagSet) error {
	if o.planned != auto || o.decided {
		return nil
	}
	given := o.config.Devices
	for _, name := range decidedByAuto {
		if s.Changed(name) {
			return badUsage("--%s %s: --plan auto decides it; want it left out, or --plan left out", name,
				s.Lookup(name).Value)
		}
	}
	if given != nil && o.grouped {
		return badUsage("--devices %s: with --plan auto several processes have CPU devices; want it left "+
			"out, or one process, or a plan of penstock plan", joined(given))
	}
	if _, err := schedule.Named(o.schedule); err != nil && o.schedule != "" {
		return badUsage("--schedule %s with --plan auto: %s", o.schedule, message(err))
	}
	o.world = planWorld{Processes: max(o.member.Size, 1), Limit: o.limit, Schedule: o.schedule}
	if s.Changed("stages") {
		o.world.Stages = o.stages
	}
	if s.Changed("chunks") {
		o.world.Chunks = o.config.Chunks
	}
	if s.Changed("threads") {
		o.world.Threads = o.config.Threads
	}
	if given == nil {
		return nil
	}
	list, err := readDevices(given)
	o.named, o.config.Devices = given, nil
	for _, d := range list {
		o.world.Devices += strings.TrimSpace(d.String()+" "+d.Hardware.Model) + ","
	}
	o.world.Stages = len(given)
	return err
}

// applyAutoPlan takes the plan of the checkpoint, if it was made for the same, or has one made. All processes
// get the same.
func (j *job) applyAutoPlan(ctx context.Context, stderr io.Writer) error {
	if j.planned != auto {
		return nil
	}
	var err error
	if j.world.Cores, err = j.coresOfEach(ctx); err != nil {
		return err
	}
	was := j.savedPlan()
	line, again := was.Plan, "as before, "
	if was.World != j.world {
		if again = ""; line.Train != nil {
			again = "planned again, as processes, cores or flags are others: "
		}
		var between plan.Link
		if j.world.Processes > 1 {
			if between, err = measureLinks(ctx, j.group); err != nil {
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
	fmt.Fprintf(stderr, "--plan auto: %s%s, %s a step\n", again, line.inFlags(), micros(line.Step))
	kept, err := json.Marshal(madePlan{j.world, line})
	if err != nil {
		return err
	}
	next, err := j.decide(line)
	if err != nil {
		return err
	}
	next.startup, next.world = j.startup, j.world
	next.config.Group, next.config.Replicas = j.config.Group, j.config.Replicas
	j.runOptions = next
	j.recipe.Chunks, j.recipe.Threads, j.recipe.Plan = j.config.Chunks, j.config.Threads, string(kept)
	return nil
}

// inFlags is a plan in the words of flags.
func (l planJSON) inFlags() string {
	return fmt.Sprintf("%s with --balance %s --chunks %d --threads %d", l.Schedule, joined(l.Balance),
		l.Chunks, l.Threads)
}

// savedPlan returns the plan in the checkpoint, or a zero value without one of this version.
func (j *job) savedPlan() (was madePlan) {
	if j.from == nil || json.Unmarshal([]byte(j.from.Recipe.Plan), &was) != nil || was.Plan.Train == nil {
		return madePlan{}
	}
	return was
}

// coresOfEach returns the smallest number of cores of a process. Processes of a machine share its cores.
func (j *job) coresOfEach(ctx context.Context) (int, error) {
	type host struct {
		Name  string
		Cores int
	}
	name, _ := os.Hostname() // processes without one count as of one machine
	own := host{name, runtime.NumCPU()}
	if j.group == nil {
		return own.Cores, nil
	}
	all, err := group.Meet(ctx, j.group, "cores", own, nil)
	if err != nil {
		return 0, err
	}
	on := map[string]int{}
	for _, h := range all {
		on[h.Name]++
	}
	least := own.Cores
	for _, h := range all {
		least = min(least, max(h.Cores/on[h.Name], 1))
	}
	return least, nil
}

// busyDevices returns how many devices work at once on a machine with that number of cores.
func (w planWorld) busyDevices(cores int) int {
	if w.devices() == 0 {
		return cores
	}
	return (w.devices() + w.Processes - 1) / w.Processes * min(max(cores/w.Cores, 1), w.Processes)
}

// linkedMachine returns a machine of equal devices with links between them.
func linkedMachine(name string, devices, threads int, links ...plan.Link) plan.Machine {
	m := plan.Machine{Links: links}
	for i := range devices {
		m.Devices = append(m.Devices, plan.Device{Name: fmt.Sprint(name, i), Threads: threads})
	}
	return m
}

// machine returns the machine of the plan: the cores of one process, or processes with links between them.
func (w planWorld) machine(threads []int, between plan.Link) plan.Machine {
	most := slices.Max(threads)
	if w.Processes == 1 {
		return thisMachine(max(w.Cores, w.Stages*most))
	}
	each := (w.devices() + w.Processes - 1) / w.Processes
	return linkedMachine("process ", w.Processes, max(w.Cores, each*most), between)
}

// findPlan plans the model for training by processes with these links.
func (j *job) findPlan(ctx context.Context, stderr io.Writer, between plan.Link) (line planJSON,
	err error) {
	w := j.world
	f := planFlags{batch: min(j.batch, j.training.Len()), limit: w.Limit, stages: w.devices(),
		devices: j.named, chunks: w.Chunks, trainOnly: j.weights.trainOnly, update: j.update,
		deferredBatchNorm: j.config.DeferredBatchNorm, busyDevices: w.busyDevices(runtime.NumCPU()),
		measureFlags: measureFlags{modelFlags: j.modelFlags, optimizer: j.optimizerName, autocast: j.config.Autocast,
			threads: w.Threads, seed: j.config.Seed}}
	f.threadCounts = f.threadsToTry(w.Cores * w.Processes)
	f.target = w.machine(f.threadCounts, between)
	if w.Schedule != "" {
		f.schedules = []string{w.Schedule}
	}
	info := j.training.Info()
	m, err := j.measured(&info)
	if err != nil {
		return line, err
	}
	show := newProgress(stderr, "planning", "")
	defer show.end()
	found, err := f.planModel(ctx, show, m)
	if err != nil {
		return line, err
	}
	system.TrimProcess()
	return found.line(), nil
}
