package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"penstock.example/data"
	"penstock.example/group"
	"penstock.example/internal/disk"
	"penstock.example/models"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/pipe"
	"penstock.example/schedule"
	"penstock.example/torch"
	"penstock.example/train"
)

// runOptions is a checked command line of penstock train, as far as it can be checked without looking at
// the disk.
type runOptions struct {
	trainFlags
	startup
	program string            // that the file of --schedule holds
	policy  []pipe.Checkpoint // by stage
	// sideBySide is how many devices the schedule puts stages on; 0 where the command line does.
	sideBySide int
	// For --plan auto: the circumstances of the plan, and --devices.
	world planWorld
	named []torch.Device
}

// startup is how and where a run was started.
type startup struct {
	args        []string // the whole command line
	effective   []byte   // the flags as a file
	flags       *pflag.FlagSet
	getenv      func(string) string
	member      group.Config // the place of this process, or of a replica in it, in the group
	grouped     bool         // the group has several members
	membersHere int          // of them in this process
	localGroup  *group.Group // the group, if all of it is in this process
	read        func() (datasets, error)
	common      map[string]string                  // what its members must have in common
	decide      func(planJSON) (runOptions, error) // gives the options by the plan of --plan auto
}

// check checks flags against each other and against the environment. Its errors are usage errors of one
// line with the flag, its value and a remedy.
func (f trainFlags) check(s *pflag.FlagSet, getenv func(string) string) (runOptions, error) {
	o := runOptions{trainFlags: f, startup: startup{getenv: getenv, flags: s}}
	o.anyThreads = !s.Changed("threads")
	for _, check := range []func(*pflag.FlagSet) error{
		o.checkNames, o.checkGroup, o.checkAuto, o.checkCut, o.checkOptimizer, o.checkPairs,
	} {
		if err := check(s); err != nil {
			return runOptions{}, err
		}
	}
	if o.epochs == 0 && o.steps == 0 {
		o.epochs = 1
	}
	if o.grouped {
		o.common = o.facts(s)
	}
	return o, nil
}

func (o *runOptions) checkNames(s *pflag.FlagSet) (err error) {
	switch {
	case o.modelName == "":
		return badUsage("--model is needed: one of %s", strings.Join(models.Names(), ", "))
	case o.dataName == "":
		return badUsage("--data is needed: one of %s", strings.Join(data.Names(), ", "))
	}
	return o.modelFlags.check(s)
}

// checkPairs refuses a flag if another flag that it needs is missing.
func (o *runOptions) checkPairs(s *pflag.FlagSet) error {
	const dir, file = "--out DIR, the directory of the run", "--init FILE"
	for _, pair := range []struct {
		flag, needs string
		there       bool
	}{
		{"resume", dir, o.out != ""}, {"autoresume", dir, o.out != ""}, {"save-every", dir, o.out != ""},
		{"keep", dir, o.out != ""}, {"patience", "--validate", o.validate != ""},
		{"schedule-steps", "--lr-schedule cosine or step", o.lrSchedule != "constant"},
		{"init-rename", file, o.weights.init != ""}, {"init-skip", file, o.weights.init != ""},
		{"init-partial", file, o.weights.init != ""},
	} {
		if s.Changed(pair.flag) && !pair.there {
			value := strings.Trim(s.Lookup(pair.flag).Value.String(), "[]")
			return badUsage("--%s %s: it needs %s", pair.flag, value, pair.needs)
		}
	}
	o.weights.rules.Rename = nil
	for _, text := range o.weights.rename {
		r, err := nn.ParseRename(text)
		if err != nil {
			return badUsage("--init-rename %s", message(err))
		}
		o.weights.rules.Rename = append(o.weights.rules.Rename, r)
	}
	return nil
}

// checkCut checks stages, balance, devices and policies against each other and against the model.
func (o *runOptions) checkCut(s *pflag.FlagSet) error {
	model, err := models.New(o.modelName, o.options)
	if err != nil {
		return badUsage("--set %s: %s", strings.Join(o.settings, ","), message(err))
	}
	if err := o.checkSchedule(s); err != nil {
		return err
	}
	all, cut := len(model.Layers()), o.config
	switch {
	case s.Changed("balance"):
	case o.stages > all:
		return badUsage("--stages: %d are more than the %d layers of %s; want fewer stages, processes, or "+
			"stages on each device", o.stages, all, o.modelName)
	default: // any cut: that by time is still to be found
		cut.Balance = append(slices.Repeat([]int{1}, o.stages-1), all-o.stages+1)
		if o.stages == 1 {
			o.config.Balance = cut.Balance
		}
	}
	if err := o.checkProcesses(); err != nil {
		return err
	}
	if o.grouped { // processes have not met yet
		cut.Group = group.Local(o.member.Size)[o.member.Rank]
	}
	if err := cut.Check(model); err != nil {
		return inFlags(s, err)
	}
	if o.config.Devices == nil {
		for i := range o.stages {
			o.config.Devices = append(o.config.Devices, torch.CPU(i))
		}
	}
	o.config.Devices = o.config.Devices[:o.stages]
	if each := o.pipelineProcesses(); o.config.Ranks == nil && distinct(o.config.Devices) < each {
		o.config.Ranks = pipe.DefaultRanks(o.config.Devices, each)
	}
	o.policy, err = cut.Checkpoint.Stages(o.stages)
	return err
}

func (o *runOptions) checkOptimizer(s *pflag.FlagSet) error {
	if !s.Changed("lr") {
		o.update.LR = 0.001
		if usual, ok := map[string]float64{"sgd": 0.1, "rmsprop": 0.01}[o.optimizerName]; ok {
			o.update.LR = usual
		}
	}
	o.update.Momentum = momentumOf(s, o.optimizerName, o.update.Momentum)
	o.update.Groups = nil
	for _, text := range o.groups {
		g, err := readGroup(text)
		if err != nil {
			return err
		}
		o.update.Groups = append(o.update.Groups, g)
	}
	made, err := optim.New(o.optimizerName, o.update)
	if err != nil {
		return inFlags(s, err)
	}
	made.Close()
	return nil
}

// readGroup reads a group of parameters. A scale of 0 is refused: --train-only freezes parameters.
func readGroup(text string) (g optim.Group, err error) {
	i := strings.LastIndexByte(text, ':')
	for setting := range strings.SplitSeq(text[i+1:], ",") {
		name, number, _ := strings.Cut(setting, "=")
		x, err := strconv.ParseFloat(number, 64)
		switch {
		case err == nil && name == "scale" && x != 0:
			g.Scale = x
		case err == nil && name == "weight-decay":
			g.WeightDecay = &x
		default:
			return g, badUsage("--group %q: want PATTERN:scale=X,weight-decay=W with one of the two or "+
				"both, such as '*.bias:weight-decay=0'", text)
		}
	}
	g.Params = text[:max(i, 0)]
	return g, nil
}

// momentumOf is --momentum, or the usual one where it is left out.
func momentumOf(s *pflag.FlagSet, optimizer string, momentum float64) float64 {
	if optimizer == "sgd" && !s.Changed("momentum") {
		return 0.9
	}
	return momentum
}

// scheduled makes the learning rate's schedule for a run of total steps, and its entry in the recipe.
func (o *runOptions) scheduled(total int64) (optim.Schedule, train.Choice, error) {
	config := optim.ScheduleConfig{LR: o.update.LR, WarmupSteps: o.warmup}
	settings := map[string]any{"warmup": o.warmup}
	if o.lrSchedule != "constant" { // a constant schedule has no length
		config.TotalSteps = int(total)
		if o.scheduleSteps > 0 {
			config.TotalSteps = o.scheduleSteps
		}
		settings["schedule-steps"] = config.TotalSteps
	}
	s, err := optim.NewSchedule(o.lrSchedule, config)
	return s, train.Choice{Name: o.lrSchedule, Settings: settings}, err
}

// checkSchedule finds the schedule of the pipeline and places the stages on devices. Afterwards o.stages
// counts the stages of all devices, and o.virtual the stages of one device.
func (o *runOptions) checkSchedule(s *pflag.FlagSet) error {
	named, err := schedule.Named(cmp.Or(o.schedule, "gpipe"))
	if err != nil {
		return o.readProgram(s, err)
	}
	o.virtual = cmp.Or(o.virtual, named.Usual())
	switch n := len(o.config.Balance); {
	case n == 0:
		o.stages *= o.virtual
	case n%o.virtual != 0 || s.Changed("stages") && n != o.stages*o.virtual:
		return badUsage("--balance %s: it has %d stages; want %d on each device, and --stages left out or for "+
			"these", joined(o.config.Balance), n, o.virtual)
	default:
		o.stages = n
	}
	if o.schedule == "" && o.virtual == 1 {
		return nil
	}
	devices := o.stages / o.virtual
	workers, err := named.Workers(devices, o.virtual)
	if err != nil {
		return badUsage("--virtual %d: %s", o.virtual, message(err))
	}
	o.config.Schedule = named.Generate
	o.placeStages(workers, devices)
	return nil
}

// readProgram reads the program in the file that --schedule names. unknown says that no schedule has
// this name.
func (o *runOptions) readProgram(s *pflag.FlagSet, unknown error) error {
	text, err := disk.Read(o.schedule, disk.MaxJSON)
	if errors.Is(err, fs.ErrNotExist) {
		return badUsage("--schedule %q: %s, or a file with a program (the learning rate's schedule is "+
			"--lr-schedule)", o.schedule, message(unknown))
	}
	var program *schedule.Program
	if err == nil {
		program, err = schedule.Parse(string(text))
	}
	if err == nil {
		err = schedule.Check(program)
	}
	var found schedule.Violations
	if errors.As(err, &found) {
		err = fmt.Errorf("%w; penstock schedule check lists all that is wrong", found[0])
	}
	if err != nil {
		return badUsage("--schedule %s: %s", o.schedule, message(err))
	}
	devices := len(program.Workers)
	if n := len(o.config.Balance); o.virtual > 0 || s.Changed("stages") && o.stages != devices ||
		n > 0 && n != program.Stages {
		return badUsage("--schedule %s: the program is for %d stages on %d devices; want --virtual left out, "+
			"and --stages and --balance left out or for these", o.schedule, program.Stages, devices)
	}
	o.program, o.stages, o.virtual = program.String(), program.Stages, max(program.Stages/devices, 1)
	if !s.Changed("chunks") {
		o.config.Chunks = program.MicroBatches
	}
	o.config.Schedule = schedule.Fixed(program.WithoutReduce()) // reductions are for replicas
	o.placeStages(program.Placement(), devices)
	return nil
}

// placeStages gives each stage the device of its worker, unless --devices names one for each stage. Of a
// device that several processes name alike each has its own: workers are then shared out over them.
func (o *runOptions) placeStages(workers []int, count int) {
	given := o.config.Devices
	if len(given) != 0 && (len(given) != count || count == o.stages) {
		return
	}
	o.sideBySide, o.config.Devices, o.config.Ranks = count, nil, nil
	each := o.pipelineProcesses()
	for _, w := range workers {
		d := torch.CPU(w)
		if given != nil {
			d = given[w]
		}
		o.config.Devices = append(o.config.Devices, d)
		if given != nil && distinct(given) < each {
			o.config.Ranks = append(o.config.Ranks, w*each/count)
		}
	}
}

// distinct counts different devices.
func distinct(devices []torch.Device) int {
	seen := map[torch.Device]bool{}
	for _, d := range devices {
		seen[d] = true
	}
	return len(seen)
}
