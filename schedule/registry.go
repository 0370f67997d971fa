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
}

// Schedules returns all schedules that have a name, the simplest first.
func Schedules() []Schedule {
	return []Schedule{
		{"gpipe", GPipe, Loop, 1, false},
		{"1f1b", OneFOneB, Loop, 1, false},
		{"1f1b-2x", oneFOneBEager, Loop, 1, false},
		{"zb-h1", ZeroBubbleH1, Loop, 1, true},
		{"zb-h2", ZeroBubbleH2, Loop, 1, true},
		{"bfs", BreadthFirst, Loop, 0, false},
		{"interleaved", interleaved, Loop, 0, false},
		{"interleaved-zb", interleavedZeroBubble, Loop, 0, true},
		{"zb-v", zeroBubbleV, V, 2, true},
		{"dualpipe-v", dualPipeV, V, 2, true},
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
		return nil, fmt.Errorf("schedule: %s: %d devices with %d stages each, want at least 1 of both "+
			"and at most "+
			"%d stages", s.Name, devices, virtual, maxForwards)
	case s.Virtual > 0 && virtual != s.Virtual:
		return nil, fmt.Errorf("schedule: %s: %d stages on each device, want %d", s.Name, virtual, s.Virtual)
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

// Loop returns the worker of each stage where stages go round: stage s is on worker s mod devices.
// It fails if a device would have no stage.
func Loop(stages, devices int) ([]int, error) {
	return place(stages, devices, func(s int) int { return s % devices })
}

// V returns the worker of each stage where stages go to and fro: with two stages for each device,
// the first device has the first and the last stage, and the last device the two in the middle. It
// fails if a device would have no stage.
func V(stages, devices int) ([]int, error) {
	return place(stages, devices, func(s int) int {
		at := s % (2 * devices)
		return min(at, 2*devices-1-at)
	})
}

func place(stages, devices int, worker func(stage int) int) ([]int, error) {
	if devices < 1 || stages < devices || stages > maxForwards {
		return nil, fmt.Errorf("schedule: %d stages on %d devices, want at least one device and a stage "+
			"for each, "+
			"and at most %d", stages, devices, maxForwards)
	}
	out := make([]int, stages)
	for s := range out {
		out[s] = worker(s)
	}
	return out, nil
}
