package schedule_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"penstock.example/internal/must"
	"penstock.example/schedule"
)

// What torch.distributed.pipelining writes of 1F1B on two ranks: computations alone, and with
// communication.
func TestParseCSV(t *testing.T) {
	want := scheduled(t, "1f1b", 2, 1, schedule.Config{MicroBatches: 3}).String()
	for text, want := range map[string]string{
		"0F0,0F1,,0B0,0F2,0B1,,0B2\r\n,1F0,1B0,1F1,1B1,1F2,1B2,\r\n": want,
		"0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0, 0B0 " +
			",0F2,0SEND_F2,0RECV_B1,0B1,0RECV_B2,0B2,0RESHARD\n" +
			"1RECV_F0,1F0,1B0,1RECV_F1,1SEND_B0,1F1,1B1,1RECV_F2,1SEND_B1,1F2,1B2,1SEND_B2\n": want,
		"0F0,(0F1;0B0)OVERLAP_F_B,0I1,0W1,0REDUCE_GRAD": "program whole stages=1 micro-batches=2\n" +
			"worker 0: 0F0 0F1 0B0 0I1 0W1 0RED\n",
		"0B0,0F0":                "program whole stages=1 micro-batches=1\nworker 0: 0B0 0F0\n",
		"\n# a comment\n" + want: want,
	} {
		got, err := schedule.Parse(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
		} else if diff := cmp.Diff(want, got.String()); diff != "" {
			t.Errorf("%q (-want +got):\n%s", text, diff)
		}
	}
	for text, want := range map[string]string{
		",,\n0UNSHARD,": "line 3: no action",
		"0F0,0X0": `line 1, field 2: action "0X0": want a stage, F, R, B, I or W, and a ` +
			`micro-batch`,
		"0F0\n1F0,\n2F0,2B":    `line 3, field 2: action "2B": want`,
		"0F0,01F0":             `line 1, field 2: action "01F0": "01" is not a decimal number`,
		"0F0,(0F1;0B0)OVERLAP": "line 1, field 2:",
		"0F0,1F0\n0F8388607, 2F0\n0X0": "line 2, field 2: 3 stages and 0 skips of 8388608 micro-batches " +
			"are more than 16777216 forwards",
		"": "no program",
	} {
		p, err := schedule.Parse(text)
		if err == nil || !strings.HasPrefix(err.Error(), "schedule: ") ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %v, want %s", text, p, err, want)
		}
	}
}

// Every schedule without skips and recomputations is read back as it was, but for receives.
func TestCSVRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		_, _, p := drawScheduled(t)
		text := must.Get(p.CSV())(t)
		again, err := schedule.Parse(text)
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		if round, err := again.CSV(); err != nil || round != text {
			t.Fatalf("%v, %s becomes %s", err, text, round)
		}
		if err := runs(again); err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
	})
	p := gpipe(t, schedule.Config{Stages: 2, MicroBatches: 1})
	p.Workers[1] = append(p.Workers[1], schedule.Action{Kind: schedule.Forward, Stage: 3})
	if _, err := p.CSV(); err == nil || !strings.Contains(err.Error(), "3F0: there are 2 stages") {
		t.Error(err)
	}
}
