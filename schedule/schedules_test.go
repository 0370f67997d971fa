package schedule_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"penstock.example/internal/must"
	"penstock.example/schedule"
)

// scheduled makes the program of a schedule on devices with so many stages each.
func scheduled(t rapid.TB, name string, devices, virtual int, config schedule.Config) *schedule.Program {
	t.Helper()
	s := must.Get(schedule.Named(name))(t)
	config.Stages = devices * virtual
	config.Worker = must.Get(s.Workers(devices, virtual))(t)
	return must.Get(s.Generate(config))(t)
}

// drawScheduled draws a program of any schedule that has a name: all policies, skips and
// capacities.
func drawScheduled(t *rapid.T) (schedule.Schedule, schedule.Config, *schedule.Program) {
	s := rapid.SampledFrom(schedule.Schedules()).Draw(t, "schedule")
	devices, virtual := rapid.IntRange(1, 5).Draw(t, "devices"), s.Virtual
	if virtual == 0 {
		virtual = rapid.IntRange(1, 3).Draw(t, "virtual")
	}
	n, m := devices*virtual, rapid.IntRange(1, 12).Draw(t, "micro-batches")
	config := schedule.Config{Stages: n, MicroBatches: m, Skips: drawSkips(t, n),
		Capacity: rapid.IntRange(schedule.Meet, 3).Draw(t, "capacity")}
	if rapid.Bool().Draw(t, "recompute") {
		recomputed := rapid.SliceOfN(rapid.Bool(), n*m, n*m).Draw(t, "recomputed")
		config.Recompute = func(stage, microBatch int) bool { return recomputed[stage*m+microBatch] }
	}
	return s, config, scheduled(t, s.Name, devices, virtual, config)
}

// Every schedule gets to its end on links that hold any number of values, on links that meet and on
// links in order, whole and in parts; it recomputes what is asked, and splits backwards or does
// not.
func TestSchedulesPassCheck(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, config, p := drawScheduled(t)
		for _, phase := range []schedule.Phase{schedule.Whole, schedule.ForwardOnly, schedule.BackwardOnly} {
			if err := runs(p.Part(phase)); err != nil {
				t.Fatalf("%s, %v: %v\n%v", s.Name, phase, err, p)
			}
		}
		split := false
		recomputed := map[[2]int]bool{}
		for _, actions := range p.Workers {
			for _, a := range actions {
				split = split || a.Kind == schedule.BackwardInput
				if a.Kind == schedule.Recompute {
					recomputed[[2]int{a.Stage, a.MicroBatch}] = true
				}
			}
		}
		if split && !s.Split {
			t.Fatalf("%s has backwards in two parts:\n%v", s.Name, p)
		}
		for stage := range config.Stages {
			for i := range config.MicroBatches {
				if want := config.Recompute != nil &&
					config.Recompute(stage, i); recomputed[[2]int{stage, i}] != want {
					t.Fatalf("%s: %dR%d is there: %v, want %v", s.Name, stage, i, !want, want)
				}
			}
		}
	})
}

// The golden files are programs with their grid as a comment, where a whole backward takes two
// units and all else one.
func TestSchedulesGolden(t *testing.T) {
	for _, s := range schedule.Schedules() {
		if s.Name == "gpipe" {
			continue // TestGPipeGolden
		}
		virtual := s.Virtual
		if virtual == 0 {
			virtual = 2
		}
		for _, tt := range []struct {
			file   string
			config schedule.Config
		}{
			{s.Name + ".txt", schedule.Config{MicroBatches: 5}},
			{s.Name + "_always_skip_1.txt",
				schedule.Config{MicroBatches: 1, Recompute: always,
					Skips: []schedule.Edge{{From: 0, To: 3*virtual - 1}}}},
		} {
			p := scheduled(t, s.Name, 3, virtual, tt.config)
			grid := simulate(t, p, equal).Grid()
			must.Match(t, tt.file, p.String()+"\n# "+strings.ReplaceAll(strings.TrimSpace(grid), "\n",
				"\n# ")+
				"\n")
		}
	}
}

// What a schedule cannot do is refused by its name.
func TestSchedulesRefuse(t *testing.T) {
	generate := func(name string, c schedule.Config) error {
		s, err := schedule.Named(name)
		if err == nil {
			_, err = s.Generate(c)
		}
		return err
	}
	workers := func(name string, devices, virtual int) error {
		s, err := schedule.Named(name)
		if err == nil {
			_, err = s.Workers(devices, virtual)
		}
		return err
	}
	for want, err := range map[string]error{
		`no schedule "zbv"; did you mean zb-v? want one of gpipe, 1f1b,`: generate("zbv", schedule.Config{}),
		"zb-v: 3 stages on each device, want 2":                          workers("zb-v", 2, 3),
		"1f1b: 2 stages on each device, want 1":                          workers("1f1b", 2, 2),
		"bfs: 0 devices with 2 stages each, want at least 1 of both":     workers("bfs", 0, 2),
		"and at most 16777216 stages": workers("interleaved", 1<<40,
			1<<40),
		"1f1b: stages are on the workers [0 1 0], want consecutive stages on a worker": generate("1f1b",
			schedule.Config{Stages: 3, MicroBatches: 2, Worker: []int{0, 1, 0}}),
		"interleaved: stages are on the workers [0 1 1 0], want as many blocks on each, that go round": generate(
			"interleaved", schedule.Config{Stages: 4, MicroBatches: 2, Worker: []int{0, 1, 1, 0}}),
		"zb-v: stages are on the workers [0 1 0 1], want two on each, that go to and fro": generate("zb-v",
			schedule.Config{Stages: 4, MicroBatches: 2, Worker: []int{0, 1, 0, 1}}),
		"dualpipe-v: 0 micro-batches, want at least 1": generate("dualpipe-v", schedule.Config{Stages: 2}),
		"gpipe: 0 stages, want at least 1":             generate("gpipe", schedule.Config{}),
		"stage 1 is on worker 2; want a worker from 0 to 1": generate("gpipe",
			schedule.Config{Stages: 2, MicroBatches: 2, Worker: []int{0, 2}}),
		"workers [0 2 2]; want workers without gaps": generate("gpipe",
			schedule.Config{Stages: 3, MicroBatches: 2, Worker: []int{0, 2, 2}}),
		"a capacity of -2 values on a link, want 0 for any number, -1 for none, or 1 and more": generate("gpipe",
			schedule.Config{Stages: 3, MicroBatches: 2, Capacity: -2}),
		"skip 0>3: stages go from 0 to 2": generate("gpipe",
			schedule.Config{Stages: 3, MicroBatches: 2, Skips: []schedule.Edge{{From: 0, To: 3}}}),
		"skip 2>0: want an earlier stage first, as in 0>2": generate("gpipe",
			schedule.Config{Stages: 3, MicroBatches: 2, Skips: []schedule.Edge{{From: 2, To: 0}}}),
	} {
		if err == nil || !strings.HasPrefix(err.Error(), "schedule: ") ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// GPipe of fewer micro-batches is a part of GPipe of more. Its forwards may run apart from its
// backwards; those of 1F1B only where there is nothing to alternate.
func TestParts(t *testing.T) {
	config := schedule.Config{Stages: 4, MicroBatches: 5, Recompute: exceptLast,
		Skips: []schedule.Edge{{From: 0, To: 3}}}
	whole := gpipe(t, config)
	config.MicroBatches = 2
	if diff := cmp.Diff(gpipe(t, config).String(), whole.Fewer(2).String()); diff != "" {
		t.Error(diff)
	}
	one := schedule.Config{MicroBatches: 1}
	four := schedule.Config{MicroBatches: 4}
	if !whole.Apart() || scheduled(t, "1f1b", 3, 1, four).Apart() ||
		!scheduled(t, "1f1b", 3, 1, one).Apart() {
		t.Error("forwards of GPipe run apart, and of 1F1B for one micro-batch")
	}
}
