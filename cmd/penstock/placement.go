package main

import (
	"errors"
	"io/fs"

	"github.com/spf13/pflag"

	"penstock/internal/disk"
	"penstock/schedule"
	"penstock/torch"
)

// pipelineSchedules are the names that --schedule takes.
func pipelineSchedules() (names []string) {
	for _, s := range schedule.Schedules() {
		names = append(names, s.Name)
	}
	return names
}

// checkSchedule finds the schedule of the pipeline, and puts the stages on devices as it needs them.
func (p *plan) checkSchedule(s *pflag.FlagSet) error {
	name := p.schedule
	if name == "" {
		if p.virtual == 0 {
			return nil
		}
		name = "gpipe"
	}
	named, err := schedule.Named(name)
	if err != nil {
		return p.readProgram(s, err)
	}
	virtual := p.virtual
	if virtual == 0 {
		virtual = max(named.Virtual, 1)
	}
	if p.stages%virtual != 0 {
		return badUsage("--stages %d: they are not %d on each device, as --schedule %s with --virtual %[2]d has them; want a multiple of %[2]d",
			p.stages, virtual, name)
	}
	workers, err := named.Workers(p.stages/virtual, virtual)
	if err != nil {
		return badUsage("--virtual %d: %s", virtual, message(err))
	}
	p.config.Schedule = named.Generate
	p.placeStages(workers, p.stages/virtual)
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
	if !s.Changed("stages") && !s.Changed("balance") {
		p.stages = program.Stages
	}
	if !s.Changed("chunks") {
		p.config.Chunks = program.MicroBatches
	}
	p.config.Schedule = schedule.Fixed(program)
	workers := make([]int, program.Stages)
	for w, actions := range program.Workers {
		for _, a := range actions {
			workers[a.Stage] = w
		}
	}
	if p.stages == program.Stages {
		p.placeStages(workers, len(program.Workers))
	}
	return nil
}

// placeStages gives each stage the device of its worker, unless --devices names one for each stage.
func (p *plan) placeStages(workers []int, count int) {
	given := p.config.Devices
	if len(given) != 0 && (len(given) != count || count == p.stages) {
		return
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
