package schedule_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"penstock.example/schedule"
)

// Actions have a text form, and words that say all of it.
func TestActionText(t *testing.T) {
	for text, want := range map[string]string{
		"0F2":          "forward, stage 0, micro-batch 2",
		"2147483647B0": "backward, stage 2147483647, micro-batch 0",
		"3W12":         "backward of the weights, stage 3, micro-batch 12",
		"0F2>1":        "send activation, stage 0 to 1, micro-batch 2",
		"0>3F2":        "receive activation, stage 3 from 0, micro-batch 2",
		"12B100>4":     "send gradient, stage 12 to 4, micro-batch 100",
		"1>0B2":        "receive gradient, stage 0 from 1, micro-batch 2",
		"12RED":        "gradient reduction, stage 12",
	} {
		if got, err := schedule.ParseAction(text); err != nil || got.String() != text || got.Words() != want {
			t.Errorf("ParseAction(%q) = %+v, %q, %v, want %q", text, got, got.Words(), err, want)
		}
	}
	for want, texts := range map[string]string{
		"want a stage, F, R, B, I or W": "02 0f2 0>1 F2 RED 0RED1 " +
			"0F 0FB2 -1F2 ٣F2 >1F2 1F2> 0F2>1>2 0>1F2>2",
		"is not a decimal number": "01RED 0F02 00F2 0F2147483648",
		"an activation moves to a later stage, a gradient to an earlier one": "1>0F2 1F2>0 1F2>1 0B2>1 " +
			"1>1F2 0>1B2",
		"what is sent and received is F or B": "1R2>0 0>1R2 1I2>0 1>0W2 0RED>1",
	} {
		for text := range strings.FieldsSeq(texts) {
			if a, err := schedule.ParseAction(text); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("ParseAction(%q) = %v, %v, want %s", text, a, err, want)
			}
		}
	}
}

// What runs nowhere can still be read and printed.
func TestParse(t *testing.T) {
	const header, two = "program whole stages=4 micro-batches=2 ", "program whole stages=2 micro-batches=2\n"
	const text = "program forward-only stages=2 micro-batches=1\nworker 0: 0F0 0F0>1\nworker 1: 0>1F0 1F0\n"
	for given, want := range map[string]string{
		"# a\n\n\tprogram forward-only   stages=2 micro-batches=1 # b\r\n  # c\nworker 0: 0F0\t0F0>1 " +
			"#0F1\n\nworker 1: 0>1F0 1F0": text,
		header + "capacity=meet":                  header + "capacity=meet\n",
		header + "skips=0>2,0>3 capacity=12":      header + "skips=0>2,0>3 capacity=12\n",
		two + "worker 0: 0B0 0B0 7F9 0>3F2 0F2>3": two + "worker 0: 0B0 0B0 7F9 0>3F2 0F2>3\n",
	} {
		if got := parse(t, given).String(); got != want {
			t.Errorf("%q became %q", given, got)
		}
	}
	for given, want := range map[string]string{
		"# nothing\n\n":   "no program",
		"worker 0: 0F0\n": `line 1, field 1: action "worker 0: 0F0": want a stage`,
		"program gpipe stages=2 micro-batches=2": `line 1, word 2: want program and one ` +
			`of whole, forward-only, backward-only`,
		"program whole stages=2":                  "line 1, word 2: 0 micro-batches, want at least 1",
		"program whole stages=02 micro-batches=2": `line 1, word 3: "02" is not a decimal number`,
		"program whole stages=2 fast": `line 1, word 4: "fast", want stages=, ` +
			`micro-batches=, skips= or capacity=`,
		two + "\nwork 0: 0F0": `line 3, word 2: "work 0:", want worker 0:`,
		two + "worker":        `line 2, word 1: "worker", want worker 0:`,
		two + "worker 0: 0F0\nworker 2: 1F0": `line 3, word 2: "worker 2:", want ` +
			`worker 1: as workers are numbered in order`,
		two + "worker 0: 0F0 0F1 0X2": `line 2, word 5: action "0X2"`,
		header + "skips=0>1>2": `word 5: "0>1>2" is not a pair of ` +
			`stages, want skips such as skips=0>2,0>3`,
		header + "skips=0>2,0>2": "skip 0>2: comes after 0>2, want each skip once, in ascending order",
		header + "skips=1>2":     "skip 1>2: neighbours need none",
		header + "capacity=-1":   `word 5: "-1" is not a decimal number`,
		"program whole stages=4 micro-batches=4194304 skips=0>2": "4 stages and 1 skips of 4194304",
	} {
		if p, err := schedule.Parse(given); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %v, want %s", given, p, err, want)
		}
	}
}

func drawAction(t *rapid.T) schedule.Action {
	number := rapid.OneOf(rapid.IntRange(0, 12), rapid.IntRange(0, 1<<31-2))
	a := schedule.Action{
		Kind: schedule.Kind(rapid.IntRange(int(schedule.Forward), int(schedule.Reduce)).Draw(t,
			"kind")),
		Stage:      number.Draw(t, "stage"),
		MicroBatch: number.Draw(t, "micro-batch"),
	}
	switch a.Kind {
	case schedule.SendActivation, schedule.ReceiveGradient: // the other stage is a later one
		a.Peer = a.Stage + rapid.IntRange(1, 1<<31-1-a.Stage).Draw(t, "hop")
	case schedule.Reduce:
		a.MicroBatch = 0
	case schedule.ReceiveActivation, schedule.SendGradient:
		a.Peer = a.Stage
		a.Stage += rapid.IntRange(1, 1<<31-1-a.Stage).Draw(t, "hop")
	}
	return a
}

func TestTextRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := drawAction(t)
		if got := action(t, want.String()); got != want {
			t.Fatalf("%v became %v", want, got)
		}
		program := gpipe(t, drawConfig(t))
		if diff := cmp.Diff(program, parse(t, program.String())); diff != "" {
			t.Fatalf("-want +got:\n%s", diff)
		}
	})
}

func ExampleParseAction() {
	a, err := schedule.ParseAction("1>0B2")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%v: %v of micro-batch %d, by stage %d from stage %d; the send is %v\n", a, a.Kind,
		a.MicroBatch, a.Stage, a.Peer, a.Matching())

	_, err = schedule.ParseAction("0>1B2")
	fmt.Println(err)
	// Output:
	// 1>0B2: receive gradient of micro-batch 2, by stage 0 from stage 1; the send is 1B2>0
	// action "0>1B2": an activation moves to a later stage, a gradient to an earlier one
}

func FuzzParse(f *testing.F) {
	f.Add("program whole stages=2 micro-batches=2\nworker 0: 0F0 0F0>1 0F1 0F1>1 1>0B0 0B0 1>0B1 " +
		"0B1\nworker 1: 0>1F0 1F0 0>1F1 1F1 1B0 1B0>0 1B1 1B1>0\n")
	f.Add("# comment\n\nprogram backward-only stages=1 micro-batches=1\r\nworker 0: 0R0 0B0 # recomputed\n")
	f.Add("program whole stages=3 micro-batches=1 skips=0>2\nworker 0: 0F0 0>1F0 1F0 0>2F0 1>2F0 2F0 2B0 " +
		"2>1B0 1B0 2>0B0 1>0B0 0B0\n")
	f.Add("program backward-only stages=4 micro-batches=1 skips=0>3,0>2,3>0,0>1 capacity=meet\nworker 0: " +
		"0R0\nworker 1:\nworker 2: 3>0B0\n")
	f.Fuzz(func(t *testing.T, text string) {
		p, err := schedule.Parse(text)
		if err != nil {
			return
		}
		if diff := cmp.Diff(p, parse(t, p.String())); diff != "" {
			t.Errorf("-first +again:\n%s", diff)
		}
		// Whatever was read can be judged.
		if p.Stages*p.MicroBatches < 1000 && schedule.Check(p) == nil {
			schedule.InFlight(p)
		}
	})
}
