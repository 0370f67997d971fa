package plan

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"penstock.example/internal/must"
)

// What more of something gains is what a search with more of it finds.
func TestExplainGainsWhatASearchFinds(t *testing.T) {
	p := Profile{[]Costs{{Chain: seeded(4, 8)}}}
	machine := func(n int, bandwidth float64) Machine {
		m := devices(n, 0)
		m.Links = []Link{{Latency: time.Microsecond, Bandwidth: bandwidth}}
		return m
	}
	w := Options{MicroBatches: []int{4}, Devices: 3, Limit: 1500, Schedules: []string{"1f1b"}}
	best := search(t, p, machine(3, 2e6), w)
	e := must.Get(Explain(context.Background(), p, machine(3, 2e6), w, best.Best))(t)
	four, more := w, w
	four.Devices, more.Limit = 4, 1650
	for _, want := range []Gain{
		{"one more device", search(t, p, machine(4, 2e6), four).Best.Step},
		{"10 % more bytes", search(t, p, machine(3, 2e6), more).Best.Step},
		{"twice the bandwidth", search(t, p, machine(3, 4e6), w).Best.Step},
	} {
		if !slices.Contains(e.Gains, want) {
			t.Errorf("%+v lacks %+v", e.Gains, want)
		}
	}
	if len(e.Gains) != 3 || slices.Max(best.Best.Busy) != best.Best.Busy[e.Slowest] ||
		slices.Max(best.Best.Peaks) != best.Best.Peaks[e.Fullest] {
		t.Errorf("%+v of %+v", e, best.Best)
	}
	// Where no link has a bandwidth, and no device a limit, more of it is no question.
	free := w
	free.Limit = 0
	best = search(t, p, machine(3, 0), free)
	if e, err := Explain(context.Background(), p, machine(3, 0), free, best.Best); err != nil ||
		len(e.Gains) != 1 {
		t.Errorf("%+v, %v; want what one more device gains", e, err)
	}
}

// A unit that is run again takes more of its device's time, and holds less of its memory.
func TestExplainCountsWhatIsRecomputed(t *testing.T) {
	c := plainChain([]float64{100, 100, 100}, 1000)
	c.Layers[0].Saved, c.Layers[0].Forward, c.Layers[0].ForwardNoGrad = 100_000, 90, 90
	p, w := Profile{[]Costs{{Chain: c}}},
		Options{MicroBatches: []int{4}, Devices: 1, Limit: 210_000, Schedules: []string{"gpipe"}}
	best := search(t, p, devices(1, 0), w)
	again := 0
	for _, s := range best.Best.Planned.Stages {
		again += s.Recomputed()
	}
	e := must.Get(Explain(context.Background(), p, devices(1, 0), w, best.Best))(t)
	// 4 micro-batches of 290, 300 and 300, and what is run again of the first.
	all := float64(4*(290+300+300) + 90*again)
	if want := (4*290 + 90*float64(again)) / all; again == 0 || e.Slow[0].Unit != 0 ||
		e.Slow[0].Part < want-0.01 || e.Slow[0].Part > want+0.01 {
		t.Errorf("%d forwards are run again: %+v, want %.3f of the first", again, e.Slow, want)
	}
	saved := float64((4 - again) * 100_000)
	if want := saved / (saved + 4*2*1000); e.Full[0].Unit != 0 || e.Full[0].Part < want-0.05 ||
		e.Full[0].Part > want+0.05 {
		t.Errorf("%d forwards are run again: %+v, want %.3f of the first", again, e.Full, want)
	}
}

// What is searched for an explanation is told with what there is more of, and a device's name or number
// of threads is no reason to have none.
func TestExplainTellsWhatItTries(t *testing.T) {
	p := Profile{[]Costs{{Chain: seeded(4, 5)}}}
	var told []string
	w := Options{MicroBatches: []int{4}, Devices: 1, Limit: 5000, Schedules: []string{"gpipe"},
		Progress: func(schedule string, done, all int) {
			told = append(told, fmt.Sprint(schedule, " ", done, " of ", all))
		}}
	m := Machine{Devices: []Device{{Name: "one more", Threads: 1}}}
	best := search(t, p, m, w)
	told = nil
	if _, err := Explain(context.Background(), p, m, w, best.Best); err != nil {
		t.Fatal(err)
	}
	if want := []string{"gpipe, with one more device 0 of 1",
		"gpipe, with 10 % more bytes 0 of 1"}; !slices.Equal(told, want) {
		t.Errorf("%q is told, want %q", told, want)
	}
	m.Devices[0].Threads = maxThreads
	if e, err := Explain(context.Background(), p, m, w, best.Best); err != nil || len(e.Gains) != 1 {
		t.Errorf("%+v, %v; want what more bytes gain, as no machine has more threads", e, err)
	}
}
