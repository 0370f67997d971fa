package schedule_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"penstock.example/schedule"
)

// A stage is reduced after the last of its backwards, or of their second parts, and what that sends,
// whatever the worker does afterwards. The second case is that of PyTorch's test_reduce_grad.
func TestAddReduce(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"a stage on each worker",
			"program whole stages=2 micro-batches=2\nworker 0: 0F0 0F0>1 0F1 0F1>1 1>0B0 0B0 1>0B1 0B1\nworker 1: 0>1F0 1F0 0>1F1 1F1 1B0 1B0>0 1B1 1B1>0\n",
			"program whole stages=2 micro-batches=2\nworker 0: 0F0 0F0>1 0F1 0F1>1 1>0B0 0B0 1>0B1 0B1 0RED\nworker 1: 0>1F0 1F0 0>1F1 1F1 1B0 1B0>0 1B1 1B1>0 1RED\n"},
		{"both on one",
			"program backward-only stages=2 micro-batches=2\nworker 0: 1B0 1B0>0 1B1 1B1>0 1>0B0 0B0 1>0B1 0B1\n",
			"program backward-only stages=2 micro-batches=2\nworker 0: 1B0 1B0>0 1B1 1B1>0 1RED 1>0B0 0B0 1>0B1 0B1 0RED\n"},
		{"two parts count by the second",
			"program backward-only stages=2 micro-batches=2\nworker 0: 1I0 1I0>0 1I1 1W0 1B1>0 1>0B0 0B0 1W1 1>0B1 0B1\n",
			"program backward-only stages=2 micro-batches=2\nworker 0: 1I0 1B0>0 1I1 1W0 1B1>0 1>0B0 0B0 1W1 1RED 1>0B1 0B1 0RED\n"},
		{"a skip's gradient is sent before",
			"program backward-only stages=3 micro-batches=1 skips=0>2\nworker 0: 2B0 2B0>1 2B0>0 2>1B0 1B0 1B0>0 2>0B0 1>0B0 0B0\n",
			"program backward-only stages=3 micro-batches=1 skips=0>2\nworker 0: 2B0 2B0>1 2B0>0 2RED 2>1B0 1B0 1B0>0 1RED 2>0B0 1>0B0 0B0 0RED\n"},
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
		if err := schedule.Check(got, schedule.Limits{Meet: true, InOrder: true}); err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

// With reductions every program passes the check wherever it did, takes no longer if they take no time,
// holds as much, and prints, parses and is written as a CSV. With fewer micro-batches it still runs.
func TestAddReduceKeepsPrograms(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		_, _, p := drawScheduled(t)
		got := schedule.AddReduce(p)
		if err := schedule.Check(got, schedule.Limits{Meet: true, InOrder: true}); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(got, parse(t, got.String())); diff != "" {
			t.Fatal(diff)
		}
		if diff := cmp.Diff(schedule.InFlight(p, nil), schedule.InFlight(got, nil)); diff != "" {
			t.Fatal(diff)
		}
		for w, actions := range got.Workers { // in one order in all programs
			before := p.Stages
			for _, a := range actions {
				if a.Kind == schedule.Reduce {
					if a.Stage >= before {
						t.Fatalf("worker %d reduces stage %d after %d\n%v", w, a.Stage, before, got)
					}
					before = a.Stage
				}
			}
		}
		for _, part := range []*schedule.Program{got.Part(schedule.ForwardOnly), got.Part(schedule.BackwardOnly), got.Fewer((p.MicroBatches + 1) / 2)} {
			if err := schedule.Check(part, schedule.Limits{}); err != nil {
				t.Fatalf("%v\n%v", err, part)
			}
			if part.Reduces() != (part.Phase != schedule.ForwardOnly) {
				t.Fatalf("%v", part)
			}
		}
		took := drawDurations(t, p.Stages)
		pipe := func(a schedule.Action) time.Duration {
			if a.Kind == schedule.Reduce {
				return 0
			}
			return took(a)
		}
		without, idle, err := schedule.Predict(p, pipe)
		if err != nil {
			t.Fatal(err)
		}
		if with, again, err := schedule.Predict(got, pipe); err != nil || with != without || again != idle {
			t.Fatalf("takes %v with reductions that take no time, %v without; idle %v and %v; %v", with, without, again, idle, err)
		}
		// Otherwise all else is when it was, and each reduction follows its stage's backwards and the
		// one before of its worker.
		timeline := simulate(t, got, took)
		was := map[schedule.Action]schedule.Event{}
		for _, e := range simulate(t, p, took).Events {
			was[e.Action] = e
		}
		reduced := make([]time.Duration, len(p.Workers))
		count := 0
		for _, e := range timeline.Events {
			if e.Action.Kind != schedule.Reduce {
				if was[e.Action] != e {
					t.Fatalf("%+v, without reductions %+v", e, was[e.Action])
				}
				continue
			}
			count++
			for _, b := range was {
				if b.Action.Stage == e.Action.Stage && (b.Action.Kind == schedule.Backward || b.Action.Kind == schedule.BackwardWeight) && b.End > e.Start {
					t.Fatalf("%v begins at %v, before the end of %+v", e.Action, e.Start, b)
				}
			}
			if e.Start < reduced[e.Worker] || e.End != e.Start+took(e.Action) {
				t.Fatalf("%+v, and the one before ends at %v", e, reduced[e.Worker])
			}
			reduced[e.Worker] = e.End
		}
		if count != p.Stages {
			t.Fatalf("%d reductions of %d stages", count, p.Stages)
		}
	})
}

// Reductions that are wrong are reported where they are, with what is wrong.
func TestCheckReductions(t *testing.T) {
	const header = "program backward-only stages=2 micro-batches=2\n"
	for _, tt := range []struct{ text, want string }{
		{"worker 0: 1>0B0 0B0 1>0B1 0B1 0RED\nworker 1: 1B0 1B0>0 1B1 1B1>0\n",
			"missing: worker 1, action 3, 1B1: no 1RED follows, and other stages have one"},
		{"worker 0: 1>0B0 0B0 1>0B1 0B1 0RED\nworker 1: 1I0 1B0>0 1I1 1B1>0 1W0 1W1\n",
			"missing: worker 1, action 6, 1W1: no 1RED follows, and other stages have one"},
		{"worker 0: 1>0B0 0B0 0RED 1>0B1 0B1\nworker 1: 1B0 1B0>0 1B1 1B1>0 1RED\n",
			"order: worker 0, action 3, 0RED: it comes before 0B1, which it needs"},
		{"worker 0: 1>0B0 0B0 1>0B1 0B1 0RED\nworker 1: 1I0 1B0>0 1I1 1B1>0 1W0 1RED 1W1\n",
			"order: worker 1, action 6, 1RED: it comes before 1W1, which it needs"},
		{"worker 0: 1>0B0 0B0 1>0B1 0B1 0RED\nworker 1: 1B0 1B0>0 1B1 1B1>0 1RED 1RED\n",
			"duplicate: worker 1, action 6, 1RED: it is there already: worker 1, action 5"},
		{"worker 0: 1>0B0 0B0 1>0B1 0B1 0RED 1RED\nworker 1: 1B0 1B0>0 1B1 1B1>0\n",
			"placement: worker 0, action 6, 1RED: stage 1 is on worker 1"},
		{"worker 0: 1>0B0 0B0 1>0B1 0B1 0RED 2RED\nworker 1: 1B0 1B0>0 1B1 1B1>0 1RED\n",
			"unknown: worker 0, action 6, 2RED: there are 2 stages"},
	} {
		vs := violations(t, schedule.Check(parse(t, header+tt.text), schedule.Limits{}))
		if len(vs) == 0 || vs[0].Error() != tt.want {
			t.Errorf("%s%v, want %s", tt.text, vs, tt.want)
		}
	}
	p := schedule.AddReduce(gpipe(t, schedule.Config{Stages: 1, MicroBatches: 1}))
	p.Phase = schedule.ForwardOnly
	if err := schedule.Check(p, schedule.Limits{}); err == nil || !strings.Contains(err.Error(), "0RED: not part of a forward-only program") {
		t.Error(err)
	}
}

// Without one of several reductions a program is no longer whole, and one that comes earlier is
// reported.
func TestWrongReductionIsCaught(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		_, _, p := drawScheduled(t)
		p = schedule.AddReduce(p)
		s := drawSite(t, p, func(a schedule.Action) bool { return a.Kind == schedule.Reduce })
		list := p.Workers[s.worker]
		dropped := clone(p)
		dropped.Workers[s.worker] = append(append([]schedule.Action{}, list[:s.at]...), list[s.at+1:]...)
		if p.Stages > 1 {
			mustBreak(t, dropped, schedule.RuleMissing)
		}
		last := s.at - 1
		for list[last].Stage != list[s.at].Stage || list[last].Kind != schedule.Backward && list[last].Kind != schedule.BackwardWeight {
			last--
		}
		to := rapid.IntRange(0, last).Draw(t, "to")
		early := dropped.Workers[s.worker]
		dropped.Workers[s.worker] = append(append(append([]schedule.Action{}, early[:to]...), list[s.at]), early[to:]...)
		mustBreak(t, dropped, schedule.RuleOrder)
	})
}

// Reductions are drawn below what their worker does meanwhile.
func ExampleAddReduce() {
	p, err := schedule.BreadthFirst(schedule.Config{Stages: 4, MicroBatches: 2, Worker: []int{0, 1, 0, 1}})
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
