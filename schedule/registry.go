package schedule

import (
	"cmp"
	"fmt"

	"penstock.example/internal/arg"
)

// Schedule is a [Generator] with a name, and the placement of stages that it needs.
type Schedule struct {
	Name     string
	Generate Generator
	place    func(stage, devices int) (worker int)
	// Virtual is how many stages each device must have; zero is any number.
	Virtual int
	// Split reports whether backwards are in two parts.
	Split bool
}

// Schedules returns all schedules, the simplest first.
func Schedules() []Schedule {
	return []Schedule{
		{"gpipe", GPipe, loop, 1, false},
		{"1f1b", OneFOneB, loop, 1, false},
		{"1f1b-2x", oneFOneBEager, loop, 1, false},
		{"zb-h1", zeroBubbleH1, loop, 1, true},
		{"zb-h2", zeroBubbleH2, loop, 1, true},
		{"bfs", breadthFirst, loop, 0, false},
		{"interleaved", interleaved, loop, 0, false},
		{"interleaved-zb", interleavedZeroBubble, loop, 0, true},
		{"zb-v", zeroBubbleV, vee, 2, true},
		{"dualpipe-v", dualPipeV, vee, 2, true},
	}
}

// Named returns the schedule of that name.
func Named(name string) (Schedule, error) {
	var names []string
	for _, s := range Schedules() {
		if s.Name == name {
			return s, nil
		}
		names = append(names, s.Name)
	}
	return Schedule{}, fmt.Errorf("schedule: no schedule %q; %s", name, arg.OneOf(name, names))
}

// Workers returns the worker of each stage, for a number of devices with virtual stages each. It
// fails if the schedule does not allow them.
func (s Schedule) Workers(devices, virtual int) ([]int, error) {
	switch {
	case devices < 1 || virtual < 1 || devices > maxForwards/virtual:
		return nil, fmt.Errorf("schedule: %s: %d devices with %d stages each, want at least 1 of both and "+
			"at most %d stages", s.Name, devices, virtual, maxForwards)
	case s.Virtual > 0 && virtual != s.Virtual:
		return nil, fmt.Errorf("schedule: %s: %d stages on each device, want %d", s.Name, virtual, s.Virtual)
	}
	workers := make([]int, devices*virtual)
	for stage := range workers {
		workers[stage] = s.place(stage, devices)
	}
	return workers, nil
}

// Usual is the usual number of stages of each device: Virtual, or 2 if any number may be.
func (s Schedule) Usual() int { return cmp.Or(s.Virtual, 2) }

// Program makes the program of a schedule for a number of devices with virtual stages each; 0 is
// [Schedule.Usual]. It sets the config's Stages and Worker.
func (s Schedule) Program(devices, virtual int, config Config) (*Program, error) {
	workers, err := s.Workers(devices, cmp.Or(virtual, s.Usual()))
	if err != nil {
		return nil, err
	}
	config.Stages, config.Worker = len(workers), workers
	return s.Generate(config)
}

// loop has stages go round.
func loop(stage, devices int) int { return stage % devices }

// vee has stages go to and fro, two for each device: device 0 has the first and the last stage.
func vee(stage, devices int) int { return min(stage, 2*devices-1-stage) }
