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
	"penstock.example/planner/search"
	"penstock.example/schedule"
	"penstock.example/torch"
)

// With --plan auto a run plans itself when its processes have met and its checkpoint has been found: rank 0
// measures the model and searches, and all have its plan. The plan is kept in checkpoints with what it was
// made for. A run that is resumed for the same keeps it, so that its results are those of a run that was
// never interrupted; for anything else it is planned again.

// planWorld is what a plan is made for.
type planWorld struct {
	Processes int   `json:"processes"`
	Cores     int   `json:"cores"` // of each process, where one has fewest
	Limit     int64 `json:"memory_limit,omitempty"`
	// Devices are those of --devices, with their models; "" is any.
	Devices string `json:"devices,omitempty"`
	// What flags ask for; zero is any.
	Stages   int    `json:"stages,omitempty"`
	Chunks   int    `json:"chunks,omitempty"`
	Threads  int    `json:"threads,omitempty"`
	Schedule string `json:"schedule,omitempty"`
}

// devices is how many devices the plan is to have; 0 is any number.
func (w planWorld) devices() int {
	if w.Stages == 0 && w.Processes > 1 {
		return w.Processes
	}
	return w.Stages
}

// instead says in what the world differs from another.
func (w planWorld) instead(of planWorld) string {
	var list []string
	number := func(flag string, now, was int) {
		if now != was {
			list = append(list, fmt.Sprintf("%s %s instead of %s", flag, anyOr(now), anyOr(was)))
		}
	}
	if w.Processes != of.Processes {
		list = append(list, fmt.Sprintf("%s instead of %d", processes(w.Processes), of.Processes))
	}
	if w.Cores != of.Cores {
		list = append(list, fmt.Sprintf("%s for each process instead of %d", counted(w.Cores, "core"), of.Cores))
	}
	number("--memory-limit", int(w.Limit), int(of.Limit))
	if w.Devices != of.Devices {
		list = append(list, fmt.Sprintf("--devices %s instead of %s", orAny(w.Devices), orAny(of.Devices)))
	} else {
		number("--stages", w.Stages, of.Stages)
	}
	number("--chunks", w.Chunks, of.Chunks)
	number("--threads", w.Threads, of.Threads)
	if w.Schedule != of.Schedule {
		list = append(list, fmt.Sprintf("--schedule %s instead of %s", orAny(w.Schedule), orAny(of.Schedule)))
	}
	return strings.Join(list, ", ")
}

func anyOr(n int) string {
	if n == 0 {
		return "any"
	}
	return fmt.Sprint(n)
}

func orAny(name string) string {
	if name == "" {
		return "any"
	}
	return name
}

// madePlan is a plan as checkpoints keep it.
type madePlan struct {
	World planWorld       `json:"world"`
	Plan  json.RawMessage `json:"plan"` // a searchLine
}

// auto as the value of --plan has the run make its plan.
const auto = "auto"

// decidedByAuto are the flags that --plan auto decides, keptByAuto those that it goes by where they are given.
var (
	decidedByAuto = []string{"balance", "virtual", "checkpoint"}
	keptByAuto    = []string{"model", "set", "batch", "optimizer", "momentum", "train-only", "autocast", "memory-limit", "chunks", "threads", "schedule"}
)

// checkAuto checks what stands beside --plan auto, and notes what the plan is for.
func (p *plan) checkAuto(s *pflag.FlagSet) error {
	if p.planned != auto || p.decided {
		return nil
	}
	if s.Changed("replicas") {
		return badUsage("--replicas %d: --plan auto plans one pipeline; want one of the two left out", p.replicas)
	}
	if p.allThreads {
		return badUsage("--threads all: --plan auto chooses the number by measuring; want one of the two left out")
	}
	for _, name := range decidedByAuto {
		if s.Changed(name) {
			return badUsage("--%s %s: --plan auto decides it; want it left out, or --plan left out", name, strings.Trim(s.Lookup(name).Value.String(), "[]"))
		}
	}
	if p.schedule != "" {
		if _, err := schedule.Named(p.schedule); err != nil {
			return badUsage("--schedule %s with --plan auto: %s", p.schedule, message(err))
		}
	}
	p.world = planWorld{Processes: max(p.member.Size, 1), Limit: p.limit, Schedule: p.schedule}
	for name, to := range map[string]*int{"stages": &p.world.Stages, "chunks": &p.world.Chunks, "threads": &p.world.Threads} {
		if s.Changed(name) {
			*to = map[string]int{"stages": p.stages, "chunks": p.config.Chunks, "threads": p.config.Threads}[name]
		}
	}
	return p.nameDevices(s)
}

// nameDevices takes the devices that --plan auto plans for, if --devices names them. Which stages they get is
// known when the plan is made.
func (p *plan) nameDevices(s *pflag.FlagSet) error {
	given := p.config.Devices
	switch {
	case given == nil:
		return nil
	case p.grouped:
		return badUsage("--devices %s: with --plan auto several processes have CPU devices; want it left out, or one process, or a plan of penstock plan", deviceNames(given))
	case s.Changed("stages") && p.stages != len(given):
		return badUsage("--stages %d and --devices %s: --plan auto has each device once; want --stages left out, or %d", p.stages, deviceNames(given), len(given))
	}
	if err := checkNamed(given); err != nil {
		return err
	}
	list, err := readDevices(given)
	p.named, p.config.Devices = given, nil
	p.world.Devices, p.world.Stages = describeDevices(list), len(given)
	return err
}

// choosePlan takes the plan of the checkpoint, if it was made for the same, or has one made. All processes
// get the same.
func (j *job) choosePlan(ctx context.Context, stderr io.Writer) error {
	if j.planned != auto {
		return nil
	}
	var err error
	if j.world.Cores, err = j.coresOfEach(ctx); err != nil {
		return err
	}
	was, old := j.lastPlan()
	line := old
	if was.World != j.world {
		var between search.Link
		if j.world.Processes > 1 {
			if between, err = measureLinks(ctx, j.group); err != nil {
				return err
			}
			fmt.Fprintf(stderr, "from process to process: %s and %s/s, as measured\n", micros(us(between.Latency)), formatBytes(int64(between.Bandwidth)))
		}
		made, err := group.FromFirst(ctx, j.group, "plan", func() (searchLine, error) { return j.planNow(ctx, stderr, between) })
		if err != nil {
			return err
		}
		line = made
	}
	again := ""
	switch {
	case was.World == j.world:
		again = "as before, "
	case old.Model != "":
		again = fmt.Sprintf("planned again for %s: ", j.world.instead(was.World))
	}
	fmt.Fprintf(stderr, "--plan auto: %s%s, %s a step", again, line.inFlags(), micros(line.Step))
	if again != "" && line.inFlags() != old.inFlags() {
		fmt.Fprintf(stderr, "; it was %s", old.inFlags())
	}
	fmt.Fprintln(stderr)
	text, err := json.Marshal(line)
	if err != nil {
		return err
	}
	kept, err := json.Marshal(madePlan{j.world, text})
	if err != nil {
		return err
	}
	next, err := j.decide(line)
	if err != nil {
		return err
	}
	j.become(next)
	j.recipe.Chunks, j.recipe.Threads, j.recipe.Plan = j.config.Chunks, j.config.Threads, string(kept)
	return nil
}

// inFlags is a plan in the words of flags.
func (l searchLine) inFlags() string {
	return fmt.Sprintf("%s with --balance %s --chunks %d --threads %d", l.Schedule, numbers(l.Balance), l.Chunks, max(l.Threads, 1))
}

// become takes the flags of another plan of the same place in the group.
func (p *plan) become(next plan) {
	next.args, next.listener, next.member, next.within, next.read = p.args, p.listener, p.member, p.within, p.read
	next.common, next.decide, next.world, next.effective = p.common, p.decide, p.world, p.effective
	next.config.Group, next.config.Replicas = p.config.Group, p.config.Replicas
	*p = next
}

// lastPlan is what the checkpoint keeps of its plan; the zero value if that is nothing, or not of this version.
func (j *job) lastPlan() (was madePlan, line searchLine) {
	if j.from == nil || json.Unmarshal([]byte(j.from.Recipe.Plan), &was) != nil {
		return madePlan{}, searchLine{}
	}
	line, _, err := parsePlan(was.Plan)
	if err != nil {
		return madePlan{}, searchLine{}
	}
	return was, line
}

// coresOfEach is how many cores each process has, where one has fewest: those of a machine are shared
// by its processes.
func (j *job) coresOfEach(ctx context.Context) (int, error) {
	type host struct {
		Name  string
		Cores int
	}
	name, err := os.Hostname()
	if err != nil {
		name = fmt.Sprint("rank ", j.member.Rank)
	}
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

// atWork is how many devices work at once on a machine of so many cores, which its processes share.
func (w planWorld) atWork(cores int) int {
	if w.devices() == 0 {
		return cores
	}
	return (w.devices() + w.Processes - 1) / w.Processes * min(max(cores/w.Cores, 1), w.Processes)
}

// machine is what a plan is for, whose devices may have so many threads: the cores of one process, or processes with
// links between them. Stages in one process share nothing else.
func (w planWorld) machine(threads []int, between search.Link) search.Machine {
	most := slices.Max(threads)
	if w.Processes == 1 {
		return thisMachine(max(w.Cores, w.Stages*most))
	}
	each := (w.devices() + w.Processes - 1) / w.Processes
	return linkedMachine("process ", w.Processes, max(w.Cores, each*most), between)
}

// planNow plans the model as it is to be trained, by processes that are joined by such links.
func (j *job) planNow(ctx context.Context, stderr io.Writer, between search.Link) (line searchLine, err error) {
	w := j.world
	f := searchFlags{batch: min(j.batch, j.training.Len()), limit: w.Limit, stages: w.devices(), devices: j.named, chunks: w.Chunks,
		of: measureFlags{modelFlags: j.modelFlags, optimizer: j.optimizerName, trainOnly: j.weights.trainOnly, autocast: j.config.Autocast, threads: w.Threads, seed: j.config.Seed}}
	if w.Schedule != "" {
		f.schedules = []string{w.Schedule}
	}
	m, err := measuredOn(&j.modelFlags, j.training.Info())
	if err != nil {
		return line, err
	}
	show := newPlanProgress(stderr, "planning")
	defer show.end()
	threads := f.modelThreads(w.Cores * w.Processes)
	found, err := f.planModel(ctx, show, m, planRequest{update: j.update, deferredBatchNorm: j.config.DeferredBatchNorm,
		machine: w.machine(threads, between), threads: threads, atWork: w.atWork(runtime.NumCPU())})
	if err != nil {
		return line, err
	}
	torch.TrimProcess()
	return found.line(), nil
}
