package schedule_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"penstock.example/schedule"
)

// A phase of GPipe is a program, and GPipe of fewer micro-batches is a part of GPipe of more.
func TestPartsOfGPipe(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		stages := rapid.IntRange(1, 5).Draw(t, "stages")
		config := schedule.Config{Stages: stages, MicroBatches: rapid.IntRange(1, 6).Draw(t, "micro-batches")}
		if rapid.Bool().Draw(t, "shared") {
			workers := rapid.IntRange(1, stages).Draw(t, "workers")
			for s := range stages {
				config.Worker = append(config.Worker, s*workers/stages)
			}
		}
		again := rapid.SliceOfN(rapid.Bool(), stages*6, stages*6).Draw(t, "recompute")
		config.Recompute = func(stage, microBatch int) bool { return again[stage*6+microBatch] }
		if stages > 2 && rapid.Bool().Draw(t, "skip") {
			config.Skips = []schedule.Edge{{From: 0, To: stages - 1}}
		}
		whole, err := schedule.GPipe(config)
		if err != nil {
			t.Fatal(err)
		}
		for _, phase := range []schedule.Phase{schedule.Whole, schedule.ForwardOnly, schedule.BackwardOnly} {
			part := whole.Part(phase)
			if err := schedule.Check(part, schedule.Limits{Meet: true, InOrder: true}); err != nil {
				t.Errorf("%v: %v\n%v", phase, err, part)
			}
		}
		n := rapid.IntRange(1, config.MicroBatches).Draw(t, "fewer")
		config.MicroBatches = n
		want, err := schedule.GPipe(config)
		if err != nil {
			t.Fatal(err)
		}
		fewer := whole.Fewer(n)
		if err := schedule.Check(fewer, schedule.Limits{}); err != nil {
			t.Errorf("%d micro-batches: %v\n%v", n, err, fewer)
		}
		if diff := cmp.Diff(want.String(), fewer.String()); diff != "" && config.Worker == nil {
			t.Errorf("%d micro-batches:\n%s", n, diff)
		}
	})
}

// GPipe's forwards may run apart from its backwards, whatever the workers have; those of 1F1B only
// where there is nothing to alternate.
func TestApart(t *testing.T) {
	for _, tt := range []struct {
		generate schedule.Generator
		config   schedule.Config
		want     bool
	}{
		{schedule.GPipe, schedule.Config{Stages: 3, MicroBatches: 4}, true},
		{schedule.GPipe, schedule.Config{Stages: 4, MicroBatches: 3, Worker: []int{0, 1, 1, 0}, Recompute: func(s, i int) bool { return s != i }}, true},
		{schedule.OneFOneB, schedule.Config{Stages: 3, MicroBatches: 4}, false},
		{schedule.OneFOneB, schedule.Config{Stages: 3, MicroBatches: 1}, true},
	} {
		p, err := tt.generate(tt.config)
		if err != nil {
			t.Fatal(err)
		}
		if got := p.Apart(); got != tt.want {
			t.Errorf("%v\napart: %v, want %v", p, got, tt.want)
		}
	}
}
