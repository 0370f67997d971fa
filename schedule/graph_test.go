package schedule_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"penstock.example/schedule"
)

// texts returns the actions of ids as one line.
func texts(g *schedule.Graph, ids []int) string {
	var words []string
	for _, id := range ids {
		words = append(words, g.Actions[id].String())
	}
	return strings.Join(words, " ")
}

func TestGraphDependencies(t *testing.T) {
	two := schedule.Config{Stages: 3, MicroBatches: 3, Recompute: exceptLast}
	shared, one, meet := two, two, two
	shared.Worker = []int{0, 0, 1}
	one.Capacity, meet.Capacity = 1, schedule.Meet
	skips := schedule.Config{Stages: 5, MicroBatches: 2, Recompute: exceptLast,
		Skips: []schedule.Edge{{From: 0, To: 4}, {From: 1, To: 4}, {From: 0, To: 3}}}
	oneSkips, meetSkips := skips, skips
	oneSkips.Capacity, meetSkips.Capacity = 1, schedule.Meet
	tests := []struct {
		config               schedule.Config
		action, deps, reason string
	}{
		{two, "0F0", "", "nothing comes before"},
		{two, "0F2", "0F1", "statistics add up in order"},
		{two, "1F2", "0>1F2 1F1", "a receive is on the worker of its stage"},
		{two, "0>1F2", "0F2>1", "what is received was sent elsewhere"},
		{two, "0F2>1", "0F2", "any number may wait on the link"},
		{two, "0R1", "0F1", "it waits for no gradient"},
		{two, "0B0", "0F0 1>0B0", "not recomputed"},
		{two, "1B2", "1F2 1R2 2>1B2 1B1", "recomputed"},
		{two, "2B2", "2F2 2R2 2B1", "no gradient reaches the last stage"},
		{two, "2>1B2", "2B2>1", ""},
		{two, "2B2>1", "2B2", ""},
		{shared, "0>1F2", "0F2>1", "both stages are on worker 0"},
		{shared, "1>2F2", "1F2>2", ""},
		{one, "0F0>1", "0F0", "nothing waits before it"},
		{one, "0F2>1", "0F2 0>1F1", "one value may wait"},
		{one, "2B1>1", "2B1 2>1B0", "gradients wait like activations"},
		{meet, "0F1", "0F0 0>1F0", "the stage goes on when its output was received"},
		{meet, "0F1>1", "0F1", "it need not wait before it sends"},
		{meet, "1>0B0", "1B0>0 0>1F2", "as after any send"},
		{skips, "4F1", "0>4F1 1>4F1 3>4F1 4F0", "two skips end here"},
		{skips, "2F1", "1>2F1 2F0", "both skips pass"},
		{skips, "0>4F1", "0F1>4", ""},
		{skips, "0F1>4", "0F1", ""},
		{oneSkips, "0F1>4", "0F1", "what waits on a skip's link has no limit"},
		{oneSkips, "0F1>1", "0F1 0>1F0", "but between neighbours"},
		{skips, "0B1", "0F1 0R1 4>0B1 3>0B1 1>0B1 0B0", "two skips begin here"},
		{skips, "0R1", "0F1", "it waits for no gradient"},
		{skips, "4>0B1", "4B1>0", ""},
		{meetSkips, "0F1>3", "0F1 0>1F1", "the link to the neighbour meets"},
		{meetSkips, "0F1>4", "0F1", "that of a skip holds any number"},
	}
	for _, tt := range tests {
		g := gpipe(t, tt.config).Graph()
		id, ok := g.IndexOf(action(t, tt.action))
		if !ok {
			t.Fatalf("%s is not in the program", tt.action)
		}
		if deps := texts(g, g.Deps[id]); deps != tt.deps {
			t.Errorf("%s needs %q, want %q: %s", tt.action, deps, tt.deps, tt.reason)
		}
	}
}

// What is not in a program of one phase is done before it.
func TestGraphOfBackward(t *testing.T) {
	g := gpipe(t, schedule.Config{Stages: 3, MicroBatches: 3,
		Recompute: exceptLast}).Part(schedule.BackwardOnly).Graph()
	for text, want := range map[string]string{"1B2": "1R2 2>1B2 1B1", "1R2": ""} {
		id, _ := g.IndexOf(action(t, text))
		if got := texts(g, g.Deps[id]); got != want {
			t.Errorf("%s needs %q, want %q", text, got, want)
		}
	}
}

// A backward in two parts: the second needs the first, and the gradients of the micro-batch before.
func TestGraphOfParts(t *testing.T) {
	g := parse(t, "program whole stages=2 micro-batches=4\n"+
		"worker 0: 0F0 0F0>1 0F1 0F1>1 0F2 0F2>1 0F3 0F3>1 1>0B0 0I0 1>0B1 0I1 0W0 0W1 1>0B2 0B2 1>0B3 "+
		"0I3 0W3\n"+
		"worker 1: 0>1F0 1F0 1I0 1B0>0 0>1F1 1F1 1I1 1B1>0 1W0 1W1 0>1F2 1F2 1B2 1B2>0 0>1F3 1F3 1B3 "+
		"1B3>0\n").Graph()
	for _, tt := range []struct{ action, deps string }{
		{"0I0", "0F0 1>0B0"},
		{"0I1", "0F1 1>0B1 0I0"},
		{"0W0", "0I0"},
		{"0W1", "0I1 0W0"},
		{"0B2", "0F2 1>0B2 0W1"},
		{"0I3", "0F3 1>0B3 0B2"},
		{"0W3", "0I3 0B2"},
		{"1B1>0", "1I1"},
		{"1B2>0", "1B2"},
	} {
		id, _ := g.IndexOf(action(t, tt.action))
		if got := texts(g, g.Deps[id]); got != tt.deps {
			t.Errorf("%s needs %q, want %q", tt.action, got, tt.deps)
		}
	}
}

func TestInFlight(t *testing.T) {
	const one = "program whole stages=1 micro-batches=3\nworker 0: "
	for _, tt := range []struct {
		name, text string
		want       []int
	}{
		{"GPipe keeps all", one + "0F0 0F1 0F2 0B0 0B1 0B2\n", []int{3}},
		{"except last: 0B0 frees its graph before 0R1 makes one", one + "0F0 0F1 0F2 0B0 0R1 0B1 0R2 0B2\n",
			[]int{1}},
		{"recomputed far ahead", one + "0F0 0F1 0F2 0R0 0R1 0R2 0B0 0B1 0B2\n", []int{3}},
		{"one forward one backward", "program whole stages=2 micro-batches=3\n" +
			"worker 0: 0F0 0F0>1 0F1 0F1>1 1>0B0 0B0 0F2 0F2>1 1>0B1 0B1 1>0B2 0B2\n" +
			"worker 1: 0>1F0 1F0 1B0 1B0>0 0>1F1 1F1 1B1 1B1>0 0>1F2 1F2 1B2 1B2>0\n", []int{2, 1}},
		{"backward begins with all held", "program backward-only stages=1 micro-batches=3\n" +
			"worker 0: 0B0 0R1 0B1 0R2 0B2\n", []int{1}},
		{"parts: a graph is held until the second has ended", one + "0F0 0I0 0F1 0I1 0F2 0I2 0W0 0W1 0W2\n",
			[]int{3}},
		{"parts of what is recomputed", one + "0F0 0F1 0F2 0R0 0I0 0R1 0I1 0W0 0W1 0R2 0I2 0W2\n", []int{2}},
	} {
		if diff := cmp.Diff(tt.want, schedule.InFlight(parse(t, tt.text))); diff != "" {
			t.Errorf("%s, -want +got:\n%s", tt.name, diff)
		}
	}
}

// The stages of a worker are not all at their most at the same time.
func TestInFlightOfAWorker(t *testing.T) {
	p := parse(t, "program whole stages=2 micro-batches=2\nworker 0: 0F0 0F0>1 0>1F0 1F0 1B0 1B0>0 0F1 "+
		"0F1>1 1>0B0 0B0 0>1F1 1F1 1B1 1B1>0 1>0B1 0B1\nworker 1:\n")
	if got := schedule.InFlight(p); !slices.Equal(got, []int{2, 0}) {
		t.Errorf("%v, want 2 and 0", got)
	}
}
