package command

import (
	"io"
	"slices"
	"testing"

	"github.com/spf13/pflag"

	noerr "penstock.example/internal/must"
	"penstock.example/internal/progress"
	"penstock.example/plan"
)

// What links take counts in the plan of a model: here a second from device to device, for a step's
// forward and backward.
func TestPlansOfModelsCountLinks(t *testing.T) {
	// Of three stages in two processes two are in one, and values go over one link.
	f := planFlags{batch: 16, chunks: 2, stages: 3, schedules: []string{"gpipe"},
		measureFlags: measureFlags{modelFlags: modelFlags{modelName: "mlp"}, optimizer: "sgd", threads: 1,
			repeats: 1,
			seed:    1}}
	noerr.Do(t, f.check(pflag.NewFlagSet("", 0)))
	m := noerr.Get(f.fitModel(nil))(t)
	w := planWorld{Processes: 2, Cores: 1, Stages: 3}
	show := progress.New(io.Discard, "planning", "")
	defer show.End()
	f.config.Threads, f.config.Machine = []int{1}, w.machine([]int{1}, plan.Link{Latency: 1e9})
	found := noerr.Get(f.planModel(t.Context(), show, m))(t)
	if step := found.Best.Step.Seconds(); step < 2 || step > 3 ||
		!slices.Equal(found.Best.Devices, []string{"process 0:0", "process 0:1", "process 1"}) {
		t.Errorf("a step of %v s on %q, want two seconds on two parts of the first process and the second",
			step, found.Best.Devices)
	}
}
