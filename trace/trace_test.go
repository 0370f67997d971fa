package trace_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	_ "penstock.example/internal/draws" // sets the number of draws
	"penstock.example/schedule"
	"penstock.example/trace"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// simulated is a timeline in which every action takes some time. It has no bytes.
func simulated(t rapid.TB, config schedule.Config) schedule.Timeline {
	t.Helper()
	p, err := schedule.GPipe(config)
	if err != nil {
		t.Fatal(err)
	}
	return timed(t, p)
}

// timed is the simulated timeline of a program, by start, as it is read from a file.
func timed(t rapid.TB, p *schedule.Program) schedule.Timeline {
	t.Helper()
	out, err := schedule.Simulate(p, func(a schedule.Action) time.Duration {
		return schedule.Unit(a) + 50*time.Microsecond + 7*time.Nanosecond
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.SortStableFunc(out.Events, func(a, b schedule.Event) int { return int(a.Start - b.Start) })
	return out
}

func written(t rapid.TB, timeline schedule.Timeline, opts trace.Options) string {
	t.Helper()
	var b strings.Builder
	if err := trace.Write(&b, timeline, opts); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestWriteGolden(t *testing.T) {
	always := func(stage, microBatch int) bool { return true }
	tests := []struct {
		file   string
		config schedule.Config
		opts   trace.Options
	}{
		{"plain.json", schedule.Config{Stages: 1, MicroBatches: 1}, trace.Options{}},
		{"full.json", schedule.Config{Stages: 2, MicroBatches: 2, Recompute: always}, trace.Options{
			Workers: []string{"worker 0 · cpu:0", "worker 1 · cpu:1"},
		}},
		{"backward.json", schedule.Config{Stages: 2, MicroBatches: 1}, trace.Options{}},
		{"replicas.json", schedule.Config{Stages: 2, MicroBatches: 1, Worker: []int{0, 0}}, trace.Options{}},
	}
	for _, tt := range tests {
		t.Run(tt.file, func(t *testing.T) {
			p, err := schedule.GPipe(tt.config)
			if err != nil {
				t.Fatal(err)
			}
			if tt.file == "backward.json" {
				p = p.Part(schedule.BackwardOnly)
			}
			if tt.file == "replicas.json" {
				p = schedule.AddReduce(p)
			}
			timeline := timed(t, p)
			if tt.opts.Workers != nil {
				for i := range timeline.Events {
					timeline.Events[i].Live = int64(i) << 20
				}
			}
			got := written(t, timeline, tt.opts)
			path := filepath.Join("testdata", tt.file)
			if *update {
				if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("%s differs (-want +got):\n%s", path, diff)
			}
		})
	}
}

// drawTimeline draws a timeline of simulated and of unlikely events.
func drawTimeline(t *rapid.T) schedule.Timeline {
	timeline := simulated(t, schedule.Config{
		Stages:       rapid.IntRange(1, 4).Draw(t, "stages"),
		MicroBatches: rapid.IntRange(1, 4).Draw(t, "micro-batches"),
	})
	at := timeline.Makespan()
	for range rapid.IntRange(0, 5).Draw(t, "more") {
		at += time.Duration(rapid.Int64Range(0, 1e17).Draw(t, "idle"))
		end := at + time.Duration(rapid.Int64Range(0, 1e17).Draw(t, "duration"))
		a, err := schedule.ParseAction(rapid.SampledFrom([]string{"0F0", "7R2147483647", "0>3F2", "5>1B0", "3RED"}).Draw(t, "action"))
		if err != nil {
			t.Fatal(err)
		}
		worker := rapid.IntRange(0, timeline.Workers-1).Draw(t, "worker")
		timeline.Events = append(timeline.Events, schedule.Event{Worker: worker, Action: a, Start: at, End: end})
	}
	for i := range timeline.Events {
		timeline.Events[i].Live = rapid.SampledFrom([]int64{0, 1, 1 << 62}).Draw(t, "live")
	}
	return timeline
}

// Events need no order in a timeline; in the file they are by start.
func TestWriteSorts(t *testing.T) {
	want := simulated(t, schedule.Config{Stages: 2, MicroBatches: 2})
	mixed := want
	mixed.Events = append(want.Events[5:len(want.Events):len(want.Events)], want.Events[:5]...)
	if diff := cmp.Diff(written(t, want, trace.Options{}), written(t, mixed, trace.Options{})); diff != "" {
		t.Errorf("-sorted +mixed:\n%s", diff)
	}
}

// Any reader of JSON reads it, and finds what the format asks of each type of event.
func TestWriteIsTraceEventJSON(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := written(t, drawTimeline(t), trace.Options{})
		var file struct{ TraceEvents []map[string]any }
		if err := json.Unmarshal([]byte(text), &file); err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		need := map[any][]string{
			"M": {"pid", "name", "args"},
			"X": {"pid", "tid", "name", "cat", "ts", "dur", "args"},
			"s": {"pid", "tid", "name", "cat", "ts", "id"},
			"t": {"pid", "tid", "name", "cat", "ts", "id"},
			"f": {"pid", "tid", "name", "cat", "ts", "id", "bp"},
			"C": {"pid", "name", "ts", "args"},
		}
		for _, e := range file.TraceEvents {
			fields, known := need[e["ph"]]
			if !known {
				t.Fatalf("unknown type of event: %v", e)
			}
			for _, name := range fields {
				if _, ok := e[name]; !ok {
					t.Fatalf("no %s in %v", name, e)
				}
			}
		}
	})
}

func TestWriteErrors(t *testing.T) {
	ok := simulated(t, schedule.Config{Stages: 2, MicroBatches: 1})
	early, beyond := ok, ok
	early.Events = []schedule.Event{{Action: ok.Events[0].Action, Start: -5, End: 3}}
	beyond.Events = []schedule.Event{{Action: ok.Events[0].Action, Worker: 2}}
	tests := []struct {
		name     string
		timeline schedule.Timeline
		opts     trace.Options
		want     string
	}{
		{"names", ok, trace.Options{Workers: []string{"one"}}, "trace: 1 names for 2 workers; want one for each, or none"},
		{"no names", ok, trace.Options{Workers: []string{}}, "trace: 0 names for 2 workers"},
		{"worker", beyond, trace.Options{}, "0F0 is on worker 2 of 2"},
		{"time", early, trace.Options{}, "negative time -5ns"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := trace.Write(&bytes.Buffer{}, tt.timeline, tt.opts)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %s", err, tt.want)
			}
		})
	}
}

// A failure leaves what was in the file, and nothing beside it.
func TestWriteFileFails(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run.json")
	timeline := simulated(t, schedule.Config{Stages: 2, MicroBatches: 2})
	if err := trace.WriteFile(path, timeline, trace.Options{}); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(path)
	if err != nil || string(before) != written(t, timeline, trace.Options{}) {
		t.Errorf("the file is %q, %v", before, err)
	}
	timeline.Events[3].Start = -1
	if err := trace.WriteFile(path, timeline, trace.Options{}); err == nil {
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

func ExampleWrite() {
	program, err := schedule.GPipe(schedule.Config{Stages: 1, MicroBatches: 1})
	if err != nil {
		fmt.Println(err)
		return
	}
	timeline, err := schedule.Simulate(program, schedule.Unit)
	if err != nil {
		fmt.Println(err)
		return
	}
	err = trace.Write(os.Stdout, timeline, trace.Options{Workers: []string{"worker 0 · cpu:0"}})
	if err != nil {
		fmt.Println(err)
	}
	// Output: {"displayTimeUnit":"ms","traceEvents":[
	// {"ph":"M","pid":1,"name":"process_name","args":{"name":"penstock"}}
	// ,{"ph":"M","pid":1,"tid":1,"name":"thread_name","args":{"name":"worker 0 · cpu:0"}}
	// ,{"ph":"M","pid":1,"tid":1,"name":"thread_sort_index","args":{"sort_index":0}}
	// ,{"ph":"X","pid":1,"tid":1,"ts":0.000,"dur":1000.000,"name":"forward, stage 0, micro-batch 0","cat":"forward","args":{"action":"0F0","stage":0,"micro_batch":0}}
	// ,{"ph":"X","pid":1,"tid":1,"ts":1000.000,"dur":1000.000,"name":"backward, stage 0, micro-batch 0","cat":"backward","args":{"action":"0B0","stage":0,"micro_batch":0}}
	// ]}
}
