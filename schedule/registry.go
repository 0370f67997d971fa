package schedule

import (
	"fmt"
	"penstock.example/internal/arg"
)

// Schedule is a [Generator] with a name, and the properties by which it is chosen.
type Schedule struct {
	Name     string
	Generate Generator
	// Place gives the worker of each stage; see [Loop] and [V].
	Place func(stages, devices int) ([]int, error)
	// Virtual is how many stages each device may have: any number if it is zero.
	Virtual int
	// Split reports whether backwards are in two parts.
	Split bool
	// Apart reports whether forwards may be run apart from backwards, with a loss of the caller's
	// own in between, as parts of the program ([Program.Part]). The others would lose their savings
	// of memory.
	Apart bool
}

// Schedules returns all schedules that have a name, the simplest first.
func Schedules() []Schedule {
	return []Schedule{
		{Name: "gpipe", Generate: GPipe, Place: Loop, Virtual: 1, Apart: true},
		{Name: "1f1b", Generate: OneFOneB, Place: Loop, Virtual: 1},
		{Name: "1f1b-2x", Generate: OneFOneBEager, Place: Loop, Virtual: 1},
		{Name: "zb-h1", Generate: ZeroBubbleH1, Place: Loop, Virtual: 1, Split: true},
		{Name: "zb-h2", Generate: ZeroBubbleH2, Place: Loop, Virtual: 1, Split: true},
		{Name: "bfs", Generate: BreadthFirst, Place: Loop, Apart: true},
		{Name: "interleaved", Generate: Interleaved, Place: Loop},
		{Name: "interleaved-zb", Generate: InterleavedZeroBubble, Place: Loop, Split: true},
		{Name: "zb-v", Generate: ZeroBubbleV, Place: V, Virtual: 2, Split: true},
		{Name: "dualpipe-v", Generate: DualPipeV, Place: V, Virtual: 2, Split: true},
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
	case devices < 1:
		return nil, fmt.Errorf("schedule: %s: %d devices, want at least 1", s.Name, devices)
	case virtual < 1:
		return nil, fmt.Errorf("schedule: %s: %d stages on each device, want at least 1", s.Name, virtual)
	case s.Virtual > 0 && virtual != s.Virtual:
		return nil, fmt.Errorf("schedule: %s: %d stages on each device, want %d", s.Name, virtual, s.Virtual)
	case devices > maxForwards/virtual:
		return nil, fmt.Errorf("schedule: %s: %d devices with %d stages each are more than %d stages", s.Name, devices, virtual, maxForwards)
	}
	return s.Place(devices*virtual, devices)
}

// Usual is the number of stages of each device that the schedule is for: 2 if it is for several, 1
// otherwise.
func (s Schedule) Usual() int {
	if s.Virtual == 0 {
		return 2
	}
	return s.Virtual
}

// Program makes the program of a schedule for a number of devices with virtual stages each, 0 for
// [Schedule.Usual]. It sets stages and workers of the config.
func (s Schedule) Program(devices, virtual int, config Config) (*Program, error) {
	if virtual == 0 {
		virtual = s.Usual()
	}
	workers, err := s.Workers(devices, virtual)
	if err != nil {
		return nil, err
	}
	config.Stages, config.Worker = len(workers), workers
	return s.Generate(config)
}
