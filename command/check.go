package command

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"penstock.example/group"
	"penstock.example/internal/arg"
	"penstock.example/internal/disk"
	"penstock.example/internal/option"
	"penstock.example/models"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/pipe"
	"penstock.example/schedule"
	"penstock.example/torch"
)

// runOptions is a checked command line of penstock train. Data and --out have not been opened.
type runOptions struct {
	trainFlags
	startup
	program       string            // in the file of --schedule
	policy        []pipe.Checkpoint // by stage
	placedDevices int               // devices on which the schedule places the stages; 0: --devices does
	world         planWorld         // for --plan auto
	autoDevices   []torch.Device    // --devices with --plan auto
}

// startup is how and where a run was started.
type startup struct {
	args        []string // the whole command line
	effective   []byte   // flags as a file for --config
	flags       *pflag.FlagSet
	getenv      func(string) string
	member      group.Config // the group, and the rank in it of this process or replica
	grouped     bool         // the group has several members
	membersHere int          // members in this process
	localGroup  *group.Group // the group, if this process has all members; else nil
	read        func() (datasets, error)
	decide      func(planJSON) (runOptions, error) // applies the plan of --plan auto to the flags
}

// check checks flags against each other and against the environment. Its errors are usage errors.
func (f trainFlags) check(s *pflag.FlagSet, getenv func(string) string) (runOptions, error) {
	o := runOptions{trainFlags: f, startup: startup{getenv: getenv, flags: s}}
	o.defaultThreads = !s.Changed("threads")
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
	return o, nil
}

func (o *runOptions) checkNames(s *pflag.FlagSet) error {
	if o.modelName == "" && o.resume {
		return badUsage("--resume: --out %q has no %s of a run to go on from", o.out, flagsFile)
	}
	return cmp.Or(need(s, "model", "data"), o.modelFlags.check(s))
}

func (o *runOptions) checkPairs(s *pflag.FlagSet) error {
	several, rate := o.processCount() > 1, o.lrSchedule.name
	err := cmp.Or(refuseWithout(s, o.out != "", "--out DIR", "resume", "autoresume", "save-every", "keep"),
		refuseWithout(s, o.resume || o.autoresume, "--resume", "changed-data"),
		refuseWithout(s, o.out+o.tensorboard+o.dashboardAt != "", "--out, --tensorboard or --dashboard",
			"test-every"),
		refuseWithout(s, o.validate != "", "--validate", "patience"),
		refuseWithout(s, rate != plateau || o.validate != "", "--validate", "lr-schedule"),
		refuseWithout(s, rate != plateau && rate != "constant", "an --lr-schedule with an end",
			"schedule-steps"),
		refuseWithout(s, o.weights.init != "", "--init FILE", "init-rename", "init-skip", "init-partial"),
		refuseWithout(s, s.Changed("processes"), "--processes", "rank"),
		refuseWithout(s, several, "several processes", "rendezvous", "join-timeout", "silence"),
		o.numerics.check(s, slices.Concat(o.autoDevices, o.config.Devices)))
	if err != nil {
		return err
	}
	for _, text := range o.weights.rename {
		r, err := nn.ParseRename(text)
		if err != nil {
			return badUsage("--init-rename %s", message(err))
		}
		o.weights.rules.Rename = append(o.weights.rules.Rename, r)
	}
	return nil
}

// refuseWithout refuses flags that have no effect without another one, unless that one is given.
func refuseWithout(s *pflag.FlagSet, given bool, needed string, flags ...string) error {
	for _, name := range flags {
		f := s.Lookup(name)
		if given || f == nil || !f.Changed {
			continue
		}
		value := strings.Trim(f.Value.String(), "[]")
		text := strings.TrimSpace(strings.TrimSuffix(name+" "+value, " true"))
		if f.Value.Type() != "bool" || value != f.DefValue {
			return badUsage("--%s has no effect without %s", text, needed)
		}
	}
	return nil
}

func (o *runOptions) checkCut(s *pflag.FlagSet) error {
	model, err := models.New(o.folder, o.options)
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
		return badUsage("--stages: %d are more than the %d layers of %s; want fewer stages or processes",
			o.stages, all, o.modelName)
	default: // any balance: the layers are timed later
		cut.Balance = append(slices.Repeat([]int{1}, o.stages-1), all-o.stages+1)
		if o.stages == 1 {
			o.config.Balance = cut.Balance
		}
	}
	devices, processes := cmp.Or(o.placedDevices, o.stages), o.pipelineProcesses()
	if o.grouped && devices < processes {
		return badUsage("%d processes share %s; each needs one: want --stages %[1]d, or fewer processes",
			processes, counted(devices, "device"))
	}
	if o.grouped { // processes have not met yet
		cut.Group = group.Local(o.member.Size)[o.member.Rank]
	}
	if err := cut.Check(model); err != nil {
		return inFlags(s, err)
	}
	for i := len(o.config.Devices); i < o.stages; i++ { // Check refuses too few
		o.config.Devices = append(o.config.Devices, torch.CPU(i))
	}
	o.config.Devices = o.config.Devices[:o.stages]
	if o.config.Ranks == nil && len(o.config.DeviceNames()) < processes {
		o.config.Ranks = pipe.DefaultRanks(o.config.Devices, processes)
	}
	o.policy, err = cut.Checkpoint.Stages(o.stages)
	return err
}

func (o *runOptions) checkOptimizer(s *pflag.FlagSet) error {
	if !s.Changed("lr") {
		o.update.LR = cmp.Or(map[string]float64{"sgd": 0.1, "rmsprop": 0.01}[o.optimizerName], 0.001)
	}
	o.update.Momentum = momentumOf(s, o.optimizerName, o.update.Momentum)
	if o.optimizerName == "adamw" && !s.Changed("weight-decay") {
		o.update.WeightDecay = 0.01
	}
	if n := copy(o.update.Betas[:], o.betas); o.betas != nil && (n != 2 || len(o.betas) != 2) {
		return badUsage("--betas %s: want two numbers, such as 0.9,0.999", option.Joined(o.betas))
	}
	for _, text := range o.groups {
		g, err := readGroup(text)
		if err != nil {
			return err
		}
		o.update.Groups = append(o.update.Groups, g)
	}
	_, err := optim.Slots(o.optimizerName, o.update)
	return inFlags(s, err)
}

// readGroup reads a group of parameters. A scale of 0 is refused: --train-only freezes parameters.
func readGroup(text string) (optim.Group, error) {
	i, decay := strings.LastIndexByte(text, ':'), -1.0
	g := optim.Group{Params: text[:max(i, 0)], Scale: 1}
	err := arg.Set("a group", []arg.Setting{
		{Name: "scale", Default: "1", Read: arg.Amount(&g.Scale, math.Inf(1))},
		{Name: "weight-decay", Default: "that of --weight-decay", Read: arg.Amount(&decay, math.Inf(1))},
	}, []string{text[i+1:]})
	if err != nil || g.Scale == 0 {
		return g, badUsage("--group %q: want PATTERN:scale=X,weight-decay=W, or one of the two", text)
	}
	if decay >= 0 {
		g.WeightDecay = &decay
	}
	return g, nil
}

func momentumOf(s *pflag.FlagSet, optimizer string, momentum float64) float64 {
	if optimizer == "sgd" && !s.Changed("momentum") {
		return 0.9
	}
	return momentum
}

// checkSchedule finds the schedule and places the stages on devices. Afterwards o.stages counts the
// stages of all devices.
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
		return badUsage("--balance %s: it has %d stages; want %d on each device, and --stages left out",
			option.Joined(o.config.Balance), n, o.virtual)
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

// readProgram reads the program in the file of --schedule. unknown is the error for an unknown name.
func (o *runOptions) readProgram(s *pflag.FlagSet, unknown error) error {
	text, err := disk.Read(o.schedule, disk.MaxJSON)
	if errors.Is(err, fs.ErrNotExist) {
		return badUsage("--schedule %q: %s, or a file with a program; the learning rate has --lr-schedule",
			o.schedule, message(unknown))
	}
	var program *schedule.Program
	if err == nil {
		program, err = schedule.Parse(string(text))
	}
	if err == nil {
		err = schedule.Check(program)
	}
	if found := (schedule.Violations)(nil); errors.As(err, &found) {
		err = fmt.Errorf("%w; penstock schedule check lists all that is wrong", found[0])
	}
	if err != nil {
		return badUsage("--schedule %s: %s", o.schedule, message(err))
	}
	devices, n := len(program.Workers), len(o.config.Balance)
	if o.virtual > 0 || s.Changed("stages") && o.stages != devices || n > 0 && n != program.Stages {
		return badUsage("--schedule %s: the program is for %d stages on %d devices; want --virtual, "+
			"--stages and --balance left out", o.schedule, program.Stages, devices)
	}
	o.program, o.stages, o.virtual = program.String(), program.Stages, max(program.Stages/devices, 1)
	if !s.Changed("chunks") {
		o.config.Chunks = program.MicroBatches
	}
	o.config.Schedule = schedule.Fixed(program.WithoutReduce()) // reductions are for replicas
	o.placeStages(program.Placement(), devices)
	return nil
}

// placeStages gives each stage the device of its worker, unless --devices has one for each stage.
func (o *runOptions) placeStages(workers []int, count int) {
	given, processes := o.config.Devices, o.pipelineProcesses()
	if given != nil && (len(given) != count || count == o.stages) {
		return
	}
	sharedNames := given != nil && len(o.config.DeviceNames()) < processes
	o.placedDevices, o.config.Devices, o.config.Ranks = count, nil, nil
	for _, w := range workers {
		d := torch.CPU(w)
		if given != nil {
			d = given[w]
		}
		o.config.Devices = append(o.config.Devices, d)
		if sharedNames {
			o.config.Ranks = append(o.config.Ranks, w*processes/count)
		}
	}
}
