package trace_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"penstock.example/internal/must"
	"penstock.example/schedule"
)

// arrows returns the arrows of a trace as the slices they join, "0F0 0>1F0 1F0", in the order in
// which they start. It binds as viewers do: an end belongs to the slice that was begun last on its
// thread, and must lie within it.
func arrows(t rapid.TB, text string) []string {
	t.Helper()
	type slice struct {
		name string
		ts   json.Number
	}
	var file struct {
		TraceEvents []struct {
			Ph, Name, Cat, Bp string
			Tid, ID           int
			Ts                json.Number
			Args              struct{ Action string }
		}
	}
	must.Do(t, json.Unmarshal([]byte(text), &file))
	open := make(map[int]slice)      // by thread
	joined := make(map[int][]string) // by arrow
	names := make(map[int]string)
	ended := make(map[int]int)
	var order []int
	for _, e := range file.TraceEvents {
		switch e.Ph {
		case "X":
			open[e.Tid] = slice{e.Args.Action, e.Ts}
			continue
		case "s":
			if names[e.ID] != "" {
				t.Fatalf("arrow %d starts twice", e.ID)
			}
			names[e.ID] = e.Name
			order = append(order, e.ID)
		case "t":
		case "f":
			ended[e.ID]++
			if e.Bp != "e" {
				t.Fatalf("arrow %d ends at the next slice", e.ID)
			}
		default:
			continue
		}
		if on := open[e.Tid]; on.ts != e.Ts {
			t.Fatalf("arrow %d is at %v, outside of %v", e.ID, e.Ts, on)
		}
		if names[e.ID] != e.Name || e.Cat != "flow" {
			t.Fatalf("arrow %d is %s of %s, and %s", e.ID, e.Name, e.Cat, names[e.ID])
		}
		joined[e.ID] = append(joined[e.ID], open[e.Tid].name)
	}
	var all []string
	for _, id := range order {
		if ended[id] != 1 {
			t.Fatalf("arrow %d ends %d times", id, ended[id])
		}
		all = append(all, strings.Join(joined[id], " "))
	}
	if len(joined) != len(order) {
		t.Fatalf("%d arrows, of which %d start", len(joined), len(order))
	}
	return all
}

func TestFlows(t *testing.T) {
	tests := []struct {
		name   string
		events string // one after the other, each on the worker of its stage
		want   []string
	}{
		{"activation and gradient", "0F0 0F0>1 0>1F0 1F0 1B0 1B0>0 1>0B0 0B0",
			[]string{"0F0 0F0>1 0>1F0 1F0", "1B0 1B0>0 1>0B0 0B0"}},
		{"sends left out", "0F0 0>1F0 1F0 1B0 1>0B0 0B0", []string{"0F0 0>1F0 1F0", "1B0 1>0B0 0B0"}},
		{"recomputation in between", "0F0 0>1F0 1F0 1R0 1B0 0R0 1>0B0 0B0",
			[]string{"0F0 0>1F0 1F0", "1B0 1>0B0 0B0"}},
		{"a backward in two parts", "1I0 1B0>0 1W0 1>0B0 0I0 0W0", []string{"1I0 1B0>0 1>0B0 0I0"}},
		{"skip", "0F0 0F0>1 0F0>2 0>1F0 0>2F0 1F0 1F0>2 1>2F0 2F0",
			[]string{"0F0 0F0>1 0>1F0 1F0", "0F0 0F0>2 0>2F0 2F0", "1F0 1F0>2 1>2F0 2F0"}},
		{"made before recording began", "0>1F0 1F0", []string{"0>1F0 1F0"}},
		{"failed before use", "0F0 0>1F0", []string{"0F0 0>1F0"}},
		{"only the receive", "0>1F0", nil},
		{"sent, not received", "0F0 0F0>1", nil},
		{"two steps", "0F0 0>1F0 1F0 0F0 0>1F0 1F0", []string{"0F0 0>1F0 1F0", "0F0 0>1F0 1F0"}},
		{"two steps, the first one cut short", "0F0 0>1F0 0F0 0>1F0 1F0",
			[]string{"0F0 0>1F0 1F0", "0F0 0>1F0 1F0"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			timeline := schedule.Timeline{Workers: 3}
			var at time.Duration
			for _, word := range strings.Fields(tt.events) {
				a := must.Get(schedule.ParseAction(word))(t)
				timeline.Events = append(timeline.Events,
					schedule.Event{Worker: a.Stage, Action: a, Start: at, End: at + 1000})
				at += 1000
			}
			if diff := cmp.Diff(tt.want, arrows(t, written(t, timeline))); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// Everything that is received in a program that ran has one arrow, through all four of its actions,
// even if no time passes; be it from afar or not.
func TestFlowsOfPrograms(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 4).Draw(t, "stages")
		m := rapid.IntRange(1, 4).Draw(t, "micro-batches")
		config := schedule.Config{Stages: n, MicroBatches: m}
		if n > 2 && rapid.Bool().Draw(t, "skip") {
			config.Skips = []schedule.Edge{{From: 0, To: n - 1}}
		}
		p := gpipe(t, config)
		unit := time.Duration(rapid.IntRange(0, 2).Draw(t, "unit"))
		timeline := must.Get(schedule.Simulate(p,
			func(a schedule.Action) time.Duration { return unit * schedule.Unit(a) }))(t)
		text := written(t, timeline)
		got := arrows(t, text)
		if want := 2 * (n - 1 + len(config.Skips)) * m; len(got) != want {
			t.Fatalf("%d arrows, want %d:\n%s", len(got), want, text)
		}
		for _, arrow := range got {
			if len(strings.Fields(arrow)) != 4 {
				t.Fatalf("an arrow joins %s", arrow)
			}
		}
	})
}
