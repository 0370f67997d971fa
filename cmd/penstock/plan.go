package main

import (
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"penstock.example/data"
	"penstock.example/group"
	"penstock.example/models"
	"penstock.example/optim"
	"penstock.example/pipe"
	"penstock.example/torch"
	"penstock.example/train"
)

// plan is a checked command line, as far as it can be checked without looking at the disk.
type plan struct {
	trainFlags
	args      []string // the whole command line
	effective []byte   // the flags as a file
	// listener is that of --dashboard, nil without it, and in other processes than the first.
	listener net.Listener
	getenv   func(string) string
	member   group.Config // the place of this process, or of a replica in it, in the group
	grouped  bool         // the group has several members
	here     int          // of them in this process
	within   *group.Group // the group, where all of it is in this process
	read     func() (datasets, error)
	common   []train.Fact      // what its members must have in common
	program  string            // that the file of --schedule holds
	policy   []pipe.Checkpoint // by stage
	// sideBySide is how many devices the schedule puts stages on; 0 where the command line does.
	sideBySide int
	// Of --plan auto: what the plan is for, and the command line with what a plan says.
	world  planWorld
	named  []torch.Device // of --devices
	decide func(searchLine) (plan, error)
}

// plan checks flags that were read against each other, and against the environment. Its errors are
// usage errors of one line that name the flag, the value and what to give instead.
func (f trainFlags) plan(s *pflag.FlagSet, getenv func(string) string) (plan, error) {
	p := plan{trainFlags: f, getenv: getenv}
	p.anyThreads = !s.Changed("threads")
	for _, check := range []func(*pflag.FlagSet) error{p.checkNames, p.checkGroup, p.checkAuto, p.checkCut, p.checkDevices, p.checkMemory, p.checkOptimizer, p.checkFiles, p.checkInit, p.checkValidate} {
		if err := check(s); err != nil {
			return plan{}, err
		}
	}
	if p.epochs == 0 && p.steps == 0 {
		p.epochs = 1
	}
	if p.grouped {
		p.common = p.facts(s)
	}
	return p, nil
}

func (p *plan) checkNames(s *pflag.FlagSet) (err error) {
	switch {
	case p.modelName == "":
		return badUsage("--model is needed: one of %s", strings.Join(models.Names(), ", "))
	case p.dataName == "":
		return badUsage("--data is needed: one of %s", strings.Join(data.Names(), ", "))
	}
	if err := p.modelFlags.check(s); err != nil {
		return err
	}
	if p.lrSchedule == "constant" && p.scheduleSteps > 0 {
		return badUsage("--schedule-steps %d: a constant schedule has no end; want --lr-schedule cosine or step with it",
			p.scheduleSteps)
	}
	return nil
}

// checkCut checks stages, balance, devices and policies against each other and against the model.
func (p *plan) checkCut(s *pflag.FlagSet) error {
	model, err := models.New(p.modelName, p.options)
	if err != nil {
		return badUsage("--set %s: %s", strings.Join(p.settings, ","), ofModel(p.modelName, err))
	}
	if err := p.checkSchedule(s); err != nil {
		return err
	}
	all, cut, asked := len(model.Layers()), p.config, fmt.Sprintf("--stages %d", p.stages/p.virtual)
	if p.grouped && !s.Changed("stages") {
		asked += fmt.Sprintf(", one for each of %d processes", p.member.Size)
	}
	if p.virtual > 1 {
		asked += fmt.Sprintf(" with %d on each device", p.virtual)
	}
	switch {
	case s.Changed("balance"):
	case p.stages > all:
		return badUsage("%s: %s has %d layers; want at most as many stages", asked, p.modelName, all)
	case !s.Changed("devices") && p.stages/p.virtual > torch.MaxCPU:
		return badUsage("%s: there are %d CPU devices; want fewer stages, or --devices that name one more than once",
			asked, torch.MaxCPU)
	default: // any cut: that by time is still to be found
		cut.Balance = append(slices.Repeat([]int{1}, p.stages-1), all-p.stages+1)
		if p.stages == 1 {
			p.config.Balance = cut.Balance
		}
	}
	if err := p.checkProcesses(); err != nil {
		return err
	}
	if err := p.asMember(cut).Check(model); err != nil {
		return inFlags(s, err)
	}
	if p.config.Devices == nil {
		for i := range p.stages {
			p.config.Devices = append(p.config.Devices, torch.CPU(i))
		}
	}
	p.config.Devices = p.config.Devices[:p.stages]
	if each := p.pipelineProcesses(); p.config.Ranks == nil && distinct(p.config.Devices) < each {
		p.config.Ranks = pipe.DefaultRanks(p.config.Devices, each)
	}
	p.policy, err = cut.Checkpoint.Stages(p.stages)
	return err
}

func (p *plan) checkMemory(*pflag.FlagSet) error {
	for _, d := range p.config.Devices {
		if p.config.Autocast == torch.AutocastFloat16 && d.Kind == torch.KindCPU && strings.HasPrefix(torch.Version(), "1.") {
			return badUsage("--autocast=%v: libtorch %s has no products in float16 on a CPU, and %v is one; want bfloat16, or CUDA devices", p.config.Autocast, torch.Version(), d)
		}
	}
	if p.planned != "" && (p.limit > 0 || p.bytes != nil) && p.accumulate > 1 {
		return badUsage("--accumulate %d: --plan %s with a limit does not count the gradients that are there between batches; want --checkpoint optimal instead of --plan",
			p.accumulate, p.planned)
	}
	return nil
}

func (p *plan) checkOptimizer(s *pflag.FlagSet) error {
	if s.Changed("lr") && p.update.LR == 0 {
		return badUsage("--lr 0: want a number above 0")
	}
	if !s.Changed("lr") {
		switch p.optimizerName {
		case "sgd":
			p.update.LR = 0.1
		case "rmsprop":
			p.update.LR = 0.01
		default:
			p.update.LR = 0.001
		}
	}
	p.update.Momentum = momentumOf(s, p.optimizerName, p.update.Momentum)
	if p.update.Nesterov && p.optimizerName == "sgd" && p.update.Momentum == 0 {
		return badUsage("--nesterov with --momentum 0: want a momentum above 0 with it")
	}
	if err := p.readGroups(); err != nil {
		return err
	}
	o, err := optim.New(p.optimizerName, p.update)
	if err != nil {
		return inFlags(s, err)
	}
	o.Close()
	return nil
}

// momentumOf is --momentum, or the usual one where it is left out.
func momentumOf(s *pflag.FlagSet, optimizer string, momentum float64) float64 {
	if s.Changed("momentum") {
		return momentum
	}
	return usualMomentum(optimizer)
}

// usualMomentum is the momentum of an optimizer unless --momentum says another.
func usualMomentum(optimizer string) float64 {
	if optimizer == "sgd" {
		return 0.9
	}
	return 0
}

func (p *plan) checkFiles(*pflag.FlagSet) error {
	switch {
	case p.resume && p.out == "":
		return badUsage("--resume needs --out DIR, the directory to go on from")
	case p.autoresume && p.out == "":
		return badUsage("--autoresume needs --out DIR, the directory to go on from")
	case p.saveEvery > 0 && p.out == "":
		return badUsage("--save-every needs --out DIR, the directory to save in")
	}
	return nil
}

// scheduled makes the learning rate's schedule for a run of total steps, and its entry in the
// recipe.
func (p *plan) scheduled(total int64) (optim.Schedule, train.Choice, error) {
	config := optim.ScheduleConfig{LR: p.update.LR, WarmupSteps: p.warmup}
	settings := map[string]any{"warmup": p.warmup}
	if p.lrSchedule != "constant" { // which is the same however long it lasts
		config.TotalSteps = int(total)
		if p.scheduleSteps > 0 {
			config.TotalSteps = p.scheduleSteps
		}
		if config.TotalSteps <= p.warmup {
			return nil, train.Choice{}, badUsage("--warmup %d: the %s schedule has only %d steps; want a shorter warm-up, or more --steps, --epochs or --schedule-steps",
				p.warmup, p.lrSchedule, config.TotalSteps)
		}
		settings["schedule-steps"] = config.TotalSteps
	}
	s, err := optim.NewSchedule(p.lrSchedule, config)
	return s, train.Choice{Name: p.lrSchedule, Settings: settings}, err
}
