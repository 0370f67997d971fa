package schedule

import (
	"fmt"
	"strings"
	"testing"
)

// An order of computations that cannot run is a mistake of its generator. It ends, and names who
// waits for whom.
func TestMeetOfAnOrderThatCannotRun(t *testing.T) {
	f := func(stage, microBatch int) Action { return Action{Forward, stage, microBatch, 0} }
	b := func(stage, microBatch int) Action { return Action{Backward, stage, microBatch, 0} }
	for name, test := range map[string]struct {
		computations order
		want         []string
	}{
		"a backward before its forward": {
			order{{b(0, 0), f(0, 0)}, {f(1, 0), b(1, 0)}},
			[]string{"worker 0, at 1>0B0, waits for worker 1", "worker 1, at 0>1F0, waits for worker 0"},
		},
		"three in a circle": {
			order{{f(0, 0), b(0, 1), f(0, 1), b(0, 0)}, {f(1, 0), f(1, 1), b(1, 1), b(1, 0)}, {f(2, 0), f(2, 1), b(2, 1), b(2, 0)}},
			[]string{"worker 0, at 1>0B1, waits for worker 1", "worker 1, at 0>1F1, waits for worker 0"},
		},
		"nobody sends":    {order{{f(0, 0)}, {f(1, 0), b(1, 0), f(1, 1)}}, []string{"worker 1, at 1B0>0, waits for worker 0"}},
		"nobody receives": {order{{f(0, 0), f(0, 1), b(0, 0)}, {f(1, 0), b(1, 0)}}, []string{"worker 0, at 0F1>1, waits for worker 1"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := &Program{Stages: len(test.computations), MicroBatches: 2, Workers: make([][]Action, len(test.computations))}
			defer func() {
				said := fmt.Sprint(recover())
				for _, want := range append(test.want, "schedule: an order that cannot run") {
					if !strings.Contains(said, want) {
						t.Errorf("%s, want %s", said, want)
					}
				}
			}()
			p.fill(test.computations)
			p.meet(parts)
			t.Error("it can run")
		})
	}
}
