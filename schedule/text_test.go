package schedule_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"penstock.example/schedule"
)

// Actions have a text form, and words that say all of it.
func TestActionText(t *testing.T) {
	for _, tt := range []struct {
		text, words string
		want        schedule.Action
	}{
		{"0F2", "forward, stage 0, micro-batch 2", schedule.Action{Kind: schedule.Forward, MicroBatch: 2}},
		{"1R0", "recompute, stage 1, micro-batch 0", schedule.Action{Kind: schedule.Recompute, Stage: 1}},
		{"2147483647B0", "backward, stage 2147483647, micro-batch 0", schedule.Action{Kind: schedule.Backward, Stage: 1<<31 - 1}},
		{"0I2", "backward of the input, stage 0, micro-batch 2", schedule.Action{Kind: schedule.BackwardInput, MicroBatch: 2}},
		{"3W12", "backward of the weights, stage 3, micro-batch 12", schedule.Action{Kind: schedule.BackwardWeight, Stage: 3, MicroBatch: 12}},
		{"0F2>1", "send activation, stage 0 to 1, micro-batch 2", schedule.Action{Kind: schedule.SendActivation, MicroBatch: 2, Peer: 1}},
		{"0>3F2", "receive activation, stage 3 from 0, micro-batch 2", schedule.Action{Kind: schedule.ReceiveActivation, Stage: 3, MicroBatch: 2}},
		{"12B100>4", "send gradient, stage 12 to 4, micro-batch 100", schedule.Action{Kind: schedule.SendGradient, Stage: 12, MicroBatch: 100, Peer: 4}},
		{"1>0B2", "receive gradient, stage 0 from 1, micro-batch 2", schedule.Action{Kind: schedule.ReceiveGradient, MicroBatch: 2, Peer: 1}},
		{"12RED", "gradient reduction, stage 12", schedule.Action{Kind: schedule.Reduce, Stage: 12}},
	} {
		got, err := schedule.ParseAction(tt.text)
		if err != nil || got != tt.want || got.Words() != tt.words {
			t.Errorf("ParseAction(%q) = %+v, %q, %v, want %+v, %q", tt.text, got, got.Words(), err, tt.want, tt.words)
		}
		if got := tt.want.String(); got != tt.text {
			t.Errorf("%+v prints as %s, want %s", tt.want, got, tt.text)
		}
	}
	for kind, want := range map[schedule.Kind]string{0: "kind(0)", 11: "kind(11)"} {
		if kind.String() != want {
			t.Errorf("%v, want %s", kind, want)
		}
	}
	for _, text := range []string{"", "02", "0f2", "0>1", "F2", "RED", "0RED1", "01RED", "0RED>1", "0>1RED", "0F", "0FB2", "-1F2", "+1F2", "0F02", "00F2", "0F1_0", "0F2147483648",
		"٣F2", " 0F2", "0F2 ", ">1F2", "1F2>", "0F2>1>2", "0>1F2>2", "0>F2", "0>1>2F2", "0?0"} {
		if a, err := schedule.ParseAction(text); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("action %q: ", text)) {
			t.Errorf("ParseAction(%q) = %v, %v, want an error", text, a, err)
		}
	}
	for _, text := range []string{"1>0F2", "1F2>0", "1F2>1", "0B2>1", "1B2>1", "1>1F2", "0>1B2", "1>1B2"} {
		if a, err := schedule.ParseAction(text); err == nil || !strings.Contains(err.Error(), "an activation moves to a later stage, a gradient to an earlier one") {
			t.Errorf("ParseAction(%q) = %v, %v", text, a, err)
		}
	}
	for _, text := range []string{"1R2>0", "0>1R2", "1I2>0", "1>0W2"} {
		if a, err := schedule.ParseAction(text); err == nil || !strings.Contains(err.Error(), "what is sent and received is F or B") {
			t.Errorf("ParseAction(%q) = %v, %v", text, a, err)
		}
	}
}

func drawAction(t *rapid.T) schedule.Action {
	number := rapid.OneOf(rapid.IntRange(0, 12), rapid.IntRange(0, 1<<31-2))
	a := schedule.Action{
		Kind:       schedule.Kind(rapid.IntRange(int(schedule.Forward), int(schedule.Reduce)).Draw(t, "kind")),
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

func FuzzParseAction(f *testing.F) {
	for _, seed := range []string{"0F2", "0R2", "0B2", "0F2>1", "1B2>0", "0F2>", "0>1F2", "1>0B2", "0>3F2", "00F1", "F", ">", ""} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if a, err := schedule.ParseAction(text); err == nil && a.String() != text {
			t.Errorf("%q is read as %+v, which prints as %q", text, a, a.String())
		}
	})
}

func ExampleParseAction() {
	a, err := schedule.ParseAction("1>0B2")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%v: %v of micro-batch %d, by stage %d from stage %d; the send is %v\n", a, a.Kind, a.MicroBatch, a.Stage, a.Peer, a.Matching())

	_, err = schedule.ParseAction("0>1B2")
	fmt.Println(err)
	// Output:
	// 1>0B2: receive gradient of micro-batch 2, by stage 0 from stage 1; the send is 1B2>0
	// schedule: action "0>1B2": an activation moves to a later stage, a gradient to an earlier one
}

// What runs nowhere can still be read, printed and looked at.
func TestParse(t *testing.T) {
	const text, header = "program forward-only stages=2 micro-batches=1\nworker 0: 0F0 0F0>1\nworker 1: 0>1F0 1F0\n", "program whole stages=4 micro-batches=2 "
	for _, tt := range []struct{ text, want string }{
		{text, text},
		{strings.TrimSuffix(text, "\n"), text},
		{"# a\n\nprogram forward-only stages=2 micro-batches=1 # b\n  # c\nworker 0: 0F0 0F0>1 #0F1\n\nworker 1: 0>1F0 1F0\n#", text},
		{"  program\tforward-only   stages=2 micro-batches=1\r\nworker 0:  0F0\t0F0>1\r\n\tworker 1: 0>1F0\t1F0  \r\n", text},
		{header + "skips=0>3,0>2,3>0,0>1,0>1", header + "skips=0>3,0>2,3>0,0>1,0>1\n"},
		{header + "capacity=meet", header + "capacity=meet\n"},
		{header + "skips=0>2 capacity=12", header + "skips=0>2 capacity=12\n"},
		{"program whole stages=1 micro-batches=1\nworker 0:\nworker 1:\n", "program whole stages=1 micro-batches=1\nworker 0:\nworker 1:\n"},
		{"program backward-only stages=1 micro-batches=1\nworker 0: 0B0 0B0 7F9 0>3F2 0F2>3", "program backward-only stages=1 micro-batches=1\nworker 0: 0B0 0B0 7F9 0>3F2 0F2>3\n"},
	} {
		if got := parse(t, tt.text).String(); got != tt.want {
			t.Errorf("%q became %q", tt.text, got)
		}
	}
	const two = "program whole stages=2 micro-batches=2\n"
	for _, tt := range []struct{ text, want string }{
		{"", "line 1: no header"},
		{"# nothing\n\n", "line 3: no header"},
		{"worker 0: 0F0\n", `line 1, word 1: "worker", want program`},
		{"program gpipe stages=2 micro-batches=2", `line 1, word 2: "gpipe", want whole, forward-only or backward-only`},
		{"program whole stages=2", "line 1, word 4: the header ends, want micro-batches= and a number"},
		{"program whole micro-batches=2 stages=2", `line 1, word 3: "micro-batches=2", want stages=`},
		{"program whole stages= micro-batches=2", `line 1, word 3: "stages=", want stages= and a number`},
		{"program whole stages=2 micro-batches=-2", `line 1, word 4: "micro-batches=-2"`},
		{"program whole stages=02 micro-batches=2", `line 1, word 3: "stages=02"`},
		{"program whole stages=2 micro-batches=2 fast", `line 1, word 5: "fast" after the header`},
		{"program whole stages=0 micro-batches=2", "line 1, word 3: 0 stages, want at least 1"},
		{"program whole stages=4 micro-batches=4194304 skips=0>2", "4 stages and 1 skips of 4194304"},
		{two + "\nwork 0: 0F0", `line 3, word 2: "work 0:", want worker 0:`},
		{two + two, `line 2, word 2: "program whole", want worker 0:`},
		{two + "worker", `line 2, word 1: "worker", want worker 0:`},
		{two + "worker 0: 0F0\nworker 2: 1F0", `line 3, word 2: "worker 2:", want worker 1: as workers are numbered in order`},
		{two + "# why not\nworker 0: 0F0 0F1 0X2", `line 3, word 5: action "0X2"`},
		{header + "skips=", `word 5: "" is not a pair of stages, want skips such as skips=0>2,0>3`},
		{header + "skips=0>2,", `word 5: "" is not a pair of stages`},
		{header + "skips=0>02", `word 5: "0>02" is not a pair of stages`},
		{header + "skips=0>1>2", `word 5: "0>1>2" is not a pair of stages`},
		{header + "skips=0>2 skips=0>3", `word 6: "skips=0>3" after the header`},
		{header + "capacity=1 skips=0>2", `word 6: "skips=0>2" after the header`},
		{header + "capacity=0", `word 5: "0", want meet or the number of values that may wait, from 1`},
		{header + "Skips=0>2", `word 5: "Skips=0>2" after the header`},
	} {
		if p, err := schedule.Parse(tt.text); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: %v, %v, want %s", tt.text, p, err, tt.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("program whole stages=2 micro-batches=2\nworker 0: 0F0 0F0>1 0F1 0F1>1 1>0B0 0B0 1>0B1 0B1\nworker 1: 0>1F0 1F0 0>1F1 1F1 1B0 1B0>0 1B1 1B1>0\n")
	f.Add("# comment\n\nprogram backward-only stages=1 micro-batches=1\r\nworker 0: 0R0 0B0 # recomputed\n")
	f.Add("program whole stages=3 micro-batches=1 skips=0>2\nworker 0: 0F0 0>1F0 1F0 0>2F0 1>2F0 2F0 2B0 2>1B0 1B0 2>0B0 1>0B0 0B0\n")
	f.Add("program backward-only stages=4 micro-batches=1 skips=0>3,0>2,3>0,0>1 capacity=meet\nworker 0: 0R0\nworker 1:\nworker 2: 3>0B0\n")
	f.Fuzz(func(t *testing.T, text string) {
		p, err := schedule.Parse(text)
		if err != nil {
			return
		}
		if diff := cmp.Diff(p, parse(t, p.String())); diff != "" {
			t.Errorf("-first +again:\n%s", diff)
		}
		// Whatever was read can be judged.
		if p.Stages*p.MicroBatches < 1000 && schedule.Check(p, schedule.Limits{}) == nil {
			schedule.InFlight(p, nil)
		}
	})
}

// edges reads a list such as 0>2,1>3.
func edges(t rapid.TB, list string) []schedule.Edge {
	t.Helper()
	return parse(t, "program whole stages=9 micro-batches=1 skips="+list).Skips
}

func TestConfigs(t *testing.T) {
	for given, want := range map[string]string{ // skips
		"0>2,0>3,1>3": "0>2,0>3,1>3", "1>3,0>3,0>2": "0>2,0>3,1>3", "0>3,0>2,0>3,0>3": "0>2,0>3", "2>3,0>2,0>1": "0>2"} {
		skips := edges(t, given)
		before := slices.Clone(skips)
		if p := gpipe(t, schedule.Config{Stages: 4, MicroBatches: 2, Skips: skips}); !slices.Equal(p.Skips, edges(t, want)) || !slices.Equal(skips, before) {
			t.Errorf("%s becomes %v; the caller's are %v", given, p.Skips, skips)
		}
	}
	for _, tt := range []struct {
		config schedule.Config
		want   string
	}{
		{schedule.Config{}, "0 stages, want at least 1"},
		{schedule.Config{Stages: 2}, "0 micro-batches, want at least 1"},
		{schedule.Config{Stages: 1 << 40, MicroBatches: 1 << 40}, "more than 16777216 forwards"},
		{schedule.Config{Stages: 2, MicroBatches: 2, Worker: []int{}}, "workers without gaps"},
		{schedule.Config{Stages: 2, MicroBatches: 2, Worker: []int{0}}, "for each of 2 stages"},
		{schedule.Config{Stages: 2, MicroBatches: 2, Worker: []int{0, -1}}, "stage 1 is on worker -1; want a worker from 0 to 1"},
		{schedule.Config{Stages: 2, MicroBatches: 2, Worker: []int{0, 2}}, "stage 1 is on worker 2; want a worker from 0 to 1"},
		{schedule.Config{Stages: 3, MicroBatches: 2, Worker: []int{0, 2, 2}}, "workers [0 2 2]; want workers without gaps"},
		{schedule.Config{Stages: 3, MicroBatches: 2, Capacity: -2}, "a capacity of -2 values on a link, want 0 for any number, -1 for none, or 1 and more"},
		{schedule.Config{Stages: 3, MicroBatches: 2, Skips: []schedule.Edge{{From: 0, To: 3}}}, "skip 0>3: stages go from 0 to 2"},
		{schedule.Config{Stages: 3, MicroBatches: 2, Skips: []schedule.Edge{{From: -1, To: 2}}}, "skip -1>2: stages go from 0 to 2"},
		{schedule.Config{Stages: 3, MicroBatches: 2, Skips: []schedule.Edge{{From: 2, To: 0}}}, "skip 2>0: want an earlier stage first, as in 0>2"},
		{schedule.Config{Stages: 4, MicroBatches: 1 << 22, Skips: []schedule.Edge{{From: 0, To: 3}}}, "4 stages and 1 skips of 4194304 micro-batches are more than 16777216 forwards"},
	} {
		p, err := schedule.GPipe(tt.config)
		if err == nil || !strings.HasPrefix(err.Error(), "schedule: GPipe: ") || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("GPipe(%+v): %v, %v, want %s", tt.config, p, err, tt.want)
		}
	}
}
