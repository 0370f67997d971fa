package schedule_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"penstock.example/schedule"
)

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
		{"parts of what is recomputed", one + "0F0 0F1 0F2 0R0 0I0 0R1 0I1 0W0 0W1 0R2 0I2 0W2\n",
			[]int{2}},
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
