package trace_test

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	_ "penstock.example/internal/draws" // sets the number of draws
	"penstock.example/internal/golden"
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
	var b strings.Builder
	must.Do(t, trace.Write(&b, timeline, workers(timeline.Workers)))
	return b.String()
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
		golden.Compare(t, name, got)
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

// A failure leaves what was in the file, and nothing beside it.
func TestWriteFileFails(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run.json")
	timeline := simulated(t, gpipe(t, schedule.Config{Stages: 2, MicroBatches: 2}))
	must.Do(t, trace.WriteFile(path, timeline, workers(2)))
	before, err := os.ReadFile(path)
	if err != nil || string(before) != written(t, timeline) {
		t.Errorf("the file is %q, %v", before, err)
	}
	timeline.Events[3].Start = -1
	if err := trace.WriteFile(path, timeline, workers(2)); err == nil {
		t.Error("no error for a negative time")
	}
	after, err := os.ReadFile(path)
	if err != nil || string(after) != string(before) {
		t.Errorf("the file is %q, %v, want it untouched", after, err)
	}
	if entries, err := os.ReadDir(filepath.Dir(path)); err != nil || len(entries) != 1 {
		t.Errorf("there are %v, %v", entries, err)
	}
}

func TestWriteRefuses(t *testing.T) {
	timeline := simulated(t, gpipe(t, schedule.Config{Stages: 2, MicroBatches: 1}))
	early := schedule.Timeline{Workers: 2,
		Events: []schedule.Event{{Action: timeline.Events[0].Action, Start: -5, End: 3}}}
	beyond := schedule.Timeline{Workers: 2,
		Events: []schedule.Event{{Action: timeline.Events[0].Action, Worker: 2}}}
	for want, err := range map[string]error{
		"trace: 1 names for 2 workers; want one for each": trace.Write(io.Discard, timeline, workers(1)),
		"0F0 is on worker 2 of 2":                         trace.Write(io.Discard, beyond, workers(2)),
		"negative time -5ns":                              trace.Write(io.Discard, early, workers(2)),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
