package schedule_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"penstock.example/schedule"
)

// violations returns what the error lists; it is no other error.
func violations(t *testing.T, err error) schedule.Violations {
	t.Helper()
	var vs schedule.Violations
	if err != nil && !errors.As(err, &vs) {
		t.Fatalf("%v is a %T", err, err)
	}
	if err != nil && len(vs) == 0 {
		t.Fatalf("%v lists no violation", err)
	}
	return vs
}

func TestCheck(t *testing.T) {
	const (
		whole   = "program whole stages=2 micro-batches=2\n"
		meet    = "program whole stages=2 micro-batches=2 capacity=meet\n"
		w0      = "worker 0: 0F0 0F0>1 0F1 0F1>1 1>0B0 0B0 1>0B1 0B1\n"
		w1      = "worker 1: 0>1F0 1F0 0>1F1 1F1 1B0 1B0>0 1B1 1B1>0\n"
		forward = "program forward-only stages=3 micro-batches=1 skips=0>2\n"
		one     = "program whole stages=1 micro-batches=2\nworker 0: 0F0 0F1 "
		reduce  = "program backward-only stages=2 micro-batches=2\nworker 0: 1>0B0 0B0 1>0B1 0B1 " +
			"0RED\nworker 1: "
	)
	for _, tt := range []struct {
		name string
		text string
		want []string // violations
	}{
		{"valid", whole + w0 + w1 + "worker 2:\n", nil},
		{"missing", whole + w0 + "worker 1: 0>1F0 1F0 1F1 1B0 1B0>0 1B1 1B1>0\n", []string{
			"missing: 0>1F1 is on no worker",
		}},
		{"undeclared skip", "program forward-only stages=3 micro-batches=1\n" +
			"worker 0: 0F0 0F0>1 0>1F0 1F0 1F0>2 1>2F0 0>2F0 2F0\n", []string{
			"unknown: worker 0, action 7, 0>2F0: activations move from a stage to the next or along a " +
				"declared skip, and gradients back",
		}},
		{"declared skip", "program whole stages=3 micro-batches=1 skips=0>2\n" +
			"worker 0: 0F0 0F0>1 0F0>2 0>1F0 1F0 1F0>2 1>2F0 0>2F0 2F0 2B0 2B0>1 2B0>0 2>0B0 2>1B0 1B0 " +
			"1B0>0 1>0B0 0B0\n",
			nil},
		{"skip after its use", forward + "worker 0: 0F0 0F0>1 0F0>2 0>1F0 1F0 1F0>2 1>2F0 2F0 0>2F0\n",
			[]string{"order: worker 0, action 8, 2F0: it comes before 0>2F0, which it needs"}},
		{"deadlock on a link that holds one output", "program whole stages=2 micro-batches=4 capacity=1\n" +
			"worker 0: 0F0 0F0>1 0F1 0F1>1 0F2 0F2>1 0F3 0F3>1 1>0B0 0B0 1>0B1 0B1 1>0B2 0B2 1>0B3 0B3\n" +
			"worker 1: 0>1F0 1F0 1B0 1B0>0 0>1F1 1F1 1B1 1B1>0 0>1F2 1F2 1B2 1B2>0 0>1F3 1F3 1B3 1B3>0\n",
			[]string{
				"deadlock: worker 0, action 8, 0F3>1: it waits for 0>1F2 on worker 1, which is stuck at " +
					"1B1>0, action 8",
				"deadlock: worker 1, action 8, 1B1>0: it waits for 1>0B0 on worker 0, which is stuck at " +
					"0F3>1, action 8",
			}},
		{"deadlock where sends meet", meet + w0 + "worker 1: 0>1F0 1F0 1B0 1B0>0 0>1F1 1F1 1B1 1B1>0\n",
			[]string{
				"deadlock: worker 0, action 5, 1>0B0: it waits for 0>1F1 on worker 1, which is stuck at " +
					"0>1F1, action 5",
				"deadlock: worker 1, action 5, 0>1F1: it waits for 1>0B0 on worker 0, which is stuck at " +
					"1>0B0, action 5",
			}},
		{"the same where they buffer", whole + w0 + "worker 1: 0>1F0 1F0 1B0 1B0>0 0>1F1 1F1 1B1 1B1>0\n",
			nil},
		{"links within a worker hold what they are given",
			"program whole stages=2 micro-batches=2 capacity=meet\n" +
				"worker 0: 0F0 0F0>1 0F1 0F1>1 0>1F0 1F0 0>1F1 1F1 1B0 1B0>0 1B1 1B1>0 1>0B0 0B0 1>0B1 0B1\n",
			nil},
		{"other phase", "program forward-only stages=1 micro-batches=1\nworker 0: 0F0 0R0\n",
			[]string{
				"unknown: worker 0, action 2, 0R0: not part of a forward-only program",
			}},
		{"backward in two parts", whole + "worker 0: 0F0 0F0>1 0F1 0F1>1 1>0B0 0I0 1>0B1 0I1 0W0 0W1\n" +
			"worker 1: 0>1F0 1F0 1I0 1B0>0 0>1F1 1F1 1B1 1W0 1B1>0\n", []string{
			"deadlock: worker 0, action 7, 1>0B1: it waits for 1B1>0 on worker 1, which is stuck at 1B1, " +
				"action 7",
			"order: worker 1, action 7, 1B1: it comes before 1W0, which it needs",
		}},
		{"half a backward", one + "0I0 0W1\n", []string{
			"missing: 0W0 is on no worker", "missing: 0I1 is on no worker",
		}},
		{"a backward whole and in parts", one + "0B0 0W0 0B1\n", []string{
			"duplicate: worker 0, action 3, 0B0: it is there in parts, too",
		}},
		{"no reduction", reduce + "1B0 1B0>0 1B1 1B1>0\n", []string{"missing: 1RED is on no worker"}},
		{"an early reduction", reduce + "1I0 1B0>0 1I1 1B1>0 1W0 1RED 1W1\n", []string{
			"order: worker 1, action 6, 1RED: it comes before 1W1, which it needs",
		}},
		{"everything at once", whole + "worker 0: 0F1 0F1>1 0F0 0F0>1 1>0B0 0B0 1>0B1\n" +
			"worker 1: 0>1F0 1F0 0>1F1 1F1 1B0 1B0>0 1B0 9F9 0B1\n", []string{
			"duplicate: worker 1, action 7, 1B0: it is there already: worker 1, action 5",
			"unknown: worker 1, action 8, 9F9: there are 2 stages",
			"placement: worker 1, action 9, 0B1: stage 0 is on worker 0",
			"missing: 1B1 is on no worker",
			"missing: 1B1>0 is on no worker",
			"order: worker 0, action 1, 0F1: it comes before 0F0, which it needs",
			"deadlock: worker 1, action 1, 0>1F0: it waits for 0F0>1 on worker 0, which is stuck at 0F1, " +
				"action 1",
		}},
	} {
		p := parse(t, tt.text)
		var got []string
		for _, v := range violations(t, schedule.Check(p)) {
			got = append(got, v.Error())
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s, -want +got:\n%s", tt.name, diff)
		}
	}
}

// A header that promises more than there is costs no memory, and what is wrong throughout is said a
// hundred times.
func TestCheckOfLargePrograms(t *testing.T) {
	p := parse(t, "program whole stages=4000 micro-batches=4000\nworker 0: 0F0\n")
	want := "missing: 1 actions in all, want at least one for each of 4000 stages and 4000 micro-batches"
	if vs := violations(t, schedule.Check(p)); len(vs) != 1 || vs[0].Error() != want {
		t.Errorf("%v, want %s", vs, want)
	}
	p = parse(t, "program whole stages=2 micro-batches=4000\nworker 0:\n")
	if vs := violations(t, schedule.Check(p)); len(vs) != 100 {
		t.Errorf("%d violations, want 100", len(vs))
	}
}

// Actions that have no text form, and so can only be made in code.
func TestCheckMalformedActions(t *testing.T) {
	const moves = "activations move from a stage to the next or along a declared skip, and gradients back"
	for _, tt := range []struct {
		action schedule.Action
		want   string
	}{
		{schedule.Action{Kind: 11}, "no such kind of action"},
		{schedule.Action{Kind: schedule.Forward, Stage: -1}, "there are 2 stages"},
		{schedule.Action{Kind: schedule.Forward, MicroBatch: -1}, "there are 2 micro-batches"},
		{schedule.Action{Kind: schedule.ReceiveActivation, Stage: 0, Peer: 1}, moves},
		{schedule.Action{Kind: schedule.SendGradient, Stage: 0, Peer: 1}, moves},
		{schedule.Action{Kind: schedule.Backward, Stage: 1, Peer: 1},
			"other stage 1 for what is not a transfer"},
		{schedule.Action{Kind: schedule.Reduce, Stage: 1, MicroBatch: 1},
			"micro-batch 1 for a reduction, which is of all"},
	} {
		p := gpipe(t, schedule.Config{Stages: 2, MicroBatches: 2})
		p.Workers[1] = append(p.Workers[1], tt.action)
		vs := violations(t, schedule.Check(p))
		if !slices.ContainsFunc(vs, func(v schedule.Violation) bool {
			return v.Rule == "unknown" &&
				v.Reason == tt.want
		}) {
			t.Errorf("%+v was not reported as %s, but %v", tt.action, tt.want, vs)
		}
	}
}

func ExampleCheck() {
	p, err := schedule.Parse(`
		program whole stages=2 micro-batches=2
		worker 0: 0F0 0F0>1 1>0B0 0B0 0F1 0F1>1 1>0B1 0B1
		worker 1: 0>1F0 1F0 0>1F1 1F1 1B0 1B0>0
	`)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(schedule.Check(p))
	// Output:
	// schedule: the program cannot run:
	// 	missing: 1B1 is on no worker
	// 	missing: 1B1>0 is on no worker
	// 	deadlock: worker 0, action 3, 1>0B0: it waits for 1B0>0 on worker 1, which is stuck at 0>1F1, action 3
	// 	deadlock: worker 1, action 3, 0>1F1: it waits for 0F1>1 on worker 0, which is stuck at 1>0B0, action 3
}
