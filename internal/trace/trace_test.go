package trace_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	_ "penstock.example/internal/draws" // sets the number of draws
	"penstock.example/internal/must"
	"penstock.example/internal/trace"
	"penstock.example/schedule"
)

// simulated is GPipe's timeline, by start, in which every action takes some time.
func simulated(t rapid.TB, p *schedule.Program) schedule.Timeline {
	t.Helper()
	out := must.Get(schedule.Simulate(p, func(a schedule.Action) time.Duration {
		return schedule.Unit(a) + 50*time.Microsecond + 7*time.Nanosecond
	}))(t)
	slices.SortStableFunc(out.Events, func(a, b schedule.Event) int { return int(a.Start - b.Start) })
	return out
}

func gpipe(t rapid.TB, config schedule.Config) *schedule.Program {
	t.Helper()
	return must.Get(schedule.GPipe(config))(t)
}

// written is the trace of a timeline whose workers are called worker 0 · cpu:0 and so on.
func written(t rapid.TB, timeline schedule.Timeline) string {
	t.Helper()
	return string(trace.JSON(timeline, workers(timeline.Workers)))
}

func workers(n int) (names []string) {
	for w := range n {
		names = append(names, fmt.Sprintf("worker %d · cpu:%[1]d", w))
	}
	return names
}

func TestWriteGolden(t *testing.T) {
	two := schedule.Config{Stages: 2, MicroBatches: 2, Recompute: func(int, int) bool { return true }}
	for name, p := range map[string]*schedule.Program{
		"full.json":     gpipe(t, two),
		"backward.json": gpipe(t, schedule.Config{Stages: 2, MicroBatches: 1}).Part(schedule.BackwardOnly),
		"replicas.json": schedule.AddReduce(gpipe(t,
			schedule.Config{Stages: 2, MicroBatches: 1, Worker: []int{0, 0}})),
	} {
		timeline := simulated(t, p)
		for i := range timeline.Events {
			if name == "full.json" {
				timeline.Events[i].Live = int64(i) << 20
			}
		}
		got := written(t, timeline)
		if !json.Valid([]byte(got)) {
			t.Errorf("%s is no JSON", name)
		}
		must.Match(t, name, got)
	}
}

// Events need no order in a timeline; in the file they are by start.
func TestWriteSorts(t *testing.T) {
	want := simulated(t, gpipe(t, schedule.Config{Stages: 2, MicroBatches: 2}))
	mixed := want
	mixed.Events = append(want.Events[5:len(want.Events):len(want.Events)], want.Events[:5]...)
	if diff := cmp.Diff(written(t, want), written(t, mixed)); diff != "" {
		t.Errorf("-sorted +mixed:\n%s", diff)
	}
}
