package schedule_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"penstock.example/internal/must"
	"penstock.example/schedule"
)

// A stage is reduced after the last of its backwards, or of their second parts, and what that sends,
// whatever the worker does afterwards. The second case is that of PyTorch's test_reduce_grad.
func TestAddReduce(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"a stage on each worker",
			"program whole stages=2 micro-batches=2\nworker 0: 0F0 0F0>1 0F1 0F1>1 1>0B0 0B0 1>0B1 " +
				"0B1\nworker 1: 0>1F0 1F0 0>1F1 1F1 1B0 1B0>0 1B1 1B1>0\n",
			"program whole stages=2 micro-batches=2\nworker 0: 0F0 0F0>1 0F1 0F1>1 1>0B0 0B0 1>0B1 0B1 " +
				"0RED\nworker 1: 0>1F0 1F0 0>1F1 1F1 1B0 1B0>0 1B1 1B1>0 1RED\n"},
		{"two parts count by the second",
			"program backward-only stages=2 micro-batches=2\nworker 0: 1I0 1I0>0 1I1 1W0 1B1>0 1>0B0 0B0 " +
				"1W1 1>0B1 0B1\n",
			"program backward-only stages=2 micro-batches=2\nworker 0: 1I0 1B0>0 1I1 1W0 1B1>0 1>0B0 0B0 " +
				"1W1 1RED 1>0B1 0B1 0RED\n"},
		{"a skip's gradient is sent before",
			"program backward-only stages=3 micro-batches=1 skips=0>2\nworker 0: 2B0 2B0>1 2B0>0 2>1B0 " +
				"1B0 1B0>0 2>0B0 1>0B0 0B0\n",
			"program backward-only stages=3 micro-batches=1 skips=0>2\nworker 0: 2B0 2B0>1 2B0>0 2RED " +
				"2>1B0 1B0 1B0>0 1RED 2>0B0 1>0B0 0B0 0RED\n"},
		{"a lower stage ends first, and waits for the higher one",
			"program backward-only stages=2 micro-batches=1\nworker 0: 1I0 1I0>0 1>0B0 0B0 1W0\n",
			"program backward-only stages=2 micro-batches=1\nworker 0: 1I0 1B0>0 1>0B0 0B0 1W0 1RED 0RED\n"},
		{"nothing to reduce",
			"program forward-only stages=1 micro-batches=1\nworker 0: 0F0\n",
			"program forward-only stages=1 micro-batches=1\nworker 0: 0F0\n"},
	} {
		p := parse(t, strings.ReplaceAll(tt.text, "1I0>0", "1B0>0"))
		before := p.String()
		got := schedule.AddReduce(p)
		if diff := cmp.Diff(tt.want, got.String()); diff != "" {
			t.Errorf("%s:\n%s", tt.name, diff)
		}
		if p.String() != before || got.WithoutReduce().String() != before {
			t.Errorf("%s: %v, without reductions %v", tt.name, p, got.WithoutReduce())
		}
		if again := schedule.AddReduce(got); again.String() != tt.want {
			t.Errorf("%s: twice: %v", tt.name, again)
		}
		if got.Reduces() != strings.Contains(tt.want, "RED") || p.Reduces() {
			t.Errorf("%s: reduces %v", tt.name, got.Reduces())
		}
		if err := runs(got); err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

// With reductions every program passes the check wherever it did and holds as much. All else is when
// it was, and the reductions of a worker are in descending order of stages.
func TestAddReduceKeepsPrograms(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		_, _, p := drawScheduled(t)
		got := schedule.AddReduce(p)
		must.Do(t, runs(got))
		if diff := cmp.Diff(schedule.InFlight(p), schedule.InFlight(got)); diff != "" {
			t.Fatal(diff)
		}
		took := drawDurations(t, p.Stages)
		was := map[schedule.Action]schedule.Event{}
		for _, e := range simulate(t, p, took).Events {
			was[e.Action] = e
		}
		before, reduced := slices.Repeat([]int{p.Stages}, len(p.Workers)),
			make([]time.Duration, len(p.Workers))
		for _, e := range simulate(t, got, took).Events {
			if e.Action.Kind != schedule.Reduce {
				if was[e.Action] != e {
					t.Fatalf("%+v, without reductions %+v", e, was[e.Action])
				}
				continue
			}
			if e.Action.Stage >= before[e.Worker] || e.Start < reduced[e.Worker] || e.End != e.Start+
				took(e.Action) {
				t.Fatalf("%+v, after stage %d until %v\n%v", e, before[e.Worker], reduced[e.Worker], got)
			}
			before[e.Worker], reduced[e.Worker] = e.Action.Stage, e.End
		}
	})
}

// Reductions are drawn below what their worker does meanwhile.
func ExampleAddReduce() {
	bfs, _ := schedule.Named("bfs")
	p, err := bfs.Program(2, 2, schedule.Config{MicroBatches: 2})
	if err != nil {
		fmt.Println(err)
		return
	}
	timeline, err := schedule.Simulate(schedule.AddReduce(p), func(a schedule.Action) time.Duration {
		switch {
		case a.Kind == schedule.Reduce:
			return 3 * time.Millisecond
		case a.Kind == schedule.Backward:
			return 2 * time.Millisecond
		}
		return schedule.Unit(a)
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Print(timeline.Grid())
	fmt.Printf("takes %v, worker 1 is idle for %.1f%%\n", timeline.Makespan(), 100*timeline.Idle(1))
	// Output:
	// 1 column = 1ms
	// worker 0  0F0  0F1  2F0  2F1  .    .    .    2B0------ 2B1------ 0B0------ 0B1------ .    .    .
	//                                                                  2RED----------      0RED----------
	// worker 1  .    1F0  1F1  3F0  3F1  3B0------ 3B1------ 1B0------ 1B1------ .    .    .    .    .
	//                                                        3RED----------      1RED----------
	// takes 18ms, worker 1 is idle for 33.3%
}
