package plan_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"penstock.example/plan"
)

// Bytes are said as a limit is given, and for reading.
func TestShortagesInWords(t *testing.T) {
	short := plan.MemoryError{Stages: []plan.Shortage{
		{Stage: 0, Others: []int{2, 4}, Device: "cpu:0", Limit: 3 << 20, Least: 3415040,
			SetBy: `layer "fc"`}, {Stage: 1, Device: "cpu:1", Limit: 10, Least: 1023}}}
	const want = `stages 0, 2 and 4 on cpu:0 need 3415040 bytes (3.3 MiB), set by layer "fc", and may ` +
		`have 3145728 bytes (3.0 MiB); stage 1 on cpu:1 needs 1023 bytes and may have 10 bytes`
	if got := short.Shortages(); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	if got := short.Error(); got != "pipe: "+want+"; use a limit of at least 3415040 bytes (3.3 MiB), "+
		"more chunks, or more stages" {
		t.Error(got)
	}
}

// An update is added to what its device lacks in a step, or listed by itself, in the order of
// stages; what fits is not.
func TestWithUpdates(t *testing.T) {
	step := plan.Shortage{Stage: 1, Device: "cpu:1", Limit: 10, Least: 20, SetBy: `layer "a"`}
	update := func(device string, bytes int64, stages ...int) plan.Update {
		return plan.Update{Device: device, Stages: stages, Limit: 10, Bytes: bytes}
	}
	by := "the optimizer's update"
	for _, row := range []struct {
		reason  string
		step    []plan.Shortage
		updates []plan.Update
		want    []plan.Shortage
	}{
		{"all fits", nil, []plan.Update{update("cpu:0", 10, 0),
			{Device: "cpu:1", Stages: []int{1}, Bytes: 99}}, nil},
		{"the step alone", []plan.Shortage{step},
			[]plan.Update{update("cpu:0", 3, 0), update("cpu:1", 20, 1)}, []plan.Shortage{step}},
		{"the update alone", nil, []plan.Update{update("cpu:0", 11, 0, 2), update("cpu:1", 9, 1)},
			[]plan.Shortage{{Stage: 0, Others: []int{2}, Device: "cpu:0", Limit: 10, Least: 11, SetBy: by}}},
		{"both, the update needs more", []plan.Shortage{step},
			[]plan.Update{update("cpu:0", 12, 0), update("cpu:1", 21, 1)},
			[]plan.Shortage{{Stage: 0, Others: []int{}, Device: "cpu:0", Limit: 10, Least: 12, SetBy: by},
				{Stage: 1, Device: "cpu:1", Limit: 10, Least: 21, SetBy: by}}},
	} {
		var e *plan.MemoryError
		if row.step != nil {
			e = &plan.MemoryError{Stages: row.step}
		}
		got := e.WithUpdates(row.updates)
		if (got == nil) != (row.want == nil) || got != nil && cmp.Diff(row.want, got.Stages) != "" {
			t.Errorf("%s: got %+v, want %+v", row.reason, got, row.want)
		}
		if e != nil && e.Stages[0].Least != 20 {
			t.Errorf("%s: the step's own error has changed", row.reason)
		}
	}
}
