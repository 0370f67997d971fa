package main

import (
	"errors"
	"io/fs"

	"github.com/spf13/pflag"

	"penstock.example/internal/disk"
	"penstock.example/schedule"
	"penstock.example/torch"
)

// pipelineSchedules are the names that --schedule takes.
func pipelineSchedules() (names []string) {
	for _, s := range schedule.Schedules() {
		names = append(names, s.Name)
	}
	return names
}

// checkSchedule finds the schedule of the pipeline, and puts the stages on devices as it needs them. From
// then on p.stages counts those of all devices, and p.virtual those of each.
func (p *plan) checkSchedule(s *pflag.FlagSet) error {
	name := p.schedule
	if name == "" {
		name = "gpipe"
	}
	named, err := schedule.Named(name)
	if err != nil {
		return p.readProgram(s, err)
	}
	if p.virtual == 0 {
		p.virtual = named.Usual()
	}
	if err := p.countStages(s); err != nil {
		return err
	}
	if p.schedule == "" && p.virtual == 1 {
		return nil
	}
	devices := p.stages / p.virtual
	workers, err := named.Workers(devices, p.virtual)
	if err != nil {
		return badUsage("--virtual %d: %s", p.virtual, message(err))
	}
	p.config.Schedule = named.Generate
	p.placeStages(workers, devices)
	return nil
}

// countStages finds the number of all stages by --stages or --balance.
func (p *plan) countStages(s *pflag.FlagSet) error {
	n := len(p.config.Balance)
	switch {
	case !s.Changed("balance"):
		p.stages *= p.virtual
		return nil
	case n%p.virtual != 0:
		return badUsage("--balance %s: %d stages are not %d on each device; want a multiple of %[3]d", numbers(p.config.Balance), n, p.virtual)
	case s.Changed("stages") && n != p.stages*p.virtual:
		return badUsage("--stages %d and --balance %s, which has %d: want %d, or one of the two left out",
			p.stages, numbers(p.config.Balance), n, p.stages*p.virtual)
	}
	p.stages = n
	return nil
}

// readProgram reads the program in the file that --schedule names. unknown says that no schedule has
// this name.
func (p *plan) readProgram(s *pflag.FlagSet, unknown error) error {
	text, err := disk.Read(p.schedule, disk.MaxJSON)
	if errors.Is(err, fs.ErrNotExist) {
		return badUsage("--schedule %q: %s, or a file with a program; there is no such file (the learning rate's schedule is --lr-schedule)",
			p.schedule, message(unknown))
	}
	if at := (*fs.PathError)(nil); errors.Is(err, disk.ErrNotRegular) && errors.As(err, &at) {
		return badUsage("--schedule %s: %v; want a schedule's name, such as 1f1b, or a file with a program", p.schedule, at.Err)
	}
	if err != nil {
		return err
	}
	program, err := schedule.Load(string(text))
	if err == nil {
		err = schedule.Check(program, schedule.Limits{})
	}
	var found schedule.Violations
	switch {
	case errors.As(err, &found):
		return badUsage("--schedule %s: the program cannot run: %v; penstock schedule check lists all that is wrong", p.schedule, found[0])
	case err != nil:
		return badUsage("--schedule %s: %s", p.schedule, message(err))
	case p.virtual > 0:
		return badUsage("--virtual %d: the program in --schedule %s says where stages are; leave one of the two out", p.virtual, p.schedule)
	}
	p.program = program.String()
	devices := len(program.Workers)
	if p.virtual = max(program.Stages/devices, 1); s.Changed("stages") && p.stages != devices {
		return badUsage("--stages %d: the program in --schedule %s is for %d devices; want --stages %[3]d, or leave it out",
			p.stages, p.schedule, devices)
	}
	if n := len(p.config.Balance); s.Changed("balance") && n != program.Stages {
		return badUsage("--balance %s: it has %d stages, and the program in --schedule %s has %d",
			numbers(p.config.Balance), n, p.schedule, program.Stages)
	}
	p.stages = program.Stages
	if !s.Changed("chunks") {
		p.config.Chunks = program.MicroBatches
	}
	p.config.Schedule = schedule.Fixed(program.WithoutReduce()) // which is for replicas, and this is one
	p.placeStages(program.Placement(), devices)
	return nil
}

// placeStages gives each stage the device of its worker, unless --devices names one for each stage. Of a
// device that several processes name alike each has its own: workers are then shared out over them.
func (p *plan) placeStages(workers []int, count int) {
	given := p.config.Devices
	if len(given) != 0 && (len(given) != count || count == p.stages) {
		return
	}
	p.sideBySide = count
	if each := p.pipelineProcesses(); given != nil && distinct(given) < each {
		p.config.Ranks = nil
		for _, w := range workers {
			p.config.Ranks = append(p.config.Ranks, w*each/count)
		}
	}
	p.config.Devices = nil
	for _, w := range workers {
		d := torch.CPU(w)
		if given != nil {
			d = given[w]
		}
		p.config.Devices = append(p.config.Devices, d)
	}
}

// distinct is how many different devices there are.
func distinct(devices []torch.Device) int {
	seen := map[torch.Device]bool{}
	for _, d := range devices {
		seen[d] = true
	}
	return len(seen)
}

// pipelineProcesses is how many processes have the stages of one replica, at least 1.
func (p *plan) pipelineProcesses() int { return max(p.member.Size/p.replicas, 1) }
