package schedule_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"penstock.example/schedule"
)

func TestCheck(t *testing.T) {
	const (
		whole = "program whole stages=2 micro-batches=2\n"
		w0    = "worker 0: 0F0 0F0>1 0F1 0F1>1 1>0B0 0B0 1>0B1 0B1\n"
		w1    = "worker 1: 0>1F0 1F0 0>1F1 1F1 1B0 1B0>0 1B1 1B1>0\n"
	)
	tests := []struct {
		name   string
		text   string
		limits schedule.Limits
		want   []string // violations
	}{
		{name: "valid", text: whole + w0 + w1},
		{name: "an idle worker does no harm", text: whole + w0 + w1 + "worker 2:\n"},
		{name: "one forward one backward",
			text: "program whole stages=2 micro-batches=3\n" +
				"worker 0: 0F0 0F0>1 0F1 0F1>1 1>0B0 0B0 0F2 0F2>1 1>0B1 0B1 1>0B2 0B2\n" +
				"worker 1: 0>1F0 1F0 1B0 1B0>0 0>1F1 1F1 1B1 1B1>0 0>1F2 1F2 1B2 1B2>0\n"},
		{name: "no workers", text: "program forward-only stages=1 micro-batches=2\n", want: []string{
			"missing: 0F0 is on no worker",
			"missing: 0F1 is on no worker",
		}},
		{name: "missing", text: whole + w0 + "worker 1: 0>1F0 1F0 1F1 1B0 1B0>0 1B1 1B1>0\n", want: []string{
			"missing: 0>1F1 is on no worker",
		}},
		{name: "duplicate", text: whole + w0 + "worker 1: 0>1F0 1F0 0>1F1 1F1 1B0 1B0>0 1B1 1B1>0 1B1\n", want: []string{
			"duplicate: worker 1, action 9, 1B1: it is there already: worker 1, action 7",
		}},
		{name: "unknown",
			text: whole + w0 + "worker 1: 0>1F0 1F0 0>1F1 1F1 1B0 1B0>0 1B1 1B1>0 2F0 1F2\n", want: []string{
				"unknown: worker 1, action 9, 2F0: there are 2 stages",
				"unknown: worker 1, action 10, 1F2: there are 2 micro-batches",
			}},
		{name: "undeclared skip",
			text: "program forward-only stages=3 micro-batches=1\nworker 0: 0F0 0F0>1 0>1F0 1F0 1F0>2 1>2F0 0>2F0 2F0\n", want: []string{
				"unknown: worker 0, action 7, 0>2F0: activations move from a stage to the next or along a declared skip",
			}},
		{name: "undeclared skip back",
			text: "program backward-only stages=3 micro-batches=1\nworker 0: 2B0 2B0>1 2>1B0 1B0 1B0>0 2>0B0 1>0B0 0B0\n", want: []string{
				"unknown: worker 0, action 6, 2>0B0: gradients move from a stage to the one before or back along a declared skip",
			}},
		{name: "declared skip",
			text: "program whole stages=3 micro-batches=1 skips=0>2\nworker 0: 0F0 0F0>1 0F0>2 0>1F0 1F0 1F0>2 1>2F0 0>2F0 2F0 2B0 2B0>1 2B0>0 2>0B0 2>1B0 1B0 1B0>0 1>0B0 0B0\n"},
		{name: "a skip is declared between two stages, not from one",
			text: "program forward-only stages=4 micro-batches=1 skips=0>2\nworker 0: 0F0 0F0>1 0F0>2 0>1F0 1F0 1F0>2 0>2F0 1>2F0 2F0 2F0>3 0>3F0 2>3F0 3F0\n", want: []string{
				"unknown: worker 0, action 11, 0>3F0: activations move from a stage to the next or along a declared skip",
			}},
		{name: "missing skip",
			text: "program whole stages=3 micro-batches=1 skips=0>2\nworker 0: 0F0 0F0>1 0F0>2 0>1F0 1F0 1F0>2 1>2F0 2F0 2B0 2B0>1 2B0>0 2>1B0 1B0 1B0>0 1>0B0 0B0\n", want: []string{
				"missing: 2>0B0 is on no worker",
				"missing: 0>2F0 is on no worker",
			}},
		{name: "skip after its use",
			text: "program forward-only stages=3 micro-batches=1 skips=0>2\nworker 0: 0F0 0F0>1 0F0>2 0>1F0 1F0 1F0>2 1>2F0 2F0 0>2F0\n", want: []string{
				"order: worker 0, action 8, 2F0: it comes before 0>2F0, which it needs",
			}},
		{name: "skip between workers",
			text: "program forward-only stages=3 micro-batches=1 skips=0>2\nworker 0: 1>2F0 0>2F0 2F0\nworker 1: 0F0 0F0>1 0F0>2 0>1F0 1F0 1F0>2\n"},
		{name: "deadlock along a skip",
			text: "program whole stages=3 micro-batches=2 skips=0>2\n" +
				"worker 0: 0F0 0F0>1 0F0>2 2>0B0 1>0B0 0B0 0F1 0F1>1 0F1>2 2>0B1 1>0B1 0B1\n" +
				"worker 1: 0>1F0 1F0 1F0>2 0>1F1 1F1 1F1>2 2>1B0 1B0 1B0>0 2>1B1 1B1 1B1>0\n" +
				"worker 2: 0>2F0 1>2F0 2F0 0>2F1 1>2F1 2F1 2B0 2B0>1 2B0>0 2B1 2B1>1 2B1>0\n", want: []string{
				"deadlock: worker 0, action 4, 2>0B0: it waits for 2B0>0 on worker 2, which is stuck at 0>2F1, action 4",
				"deadlock: worker 1, action 4, 0>1F1: it waits for 0F1>1 on worker 0, which is stuck at 2>0B0, action 4",
				"deadlock: worker 2, action 4, 0>2F1: it waits for 0F1>2 on worker 0, which is stuck at 2>0B0, action 4",
			}},
		{name: "receive of what nobody sends",
			text: "program forward-only stages=2 micro-batches=1\nworker 0: 0F0\nworker 1: 0>1F0 1F0\n", want: []string{
				"missing: 0F0>1 is on no worker",
			}},
		{name: "send before it is made",
			text: "program forward-only stages=2 micro-batches=1\nworker 0: 0F0>1 0F0\nworker 1: 0>1F0 1F0\n", want: []string{
				"order: worker 0, action 1, 0F0>1: it comes before 0F0, which it needs",
			}},
		{name: "sends the wrong way",
			text: "program forward-only stages=2 micro-batches=1\nworker 0: 0F0 0F0>1 1>0B0\nworker 1: 0>1F0 1F0 1B0>0\n", want: []string{
				"unknown: worker 0, action 3, 1>0B0: not part of a forward-only program",
				"unknown: worker 1, action 3, 1B0>0: not part of a forward-only program",
			}},
		{name: "three outputs wait, two may",
			text: "program whole stages=2 micro-batches=3 capacity=2\n" +
				"worker 0: 0F0 0F0>1 0F1 0F1>1 0F2 0F2>1 1>0B0 0B0 1>0B1 0B1 1>0B2 0B2\n" +
				"worker 1: 0>1F0 1F0 0>1F1 1F1 0>1F2 1F2 1B0 1B0>0 1B1 1B1>0 1B2 1B2>0\n"},
		{name: "deadlock on a link that holds one output",
			text: "program whole stages=2 micro-batches=4 capacity=1\n" +
				"worker 0: 0F0 0F0>1 0F1 0F1>1 0F2 0F2>1 0F3 0F3>1 1>0B0 0B0 1>0B1 0B1 1>0B2 0B2 1>0B3 0B3\n" +
				"worker 1: 0>1F0 1F0 1B0 1B0>0 0>1F1 1F1 1B1 1B1>0 0>1F2 1F2 1B2 1B2>0 0>1F3 1F3 1B3 1B3>0\n", want: []string{
				"deadlock: worker 0, action 8, 0F3>1: it waits for 0>1F2 on worker 1, which is stuck at 1B1>0, action 8",
				"deadlock: worker 1, action 8, 1B1>0: it waits for 1>0B0 on worker 0, which is stuck at 0F3>1, action 8",
			}},
		{name: "deadlock where sends meet",
			text: "program whole stages=2 micro-batches=2\n" +
				"worker 0: 0F0 0F0>1 0F1 0F1>1 1>0B0 0B0 1>0B1 0B1\n" +
				"worker 1: 0>1F0 1F0 1B0 1B0>0 0>1F1 1F1 1B1 1B1>0\n",
			limits: schedule.Limits{Meet: true}, want: []string{
				"deadlock: worker 0, action 5, 1>0B0: it waits for 0>1F1 on worker 1, which is stuck at 0>1F1, action 5",
				"deadlock: worker 1, action 5, 0>1F1: it waits for 1>0B0 on worker 0, which is stuck at 1>0B0, action 5",
			}},
		{name: "the same where they buffer",
			text: "program whole stages=2 micro-batches=2\n" +
				"worker 0: 0F0 0F0>1 0F1 0F1>1 1>0B0 0B0 1>0B1 0B1\n" +
				"worker 1: 0>1F0 1F0 1B0 1B0>0 0>1F1 1F1 1B1 1B1>0\n"},
		{name: "links within a worker hold what they are given",
			text: "program whole stages=2 micro-batches=2 capacity=meet\nworker 0: 0F0 0F0>1 0F1 0F1>1 0>1F0 1F0 0>1F1 1F1 1B0 1B0>0 1B1 1B1>0 1>0B0 0B0 1>0B1 0B1\n"},
		{name: "other phase",
			text: "program forward-only stages=1 micro-batches=1\nworker 0: 0F0 0R0 0B0\n", want: []string{
				"unknown: worker 0, action 2, 0R0: not part of a forward-only program",
				"unknown: worker 0, action 3, 0B0: not part of a forward-only program",
			}},
		{name: "forward in backward",
			text: "program backward-only stages=1 micro-batches=1\nworker 0: 0F0 0B0\n", want: []string{
				"unknown: worker 0, action 1, 0F0: not part of a backward-only program",
			}},
		{name: "placement",
			text: whole + "worker 0: 0F0 0F0>1 0F1 0F1>1 1>0B0 0B0 1>0B1\n" + "worker 1: 0>1F0 1F0 0>1F1 1F1 1B0 1B0>0 1B1 1B1>0 0B1\n", want: []string{
				"placement: worker 1, action 9, 0B1: stage 0 is on worker 0",
			}},
		{name: "descending backward",
			text: whole + "worker 0: 0F0 0F0>1 0F1 0F1>1 1>0B0 1>0B1 0B1 0B0\n" + w1, want: []string{
				"order: worker 0, action 7, 0B1: it comes before 0B0, which it needs",
			}},
		{name: "descending forward",
			text: "program forward-only stages=1 micro-batches=2\nworker 0: 0F1 0F0\n", want: []string{
				"order: worker 0, action 1, 0F1: it comes before 0F0, which it needs",
			}},
		{name: "recomputed too late",
			text: "program whole stages=1 micro-batches=1\nworker 0: 0F0 0B0 0R0\n", want: []string{
				"order: worker 0, action 2, 0B0: it comes before 0R0, which it needs",
			}},
		{name: "deadlock",
			text: "program whole stages=2 micro-batches=2\n" +
				"worker 0: 0F0 0F0>1 1>0B0 0B0 0F1 0F1>1 1>0B1 0B1\n" + w1, want: []string{
				"deadlock: worker 0, action 3, 1>0B0: it waits for 1B0>0 on worker 1, which is stuck at 0>1F1, action 3",
				"deadlock: worker 1, action 3, 0>1F1: it waits for 0F1>1 on worker 0, which is stuck at 1>0B0, action 3",
			}},
		{name: "a worker that waits for itself by way of another",
			text: "program forward-only stages=3 micro-batches=1\nworker 0: 1>2F0 2F0 0F0 0F0>1\nworker 1: 0>1F0 1F0 1F0>2\n", want: []string{
				"deadlock: worker 0, action 1, 1>2F0: it waits for 1F0>2 on worker 1, which is stuck at 0>1F0, action 1",
				"deadlock: worker 1, action 1, 0>1F0: it waits for 0F0>1 on worker 0, which is stuck at 1>2F0, action 1",
			}},
		{name: "backward in two parts",
			text: "program whole stages=2 micro-batches=2\n" +
				"worker 0: 0F0 0F0>1 0F1 0F1>1 1>0B0 0I0 1>0B1 0I1 0W0 0W1\n" +
				"worker 1: 0>1F0 1F0 1I0 1B0>0 0>1F1 1F1 1B1 1W0 1B1>0\n", want: []string{
				"order: worker 1, action 7, 1B1: it comes before 1W0, which it needs",
			}},
		{name: "gradients of the weights before those of the input",
			text: "program whole stages=1 micro-batches=1\nworker 0: 0F0 0W0 0I0\n", want: []string{
				"order: worker 0, action 2, 0W0: it comes before 0I0, which it needs",
			}},
		{name: "gradients of the weights descending",
			text: "program whole stages=1 micro-batches=2\nworker 0: 0F0 0F1 0I0 0I1 0W1 0W0\n", want: []string{
				"order: worker 0, action 5, 0W1: it comes before 0W0, which it needs",
			}},
		{name: "gradients of the input descending",
			text: "program whole stages=1 micro-batches=2\nworker 0: 0F0 0F1 0I1 0I0 0W0 0W1\n", want: []string{
				"order: worker 0, action 3, 0I1: it comes before 0I0, which it needs",
			}},
		{name: "half a backward",
			text: "program whole stages=1 micro-batches=2\nworker 0: 0F0 0F1 0I0 0W1\n", want: []string{
				"missing: 0W0 is on no worker",
				"missing: 0I1 is on no worker",
			}},
		{name: "a backward whole and in parts",
			text: "program whole stages=1 micro-batches=1\nworker 0: 0F0 0I0 0B0 0W0\n", want: []string{
				"duplicate: worker 0, action 2, 0I0: it is a part of 0B0: worker 0, action 3",
				"duplicate: worker 0, action 4, 0W0: it is a part of 0B0: worker 0, action 3",
			}},
		{name: "a backward whole, and the gradients of the weights again",
			text: "program whole stages=1 micro-batches=1\nworker 0: 0F0 0B0 0W0\n", want: []string{
				"duplicate: worker 0, action 3, 0W0: it is a part of 0B0: worker 0, action 2",
			}},
		{name: "parts in forward",
			text: "program forward-only stages=1 micro-batches=1\nworker 0: 0F0 0I0 0W0\n", want: []string{
				"unknown: worker 0, action 2, 0I0: not part of a forward-only program",
				"unknown: worker 0, action 3, 0W0: not part of a forward-only program",
			}},
		{name: "received in another order than sent",
			text:   "program forward-only stages=3 micro-batches=1 skips=0>2\nworker 0: 0F0 0F0>1 0F0>2\nworker 1: 0>2F0 0>1F0 1F0 1F0>2 1>2F0 2F0\n",
			limits: schedule.Limits{InOrder: true}, want: []string{
				"in order: worker 1, action 2, 0>1F0: it comes after 0>2F0, which worker 0 sends later",
			}},
		{name: "received in another order than sent, with names",
			text: "program forward-only stages=3 micro-batches=1 skips=0>2\nworker 0: 0F0 0F0>1 0F0>2\nworker 1: 0>2F0 0>1F0 1F0 1F0>2 1>2F0 2F0\n"},
		{name: "everything at once",
			text: "program whole stages=2 micro-batches=2\nworker 0: 0F1 0F1>1 0F0 0F0>1 1>0B0 0B0 1>0B1 0B1\nworker 1: 0>1F0 1F0 0>1F1 1F1 1B0 1B0>0 1B0 9F9\n",
			want: []string{
				"duplicate: worker 1, action 7, 1B0: it is there already: worker 1, action 5",
				"unknown: worker 1, action 8, 9F9: there are 2 stages",
				"missing: 1B1 is on no worker",
				"missing: 1B1>0 is on no worker",
				"order: worker 0, action 1, 0F1: it comes before 0F0, which it needs",
			}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := parse(t, tt.text)
			var got []string
			for _, v := range violations(t, schedule.Check(p, tt.limits)) {
				got = append(got, v.Error())
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if p.String() != parse(t, tt.text).String() {
				t.Error("the program was changed")
			}
		})
	}
}

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

func TestCheckHeader(t *testing.T) {
	tests := []struct {
		program schedule.Program
		want    string
	}{
		{schedule.Program{}, "header: 0 stages, want at least 1"},
		{schedule.Program{Stages: 1}, "header: 0 micro-batches, want at least 1"},
		{schedule.Program{Stages: 1 << 62, MicroBatches: 1 << 62}, "more than 16777216 forwards"},
		{schedule.Program{Stages: 1, MicroBatches: 1, Phase: 9}, "header: unknown phase(9)"},
		{schedule.Program{Stages: 1, MicroBatches: 1, Capacity: -2}, "header: a capacity of -2 values on a link"},
		{schedule.Program{Stages: 4, MicroBatches: 1, Skips: edges(t, "0>4")}, "header: skip 0>4: stages go from 0 to 3"},
		{schedule.Program{Stages: 4, MicroBatches: 1, Skips: []schedule.Edge{{From: -1, To: 2}}}, "header: skip -1>2: stages go from 0 to 3"},
		{schedule.Program{Stages: 4, MicroBatches: 1, Skips: edges(t, "3>0")}, "header: skip 3>0: want an earlier stage first"},
		{schedule.Program{Stages: 4, MicroBatches: 1, Skips: edges(t, "2>2")}, "header: skip 2>2: want an earlier stage first"},
		{schedule.Program{Stages: 4, MicroBatches: 1, Skips: edges(t, "1>2")}, "header: skip 1>2: neighbours need none"},
		{schedule.Program{Stages: 4, MicroBatches: 1, Skips: edges(t, "0>2,0>2")}, "header: skip 0>2: declared twice"},
		{schedule.Program{Stages: 4, MicroBatches: 1, Skips: edges(t, "0>3,0>2,1>3")}, "header: skip 0>2: comes after 0>3, want skips in ascending order"},
		{schedule.Program{Stages: 4, MicroBatches: 1 << 22, Skips: edges(t, "0>2")}, "header: 4 stages and 1 skips of 4194304 micro-batches are more than 16777216 forwards"},
	}
	for _, tt := range tests {
		vs := violations(t, schedule.Check(&tt.program, schedule.Limits{}))
		if len(vs) != 1 || vs[0].Rule != schedule.RuleHeader || !strings.Contains(vs[0].Error(), tt.want) {
			t.Errorf("Check(%+v) = %v, want %s", tt.program, vs, tt.want)
		}
	}
}

// A header that promises more than there is costs no memory.
func TestCheckOfALargeHeader(t *testing.T) {
	p := parse(t, "program whole stages=4000 micro-batches=4000\nworker 0: 0F0\n")
	vs := violations(t, schedule.Check(p, schedule.Limits{}))
	want := "missing: 1 actions in all, want at least one for each of 4000 stages and 4000 micro-batches"
	if len(vs) != 1 || vs[0].Error() != want {
		t.Errorf("%v, want %s", vs, want)
	}
}

// What is wrong throughout is said a hundred times.
func TestCheckStops(t *testing.T) {
	p := parse(t, "program whole stages=2 micro-batches=4000\nworker 0:\n")
	if vs := violations(t, schedule.Check(p, schedule.Limits{})); len(vs) != 100 {
		t.Errorf("%d violations, want 100", len(vs))
	}
}

// Actions that have no text form, and so can only be made in code.
func TestCheckMalformedActions(t *testing.T) {
	tests := []struct {
		action schedule.Action
		want   string
	}{
		{schedule.Action{}, "no such kind of action"},
		{schedule.Action{Kind: 11}, "no such kind of action"},
		{schedule.Action{Kind: schedule.Forward, Stage: -1}, "there are 2 stages"},
		{schedule.Action{Kind: schedule.Forward, MicroBatch: -1}, "there are 2 micro-batches"},
		{schedule.Action{Kind: schedule.ReceiveActivation, Stage: 0, Peer: -1}, "there are 2 stages"},
		{schedule.Action{Kind: schedule.ReceiveActivation, Stage: 1, Peer: 1}, "activations move from a stage to the next or along a declared skip"},
		{schedule.Action{Kind: schedule.ReceiveActivation, Stage: 0, Peer: 1}, "activations move from a stage to the next or along a declared skip"},
		{schedule.Action{Kind: schedule.SendActivation, Stage: 1, Peer: 0}, "activations move from a stage to the next or along a declared skip"},
		{schedule.Action{Kind: schedule.ReceiveGradient, Stage: 1, Peer: 0}, "gradients move from a stage to the one before or back along a declared skip"},
		{schedule.Action{Kind: schedule.SendGradient, Stage: 0, Peer: 1}, "gradients move from a stage to the one before or back along a declared skip"},
		{schedule.Action{Kind: schedule.Backward, Stage: 1, Peer: 1}, "other stage 1 for what is not a transfer"},
		{schedule.Action{Kind: schedule.Reduce, Stage: 1, MicroBatch: 1}, "micro-batch 1 for a reduction, which is of all"},
		{schedule.Action{Kind: schedule.Reduce, Stage: 1, Peer: 1}, "other stage 1 for what is not a transfer"},
		{schedule.Action{Kind: schedule.Reduce, Stage: 2}, "there are 2 stages"},
	}
	for _, tt := range tests {
		p := gpipe(t, schedule.Config{Stages: 2, MicroBatches: 2})
		p.Workers[1] = append(p.Workers[1], tt.action)
		found := false
		for _, v := range violations(t, schedule.Check(p, schedule.Limits{})) {
			found = found || v.Rule == schedule.RuleUnknown && strings.HasSuffix(v.Reason, tt.want)
		}
		if !found {
			t.Errorf("%+v was not reported as %s", tt.action, tt.want)
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
	fmt.Println(schedule.Check(p, schedule.Limits{}))
	// Output:
	// schedule: the program cannot run:
	// 	missing: 1B1 is on no worker
	// 	missing: 1B1>0 is on no worker
	// 	deadlock: worker 0, action 3, 1>0B0: it waits for 1B0>0 on worker 1, which is stuck at 0>1F1, action 3
	// 	deadlock: worker 1, action 3, 0>1F1: it waits for 0F1>1 on worker 0, which is stuck at 1>0B0, action 3
}
