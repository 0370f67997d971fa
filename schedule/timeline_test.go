package schedule_test

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"penstock.example/schedule"
)

// event is one of a recorded run, in units of a millisecond.
func event(t rapid.TB, worker int, text string, start, end float64) schedule.Event {
	t.Helper()
	ms := func(at float64) time.Duration { return time.Duration(math.Round(at * float64(time.Millisecond))) }
	return schedule.Event{Worker: worker, Action: action(t, text), Start: ms(start), End: ms(end)}
}

func TestMakespanAndIdle(t *testing.T) {
	for _, tt := range []struct {
		name     string
		workers  int
		events   []schedule.Event
		makespan time.Duration
		idle     []float64
	}{
		{"nothing happened", 2, nil, 0, []float64{0, 0}},
		{"no time passed", 1, []schedule.Event{event(t, 0, "0F0", 5, 5)}, 0, []float64{0}},
		{"the clock began before the run", 3,
			[]schedule.Event{event(t, 0, "0F0", 100, 102), event(t, 1, "1F0", 103, 104)},
			4 * time.Millisecond, []float64{0.5, 0.75, 1}},
		{"transfers are work, in any order", 1,
			[]schedule.Event{event(t, 0, "1F0", 2, 3), event(t, 0, "0>1F0", 1, 2),
				event(t, 0, "1F1", 4, 5)}, 4 * time.Millisecond, []float64{0.25}},
		{"a copy beside computations", 1,
			[]schedule.Event{event(t, 0, "1>0B1", 0, 3), event(t, 0, "0B0", 1, 2),
				event(t, 0, "0B1", 2, 3), event(t, 0, "0B2", 9, 10)}, 10 * time.Millisecond, []float64{0.6}},
	} {
		timeline := schedule.Timeline{Workers: tt.workers, Events: tt.events}
		if got := timeline.Makespan(); got != tt.makespan {
			t.Errorf("%s: takes %v, want %v", tt.name, got, tt.makespan)
		}
		for w, want := range tt.idle {
			if got := timeline.Idle(w); math.Abs(got-want) > 1e-9 {
				t.Errorf("%s: worker %d is idle for %v, want %v", tt.name, w, got, want)
			}
		}
	}
}

func TestTimelineValidate(t *testing.T) {
	for want, e := range map[string]schedule.Event{
		"1F0 is on worker 2 of 2":                              event(t, 2, "1F0", 1, 2),
		"1F0 on worker 1 ends at 1ms, before its start at 2ms": event(t, 1, "1F0", 2, 1),
	} {
		timeline := schedule.Timeline{Workers: 2, Events: []schedule.Event{event(t, 0, "0F0", 1, 1), e}}
		if err := timeline.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// drawTimeline draws events with no rhyme or reason, but for those of a worker not overlapping.
func drawTimeline(t *rapid.T) schedule.Timeline {
	timeline := schedule.Timeline{Workers: rapid.IntRange(1, 4).Draw(t, "workers")}
	for w := range timeline.Workers {
		at := time.Duration(rapid.Int64Range(0, 1e6).Draw(t, "first"))
		for range rapid.IntRange(0, 12).Draw(t, "events") {
			at += time.Duration(rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(0, 1e7)).Draw(t, "idle"))
			d := time.Duration(rapid.OneOf(rapid.Int64Range(0, 1e4), rapid.Int64Range(0, 1e9)).Draw(t,
				"duration"))
			timeline.Events = append(timeline.Events,
				schedule.Event{Worker: w, Action: drawAction(t), Start: at, End: at + d})
			at += d
		}
	}
	return timeline
}

// The grid copes with whatever was recorded: it draws every computation, in order, and reductions
// in rows of their own.
func TestGridDrawsAll(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		timeline := drawTimeline(t)
		grid := timeline.Grid()
		lines := strings.Split(strings.TrimSuffix(grid, "\n"), "\n")
		lines = slices.DeleteFunc(lines, func(line string) bool { return strings.HasPrefix(line, "  ") })
		if len(lines) != timeline.Workers+1 {
			t.Fatalf("%d lines for %d workers:\n%s", len(lines), timeline.Workers, grid)
		}
		for w, line := range lines[1:] {
			var got []string
			for _, cell := range strings.Fields(line)[2:] {
				cell = strings.TrimRight(cell, "-")
				if cell != "." && !strings.Contains(cell, ">") {
					got = append(got, cell[strings.IndexAny(cell, "FRBIW"):])
				}
			}
			var want []string
			for _, e := range timeline.Events {
				if text := e.Action.String(); e.Worker == w && !e.Action.Kind.Transfer() &&
					e.Action.Kind != schedule.Reduce {
					want = append(want, text[strings.IndexAny(text, "FRBIW"):])
				}
			}
			if strings.Join(got, " ") != strings.Join(want, " ") {
				t.Fatalf("worker %d shows %v, want %v\n%s", w, got, want, grid)
			}
		}
		if len(lines[1]) > 100_000 {
			t.Fatalf("a row of %d characters", len(lines[1]))
		}
	})
}
