package schedule_test

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"penstock.example/internal/must"
	"penstock.example/schedule"
)

func TestGrid(t *testing.T) {
	for _, tt := range []struct {
		name    string
		workers int
		events  []schedule.Event
		want    string
	}{
		{"nothing happened", 2, nil, "1 column = 1ns|worker 0|worker 1"},
		{"no time passed", 1, []schedule.Event{event(t, 0, "0F0", 5, 5)}, "1 column = 1ns|worker 0  F0"},
		{"in any order, from any time", 2,
			[]schedule.Event{event(t, 0, "0F1", 101, 102), event(t, 0, "0F0", 100, 101)},
			"1 column = 1ms|worker 0  F0 F1|worker 1  .  ."},
		{"long transfers are drawn, short ones are not", 2, []schedule.Event{
			event(t, 0, "0F0", 0, 2), event(t, 1, "0>1F0", 2, 4), event(t, 1, "1F0", 4, 5),
			event(t, 1, "1B0", 5, 7), event(t, 0, "1>0B0", 7, 7.4), event(t, 0, "0B0", 7.4, 9.4),
		}, "1 column = 1ms|worker 0  F0----- .   .   .   .   .   B0-----|worker 1  .   .   >F0---- F0  " +
			"B0----- .   ."},
		{"several stages on a worker", 2, []schedule.Event{
			event(t, 0, "0F0", 0, 1), event(t, 0, "0>1F0", 1, 2), event(t, 0, "1F0", 2, 3), event(t, 1,
				"2F10", 3, 5),
		}, "1 column = 1ms|worker 0  0F0   0>1F0 1F0   .     .|worker 1  .     .     .     2F10-------"},
		{"a transfer from afar says from where", 2, []schedule.Event{
			event(t, 0, "12>10B0", 0, 1), event(t, 0, "11>10B0", 1, 2), event(t, 0, "10B0", 2, 3),
			event(t, 1, "0>3F0", 0, 1), event(t, 1, "2>3F0", 1, 2), event(t, 1, "3F0", 2, 3),
		}, "1 column = 1ms|worker 0  12>B0 >B0   B0|worker 1  0>F0  >F0   F0"},
		{"a column too long for some: their row runs ahead until it is idle", 1, []schedule.Event{
			event(t, 0, "0F0", 0, 1), event(t, 0, "0F1", 1, 2), event(t, 0, "0F2", 2, 3), event(t, 0, "0B0",
				3200, 6400),
		}, "1 column = 100ms|worker 0  F0 F1 F2" + strings.Repeat(" . ", 29) + " B0" +
			strings.Repeat("---", 31)},
	} {
		timeline := schedule.Timeline{Workers: tt.workers, Events: tt.events}
		if got, want := timeline.Grid(), strings.ReplaceAll(tt.want, "|", "\n")+"\n"; got != want {
			t.Errorf("%s:\n%s\nwant:\n%s", tt.name, got, want)
		}
	}
}

// A recorded run has jitter: the same program, a tenth of a column up or down on each action and a
// little time lost between them, is drawn with the same cells in the same order, few of them a
// column longer.
func TestGridOfJitter(t *testing.T) {
	p := gpipe(t, schedule.Config{Stages: 3, MicroBatches: 4, Recompute: exceptLast})
	rng := rand.New(rand.NewPCG(1, 2))
	duration := func(a schedule.Action) time.Duration {
		jitter := time.Duration(rng.IntN(100)) * time.Microsecond
		switch a.Kind {
		case schedule.Forward, schedule.Recompute:
			return time.Millisecond + jitter
		case schedule.Backward:
			return 2*time.Millisecond + jitter
		}
		return 10*time.Microsecond + jitter/10
	}
	must.Match(t, "grid_jitter.txt", simulate(t, p, duration).Grid())
}

// Skips, with sends and receives that take half as long as a forward each.
func TestGridOfTransfers(t *testing.T) {
	duration := func(a schedule.Action) time.Duration {
		switch {
		case a.Kind.Transfer():
			return time.Millisecond
		case a.Kind == schedule.Backward:
			return 4 * time.Millisecond
		}
		return 2 * time.Millisecond
	}
	config := schedule.Config{Stages: 4, MicroBatches: 2,
		Skips: []schedule.Edge{{From: 0, To: 2}, {From: 0, To: 3}}}
	must.Match(t, "grid_skips.txt", simulate(t, gpipe(t, config), duration).Grid())
}

// TestGridWidth: two stages and eight micro-batches fit a terminal of 80 characters, with every
// computation in its row and in its order.
func TestGridWidth(t *testing.T) {
	p := gpipe(t, schedule.Config{Stages: 2, MicroBatches: 8, Recompute: exceptLast})
	timeline := simulate(t, p, func(a schedule.Action) time.Duration {
		switch a.Kind {
		case schedule.Forward, schedule.Recompute:
			return 10 * time.Millisecond
		case schedule.Backward:
			return 25 * time.Millisecond
		}
		return 100 * time.Microsecond
	})
	if wide, same := timeline.Grid(), timeline.GridWidth(1000); wide != same {
		t.Errorf("there is room, and yet:\n%s", same)
	}
	for _, characters := range []int{80, 100, 120} {
		grid := timeline.GridWidth(characters)
		if n := widest(grid); n > characters || n < characters-20 {
			t.Errorf("%d characters of %d:\n%s", n, characters, grid)
		}
		for line := range strings.Lines(grid) {
			if n := strings.Count(line, "F") + strings.Count(line, "R") +
				strings.Count(line, "B"); strings.HasPrefix(line, "worker ") && n != 8+7+8 {
				t.Errorf("%d characters: %d computations in %s", characters, n, line)
			}
		}
	}
	must.Match(t, "grid_80.txt", timeline.GridWidth(80))
	// 23 computations of 2 characters each cannot fit.
	if narrow := timeline.GridWidth(40); widest(narrow) != 40 || strings.Count(narrow, "…\n") != 2 {
		t.Errorf("40 characters:\n%s", narrow)
	}
	if got := (schedule.Timeline{Workers: 1}).GridWidth(80); got != (schedule.Timeline{Workers: 1}).Grid() {
		t.Errorf("nothing happened: %s", got)
	}
}

// widest is the number of characters in the longest line.
func widest(grid string) int {
	n := 0
	for line := range strings.Lines(grid) {
		n = max(n, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")))
	}
	return n
}
