package schedule_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"penstock.example/schedule"
)

// scheduled makes the program of a schedule on devices with so many stages each.
func scheduled(t rapid.TB, name string, devices, virtual int, config schedule.Config) *schedule.Program {
	t.Helper()
	s, err := schedule.Named(name)
	if err != nil {
		t.Fatal(err)
	}
	config.Stages = devices * virtual
	if config.Worker, err = s.Workers(devices, virtual); err != nil {
		t.Fatal(err)
	}
	p, err := s.Generate(config)
	if err != nil {
		t.Fatal(err)
	}
	return p
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
	config := schedule.Config{Stages: n, MicroBatches: m, Skips: drawSkips(t, n), Capacity: rapid.IntRange(schedule.Meet, 3).Draw(t, "capacity")}
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
			for _, limits := range []schedule.Limits{{}, {Meet: true}, {InOrder: true}} {
				if err := schedule.Check(p.Part(phase), limits); err != nil {
					t.Fatalf("%s, %v, %+v: %v\n%v", s.Name, phase, limits, err, p)
				}
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
				if want := config.Recompute != nil && config.Recompute(stage, i); recomputed[[2]int{stage, i}] != want {
					t.Fatalf("%s: %dR%d is there: %v, want %v", s.Name, stage, i, !want, want)
				}
			}
		}
	})
}

// Policies, skips and capacities change nothing of the order of forwards and backwards.
func TestSchedulesKeepTheirOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, config, p := drawScheduled(t)
		plain := scheduled(t, s.Name, len(p.Workers), config.Stages/len(p.Workers), schedule.Config{MicroBatches: config.MicroBatches})
		if diff := cmp.Diff(computations(plain), computations(p)); diff != "" {
			t.Fatalf("-plain +with policies, skips and capacities:\n%s", diff)
		}
	})
}

// computations lists the forwards and backwards of each worker.
func computations(p *schedule.Program) (list [][]string) {
	for _, actions := range p.Workers {
		var words []string
		for _, a := range actions {
			if !a.Kind.Transfer() && a.Kind != schedule.Recompute {
				words = append(words, a.String())
			}
		}
		list = append(list, words)
	}
	return list
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
			{s.Name + "_always_skip_1.txt", schedule.Config{MicroBatches: 1, Recompute: always, Skips: []schedule.Edge{{From: 0, To: 3*virtual - 1}}}},
		} {
			p := scheduled(t, s.Name, 3, virtual, tt.config)
			grid := simulate(t, p, equal).Grid()
			golden(t, tt.file, p.String()+"\n# "+strings.ReplaceAll(strings.TrimSpace(grid), "\n", "\n# ")+"\n")
		}
	}
}

func TestNamed(t *testing.T) {
	if _, err := schedule.Named("zb-v"); err != nil {
		t.Error(err)
	}
	_, err := schedule.Named("zbv")
	if want := `schedule: no schedule "zbv"; did you mean zb-v? want one of gpipe, 1f1b,`; err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
}

func TestPlacement(t *testing.T) {
	for _, tt := range []struct {
		name             string
		place            func(stages, devices int) ([]int, error)
		stages, devices  int
		want, wantsError string
	}{
		{"loop", schedule.Loop, 5, 2, "[0 1 0 1 0]", ""},
		{"loop of one", schedule.Loop, 2, 1, "[0 0]", ""},
		{"V", schedule.V, 6, 3, "[0 1 2 2 1 0]", ""},
		{"W", schedule.V, 8, 2, "[0 1 1 0 0 1 1 0]", ""},
		{"an empty device", schedule.Loop, 2, 3, "", "2 stages on 3 devices, want at least one device and a stage for each"},
		{"an empty device of a V", schedule.V, 2, 3, "", "2 stages on 3 devices"},
		{"no device", schedule.Loop, 2, 0, "", "2 stages on 0 devices"},
		{"no stage", schedule.V, 0, 0, "", "0 stages on 0 devices"},
		{"absurd", schedule.V, 1 << 40, 2, "", "1099511627776 stages"},
	} {
		got, err := tt.place(tt.stages, tt.devices)
		switch {
		case tt.wantsError == "" && (err != nil || fmt.Sprint(got) != tt.want):
			t.Errorf("%s: %v, %v, want %s", tt.name, got, err, tt.want)
		case tt.wantsError != "" && (err == nil || !strings.Contains(err.Error(), tt.wantsError)):
			t.Errorf("%s: %v, %v, want %s", tt.name, got, err, tt.wantsError)
		}
	}
}

func TestWorkersErrors(t *testing.T) {
	for _, tt := range []struct {
		name             string
		devices, virtual int
		want             string
	}{
		{"zb-v", 2, 3, "schedule: zb-v: 3 stages on each device, want 2"},
		{"dualpipe-v", 2, 1, "schedule: dualpipe-v: 1 stages on each device, want 2"},
		{"1f1b", 2, 2, "schedule: 1f1b: 2 stages on each device, want 1"},
		{"interleaved", 0, 2, "schedule: interleaved: 0 devices, want at least 1"},
		{"interleaved", 2, 0, "schedule: interleaved: 0 stages on each device, want at least 1"},
		{"interleaved", 1 << 40, 1 << 40, "are more than"},
	} {
		s, err := schedule.Named(tt.name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Workers(tt.devices, tt.virtual); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %s", tt.name, err, tt.want)
		}
	}
}

// What a schedule cannot do is refused by its name.
func TestGenerateErrors(t *testing.T) {
	for _, tt := range []struct {
		name   string
		config schedule.Config
		want   string
	}{
		{"1f1b", schedule.Config{Stages: 3, MicroBatches: 2, Worker: []int{0, 1, 0}}, "workers [0 1 0], want consecutive stages on a worker"},
		{"zb-h2", schedule.Config{Stages: 4, MicroBatches: 2, Worker: []int{0, 1, 1, 0}}, "workers [0 1 1 0]"},
		{"interleaved", schedule.Config{Stages: 4, MicroBatches: 2, Worker: []int{0, 1, 1, 0}}, "want as many blocks on each, that go round (schedule.Loop)"},
		{"interleaved", schedule.Config{Stages: 6, MicroBatches: 2, Worker: []int{0, 1, 2, 1, 0, 2}}, "workers [0 1 2 1 0 2], want as many blocks on each, that go round (schedule.Loop)"},
		{"bfs", schedule.Config{Stages: 3, MicroBatches: 2, Worker: []int{0, 1, 0}}, "want as many blocks on each, that go round (schedule.Loop)"},
		{"zb-v", schedule.Config{Stages: 4, MicroBatches: 2, Worker: []int{0, 1, 0, 1}}, "workers [0 1 0 1], want two on each, that go to and fro (schedule.V)"},
		{"zb-v", schedule.Config{Stages: 4, MicroBatches: 2}, "want two on each"},
		{"dualpipe-v", schedule.Config{Stages: 2, MicroBatches: 0, Worker: []int{0, 0}}, "0 micro-batches, want at least 1"},
		{"interleaved-zb", schedule.Config{Stages: 0, MicroBatches: 1}, "0 stages, want at least 1"},
		{"zb-h1", schedule.Config{Stages: 1, MicroBatches: 1, Capacity: -2}, "a capacity of -2 values on a link"},
	} {
		s, err := schedule.Named(tt.name)
		if err != nil {
			t.Fatal(err)
		}
		_, err = s.Generate(tt.config)
		if want := "schedule: " + tt.name + ": "; err == nil || !strings.HasPrefix(err.Error(), want) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v, want %s%s", err, want, tt.want)
		}
	}
}
