package schedule_test

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"penstock.example/schedule"
)

// TestWords: actions in words say everything that their text says.
func TestWords(t *testing.T) {
	for text, want := range map[string]string{
		"0F2":   "forward, stage 0, micro-batch 2",
		"1R0":   "recompute, stage 1, micro-batch 0",
		"0F2>1": "send activation, stage 0 to 1, micro-batch 2",
		"1>0B2": "receive gradient, stage 0 from 1, micro-batch 2",
		"3RED":  "gradient reduction, stage 3",
	} {
		a, err := schedule.ParseAction(text)
		if err != nil || a.Words() != want {
			t.Errorf("%s: %q, %v; want %q", text, a.Words(), err, want)
		}
	}
}

func TestActionText(t *testing.T) {
	tests := []struct {
		text string
		want schedule.Action
	}{
		{"0F2", schedule.Action{Kind: schedule.Forward, MicroBatch: 2}},
		{"0R2", schedule.Action{Kind: schedule.Recompute, MicroBatch: 2}},
		{"0B2", schedule.Action{Kind: schedule.Backward, MicroBatch: 2}},
		{"0I2", schedule.Action{Kind: schedule.BackwardInput, MicroBatch: 2}},
		{"3W12", schedule.Action{Kind: schedule.BackwardWeight, Stage: 3, MicroBatch: 12}},
		{"0F2>1", schedule.Action{Kind: schedule.SendActivation, Stage: 0, MicroBatch: 2, Peer: 1}},
		{"0>1F2", schedule.Action{Kind: schedule.ReceiveActivation, Stage: 1, MicroBatch: 2, Peer: 0}},
		{"1B2>0", schedule.Action{Kind: schedule.SendGradient, Stage: 1, MicroBatch: 2, Peer: 0}},
		{"1>0B2", schedule.Action{Kind: schedule.ReceiveGradient, Stage: 0, MicroBatch: 2, Peer: 1}},
		{"0>3F2", schedule.Action{Kind: schedule.ReceiveActivation, Stage: 3, MicroBatch: 2, Peer: 0}},
		{"12B100>4", schedule.Action{Kind: schedule.SendGradient, Stage: 12, MicroBatch: 100, Peer: 4}},
		{"12>4B100", schedule.Action{Kind: schedule.ReceiveGradient, Stage: 4, MicroBatch: 100, Peer: 12}},
		{"12RED", schedule.Action{Kind: schedule.Reduce, Stage: 12}},
		{"2147483647B0", schedule.Action{Kind: schedule.Backward, Stage: 1<<31 - 1}},
	}
	for _, tt := range tests {
		got, err := schedule.ParseAction(tt.text)
		if err != nil || got != tt.want {
			t.Errorf("ParseAction(%q) = %+v, %v, want %+v", tt.text, got, err, tt.want)
		}
		if got := tt.want.String(); got != tt.text {
			t.Errorf("%+v prints as %s, want %s", tt.want, got, tt.text)
		}
	}
}

func TestParseActionErrors(t *testing.T) {
	tests := []struct {
		text string
		want string // part of the reason
	}{
		{"", "want a letter"},
		{"02", "want a letter"},
		{"0f2", "want a letter"},
		{"0>1", "want a letter"},
		{"F2", `stage: ""`},
		{"RED", `stage: ""`},
		{"0RED1", `micro-batch: "ED1"`},
		{"01RED", `stage: "01"`},
		{"0RED>1", `micro-batch: "ED"`},
		{"0>1RED", `stage: "0>1"`},
		{"0F", `micro-batch: ""`},
		{"0FB2", `micro-batch: "B2"`},
		{"-1F2", `stage: "-1"`},
		{"+1F2", `stage: "+1"`},
		{"0F02", `micro-batch: "02"`},
		{"00F2", `stage: "00"`},
		{"0F1_0", `micro-batch: "1_0"`},
		{"0F2147483648", "below 2^31"},
		{"٣F2", `stage: "٣"`},
		{" 0F2", `stage: " 0"`},
		{"0F2 ", `micro-batch: "2 "`},
		{">1F2", `other stage: ""`},
		{"1F2>", `other stage: ""`},
		{"0F2>1>2", `other stage: "1>2"`},
		{"0>1F2>2", "want either a stage that is sent to"},
		{"0>F2", `stage: ""`},
		{"0>1>2F2", `stage: "1>2"`},
		{"1>0F2", "later stage"},
		{"1F2>0", "later stage"},
		{"1F2>1", "later stage"},
		{"0B2>1", "earlier stage"},
		{"1B2>1", "earlier stage"},
		{"1R2>0", "not a transfer"},
		{"1>1F2", "later stage"},
		{"0>1B2", "earlier stage"},
		{"1>1B2", "earlier stage"},
		{"0>1R2", "not a transfer"},
		{"1I2>0", "gradients are sent and received as B"},
		{"1>0W2", "gradients are sent and received as B"},
	}
	for _, tt := range tests {
		a, err := schedule.ParseAction(tt.text)
		if err == nil {
			t.Errorf("ParseAction(%q) = %v, want an error", tt.text, a)
			continue
		}
		if got := err.Error(); !strings.Contains(got, fmt.Sprintf("action %q: ", tt.text)) || !strings.Contains(got, tt.want) {
			t.Errorf("ParseAction(%q): %v, want the text and %q", tt.text, err, tt.want)
		}
	}
}

func TestKind(t *testing.T) {
	tests := []struct {
		kind     schedule.Kind
		want     string
		transfer bool
	}{
		{schedule.Forward, "forward", false},
		{schedule.Recompute, "recompute", false},
		{schedule.Backward, "backward", false},
		{schedule.BackwardInput, "backward of the input", false},
		{schedule.BackwardWeight, "backward of the weights", false},
		{schedule.SendActivation, "send activation", true},
		{schedule.ReceiveActivation, "receive activation", true},
		{schedule.SendGradient, "send gradient", true},
		{schedule.ReceiveGradient, "receive gradient", true},
		{schedule.Reduce, "gradient reduction", false},
		{0, "kind(0)", false},
		{11, "kind(11)", false},
	}
	for _, tt := range tests {
		if got := tt.kind.String(); got != tt.want || tt.kind.Transfer() != tt.transfer {
			t.Errorf("kind %d is %s, transfer %v, want %s, %v", tt.kind, got, tt.kind.Transfer(), tt.want, tt.transfer)
		}
	}
}

// An action of no kind can be made; it prints as something that is not read back.
func TestActionWithoutKind(t *testing.T) {
	text := schedule.Action{}.String()
	if a, err := schedule.ParseAction(text); text != "0?0" || err == nil {
		t.Errorf("the zero action prints as %s and is read back as %v, %v", text, a, err)
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

func TestActionRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := drawAction(t)
		if got := action(t, want.String()); got != want {
			t.Fatalf("%v became %v", want, got)
		}
	})
}

func FuzzParseAction(f *testing.F) {
	for _, seed := range []string{"0F2", "0R2", "0B2", "0F2>1", "1B2>0", "0F2>", "0>1F2", "1>0B2", "0>3F2", "00F1", "F", ">", ""} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		a, err := schedule.ParseAction(text)
		if err != nil {
			return
		}
		if got := a.String(); got != text {
			t.Errorf("%q is read as %+v, which prints as %q", text, a, got)
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
	// schedule: action "0>1B2": a gradient moves to an earlier stage
}
