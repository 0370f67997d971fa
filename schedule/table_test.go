package schedule_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"penstock.example/schedule"
)

// equal is the duration of an action where forwards and both parts of a backward take a unit each.
func equal(a schedule.Action) time.Duration {
	switch {
	case a.Kind.Transfer():
		return 0
	case a.Kind == schedule.Backward:
		return 2
	}
	return 1
}

// shape is a number of devices with so many stages each, and of micro-batches; for schedules in
// groups also the size of the first group.
type shape struct{ p, v, m, g int }

// shapes lists all of 2 to 8 devices and 1 to 4 times as many micro-batches, with as many stages on
// each device as the schedule allows, up to 4.
func shapes(s schedule.Schedule) []shape {
	var out []shape
	for p := 2; p <= 8; p++ {
		for v := 1; v <= 4; v++ {
			if s.Virtual > 0 && v != s.Virtual {
				continue
			}
			for m := 1; m <= 4*p; m++ {
				groups := max(1, m/p)
				out = append(out, shape{p, v, m, (m + groups - 1) / groups})
			}
		}
	}
	return out
}

// device is one of the devices of a shape.
type device struct {
	shape
	r int
}

// closedForms says of each schedule how much every device holds, and how long a step takes with
// forwards and both parts of a backward of a unit each: of the papers, and of a simulator of PyTorch's
// and Megatron's lists that shares no code with this one.
var closedForms = map[string]struct {
	held     func(d device) int
	makespan func(s shape) int
	counted  func(s shape) bool // where held is known; nil is everywhere
	timed    func(s shape) bool // where makespan is known; nil is everywhere
}{
	"gpipe": {held: func(d device) int { return d.m },
		makespan: func(s shape) int { return 3 * (s.m + s.p - 1) }},
	"1f1b": {held: func(d device) int { return min(d.m, d.p-d.r) },
		makespan: func(s shape) int { return 3 * (s.m + s.p - 1) }},
	"1f1b-2x": {held: func(d device) int { return min(d.m, 2*(d.p-1-d.r)+1) },
		makespan: func(s shape) int { return 3 * (s.m + s.p - 1) }},
	"bfs": {
		held:     func(d device) int { return d.v * d.m },
		makespan: func(s shape) int { return 3 * (s.v*s.m + s.p - 1) },
		timed:    func(s shape) bool { return s.m >= s.p || s.v == 1 },
	},
	"interleaved": {
		held:     func(d device) int { return min(d.v*d.m, (d.v-1)*d.g+2*(d.p-1-d.r)+1) },
		makespan: func(s shape) int { return 3 * (s.v*s.m + s.p - 1) },
		timed:    func(s shape) bool { return s.m >= s.p || s.v == 1 },
	},
	"interleaved-zb": {
		held:     func(d device) int { return min(d.v*d.m, (d.v-1)*d.g+d.p) },
		makespan: func(s shape) int { return 3*s.v*s.m + s.p - 1 },
		timed:    func(s shape) bool { return s.m >= s.p },
	},
	"zb-h1": {
		held:     func(d device) int { return min(d.m, d.p) },
		makespan: func(s shape) int { return 3*s.m + s.p - 1 },
		timed:    func(s shape) bool { return s.m >= s.p },
	},
	"zb-h2": {
		held:     func(d device) int { return min(d.m, 2*d.p-1) },
		makespan: func(s shape) int { return 3*s.m + s.p - 1 },
		timed:    func(s shape) bool { return s.m >= 2*s.p },
	},
	"zb-v": {
		held:     func(d device) int { return 2 * d.p },
		makespan: func(s shape) int { return 6*s.m + s.p - 1 },
		counted:  func(s shape) bool { return s.m >= 2*s.p-1 },
		timed:    func(s shape) bool { return s.m >= 2*s.p-1 },
	},
	"dualpipe-v": {
		held:     func(d device) int { return 2*d.p + 1 },
		makespan: func(s shape) int { return 6*s.m + s.p - 1 },
		counted:  func(s shape) bool { return s.m >= 2*s.p },
		timed:    func(s shape) bool { return s.m >= 2*s.p },
	},
}

func TestCountsOfSchedules(t *testing.T) {
	checks := 0
	for _, s := range schedule.Schedules() {
		want, ok := closedForms[s.Name]
		if !ok {
			t.Errorf("nothing is known of %s", s.Name)
			continue
		}
		for _, at := range shapes(s) {
			p := scheduled(t, s.Name, at.p, at.v, schedule.Config{MicroBatches: at.m})
			if want.counted == nil || want.counted(at) {
				for r, got := range schedule.InFlight(p) {
					checks++
					if want := want.held(device{at, r}); got != want {
						t.Errorf("%s of %+v, device %d: holds %d, want %d", s.Name, at, r, got, want)
					}
				}
			}
			if want.timed == nil || want.timed(at) {
				checks++
				if got := simulate(t, p, equal).Makespan(); got != time.Duration(want.makespan(at)) {
					t.Errorf("%s of %+v: takes %d, want %d", s.Name, at, got, want.makespan(at))
				}
			}
		}
	}
	t.Logf("%d checks", checks)
}

// What stages are idle for at any times, as the schedules say of themselves: for the whole step.
func TestBubblesAtAnyTimes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func(name string, most int) time.Duration {
			return time.Duration(rapid.IntRange(0, most).Draw(t, name))
		}
		p := rapid.IntRange(1, 6).Draw(t, "devices")
		m := rapid.IntRange(2*p-1, 4*p).Draw(t, "micro-batches")
		f, i := draw("f", 12), draw("i", 12)
		for _, name := range []string{"1f1b", "zb-h1", "zb-h2"} {
			most := 12
			if name == "zb-h2" {
				most = int(min(f, i))
			}
			w := draw("w of "+name, most)
			step := map[string]time.Duration{"1f1b": f + i + w, "zb-h1": max(f, i, f+i-w),
				"zb-h2": max(f, f+i-2*w)}[name]
			timeline := simulate(t, scheduled(t, name, p, 1, schedule.Config{MicroBatches: m}),
				func(a schedule.Action) time.Duration {
					return map[schedule.Kind]time.Duration{schedule.Forward: f, schedule.BackwardInput: i,
						schedule.BackwardWeight: w, schedule.Backward: i + w}[a.Kind]
				})
			work := time.Duration(m) * (f + i + w)
			if got, want := timeline.Makespan()-work, time.Duration(p-1)*step; got != want {
				t.Errorf("%s, %d devices, %d micro-batches, times %d, %d, %d: idle for %d, want %d", name,
					p, m, f, i, w, got, want)
			}
		}
	})
}

// Bubbles in one device's share of the work, at times of 10 for a forward, 14 and 6 for the parts
// of a backward, 4 devices and 16 micro-batches, with a barrier after the step: from the same
// independent simulator. Equal times flatter the schedules without bubbles.
func TestUnequalTimes(t *testing.T) {
	for _, tt := range []struct {
		name    string
		virtual int
		bubble  time.Duration
	}{
		{"1f1b", 1, 90}, {"zb-h1", 1, 54}, {"interleaved", 2, 45}, {"zb-h2", 1, 36}, {"dualpipe-v", 2, 28},
		{"interleaved-zb", 2, 27}, {"zb-v", 2, 24},
	} {
		p := scheduled(t, tt.name, 4, tt.virtual, schedule.Config{MicroBatches: 16})
		timeline := simulate(t, p, func(a schedule.Action) time.Duration {
			return map[schedule.Kind]time.Duration{schedule.Forward: 10, schedule.Backward: 20,
				schedule.BackwardInput: 14, schedule.BackwardWeight: 6}[a.Kind]
		})
		v := time.Duration(tt.virtual)
		if got := timeline.Makespan() - v*16*30; got != tt.bubble*v {
			t.Errorf("%s: a bubble of %d/%d, want %d", tt.name, got, v, tt.bubble)
		}
	}
}
