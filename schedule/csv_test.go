package schedule_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"penstock.example/schedule"
)

// What torch.distributed.pipelining writes of 1F1B on two ranks: computations alone, and with
// communication.
func TestParseCSV(t *testing.T) {
	want := scheduled(t, "1f1b", 2, 1, schedule.Config{MicroBatches: 3})
	for name, text := range map[string]string{
		"computations":      "0F0,0F1,,0B0,0F2,0B1,,0B2\r\n,1F0,1B0,1F1,1B1,1F2,1B2,\r\n",
		"no idle steps":     "0F0,0F1,0B0,0F2,0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2",
		"weights unsharded": "0UNSHARD,0F0,0F1, 0B0 ,0F2,0B1,0B2,0RESHARD\n1UNSHARD,1F0,1B0,1F1,1B1,1F2,1B2\n",
		"communication": "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0F2,0SEND_F2,0RECV_B1,0B1,0RECV_B2,0B2\n" +
			"1RECV_F0,1F0,1B0,1RECV_F1,1SEND_B0,1F1,1B1,1RECV_F2,1SEND_B1,1F2,1B2,1SEND_B2\n",
	} {
		got, err := schedule.ParseCSV(text)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if diff := cmp.Diff(want.String(), got.String()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// A forward that overlaps with a backward is followed by it.
func TestParseCSVOverlap(t *testing.T) {
	p, err := schedule.ParseCSV("0F0,(0F1;0B0)OVERLAP_F_B,0I1,0W1")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := p.String(), "program whole stages=1 micro-batches=2\nworker 0: 0F0 0F1 0B0 0I1 0W1\n"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestParseCSVErrors(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"", "line 1, column 1: no action"},
		{",,\n0UNSHARD,", "line 1, column 1: no action"},
		{"0F0,0X0", `line 1, column 5: "0X0", want a stage, a kind and a micro-batch`},
		{"0F0\n1F0,\n2F0,2B", `line 3, column 5: "2B": micro-batch: ""`},
		{"F0", `line 1, column 1: "F0": stage: ""`},
		{"0F0,01F0", `line 1, column 5: "01F0": stage: "01" is not a decimal number`},
		{"-1F0", `line 1, column 1: "-1F0", want a stage`},
		{"0F2147483648", `micro-batch: "2147483648" is not a decimal number below 2^31`},
		{"0SEND_B0", `"0SEND_B0": there is no stage before the first`},
		{"0F0,(0F1;0B0)OVERLAP", `line 1, column 5: "(0F1;0B0)OVERLAP", want several actions`},
		{"0F0,(0F1;0Y0)OVERLAP_F_B", `line 1, column 5: "0Y0", want a stage`},
		{"0F0\n0F1,\"0B0", "line 2, column 9: extraneous or missing \" in quoted-field"},
		{"2147483646F2147483646", "line 1, column 1: 2147483647 stages"},
		{"0F0,1F0\n0F8388607, 2F0\n0X0", "line 2, column 11: 3 stages of 8388608 micro-batches are more than 16777216 forwards"},
		{"0F0,0REDUCE_GRAD0", `line 1, column 5: "0REDUCE_GRAD0": "0" follows; a reduction is of all micro-batches`},
		{"REDUCE_GRAD", `line 1, column 1: "REDUCE_GRAD": stage: ""`},
		{"UNSHARD", `line 1, column 1: "UNSHARD": stage: ""`},
	} {
		p, err := schedule.ParseCSV(tt.text)
		if err == nil {
			t.Errorf("%q is read as %v", tt.text, p)
		} else if !strings.HasPrefix(err.Error(), "schedule: ") || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: %v, want %s", tt.text, err, tt.want)
		}
	}
}

// A CSV that cannot run is read, and then refused for what is wrong with it.
func TestParseCSVDoesNotJudge(t *testing.T) {
	for _, tt := range []struct {
		text string
		rule schedule.Rule
	}{
		{"0F0,0B0\n1F0", schedule.RuleMissing},
		{"0B0,0F0\n1F0,1B0", schedule.RuleOrder},
		{"0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1", schedule.RuleDeadlock},
		{"0F0,0F1,0B1,0B0\n1F0,1F1,1B1,1B0", schedule.RuleOrder},
		{"0F0,0SEND_F0,0RECV_B0,0B0\n1F0,1B0,1SEND_B0", schedule.RuleMissing},
	} {
		p, err := schedule.ParseCSV(tt.text)
		if err != nil {
			t.Errorf("%q: %v", tt.text, err)
			continue
		}
		vs := violations(t, schedule.Check(p, schedule.Limits{}))
		if len(vs) == 0 || vs[0].Rule != tt.rule {
			t.Errorf("%q: %v, want %s", tt.text, vs, tt.rule)
		}
	}
}

// Every schedule without skips and recomputations is read back as it was, from both forms; only the
// program with transfers keeps its receives where they were, and the other has them put where they
// were by the same rule.
func TestCSVRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.SampledFrom(schedule.Schedules()).Draw(t, "schedule")
		devices, virtual := rapid.IntRange(1, 5).Draw(t, "devices"), s.Virtual
		if virtual == 0 {
			virtual = rapid.IntRange(1, 3).Draw(t, "virtual")
		}
		p := scheduled(t, s.Name, devices, virtual, schedule.Config{MicroBatches: rapid.IntRange(1, 8).Draw(t, "micro-batches")})
		for _, transfers := range []bool{false, true} {
			text, err := p.CSV(transfers)
			if err != nil {
				t.Fatal(err)
			}
			if devices == 1 && transfers {
				continue // no transfer is listed, and the form is the same
			}
			again, err := schedule.Load(text)
			if err != nil {
				t.Fatalf("%v\n%s", err, text)
			}
			if diff := cmp.Diff(computations(p), computations(again)); diff != "" {
				t.Fatalf("transfers %v (-want +got):\n%s", transfers, diff)
			}
			if err := schedule.Check(again, schedule.Limits{Meet: true, InOrder: true}); err != nil {
				t.Fatalf("transfers %v: %v\n%s", transfers, err, text)
			}
			if round, err := again.CSV(transfers); err != nil || round != text {
				t.Fatalf("transfers %v: %v, %s becomes %s", transfers, err, text, round)
			}
		}
	})
}

func TestCSVErrors(t *testing.T) {
	p := gpipe(t, schedule.Config{Stages: 3, MicroBatches: 1, Skips: []schedule.Edge{{From: 0, To: 2}}})
	if _, err := p.CSV(true); err == nil || !strings.Contains(err.Error(), "the program has the skip 0>2") {
		t.Error(err)
	}
	if text, err := p.CSV(false); err != nil || text != "0F0,0B0\n1F0,1B0\n2F0,2B0\n" {
		t.Errorf("%q, %v", text, err)
	}
	p.Workers[1] = append(p.Workers[1], schedule.Action{Kind: schedule.Forward, Stage: 3})
	if _, err := p.CSV(false); err == nil || !strings.Contains(err.Error(), "3F0: there are 3 stages") {
		t.Error(err)
	}
}

func TestLoad(t *testing.T) {
	p := gpipe(t, schedule.Config{Stages: 2, MicroBatches: 2})
	text, err := p.CSV(false)
	if err != nil {
		t.Fatal(err)
	}
	for _, form := range []string{p.String(), "\n# a comment\n" + p.String(), text} {
		if got, err := schedule.Load(form); err != nil || got.String() != p.String() {
			t.Errorf("%q: %v, %v", form, got, err)
		}
	}
	for _, text := range []string{"", "nonsense", "program", `{"schedule":"1f1b"}`, "<svg xmlns="} {
		if p, err := schedule.Load(text); err == nil {
			t.Errorf("%q is read as %v", text, p)
		}
	}
}

// A byte order mark is refused as such.
func TestLoadRefusesByteOrderMarks(t *testing.T) {
	text := gpipe(t, schedule.Config{Stages: 2, MicroBatches: 2}).String()
	for _, test := range []struct{ text, want string }{
		{"\ufeff" + text, "schedule: line 1, column 1: a byte order mark, want the file as plain UTF-8"},
		{"\ufeff0F0,0B0\n", "schedule: line 1, column 1: a byte order mark"},
		{"\xff\xfep\x00r\x00", "schedule: line 1, column 1: a byte order mark"},
		{"\xfe\xff\x00p\x00r", "schedule: line 1, column 1: a byte order mark"},
	} {
		if _, err := schedule.Load(test.text); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%.20q: %v, want %s", test.text, err, test.want)
		}
	}
}

func FuzzParseCSV(f *testing.F) {
	f.Add("0F0,(0F1;0B0)OVERLAP_F_B,0I1,0W1\n1RECV_F0,1UNSHARD")
	f.Fuzz(func(t *testing.T, text string) {
		if p, err := schedule.ParseCSV(text); err == nil && p.Stages*p.MicroBatches < 1<<10 {
			_ = schedule.Check(p, schedule.Limits{Meet: true})
			_ = p.String()
		}
	})
}

func ExampleParseCSV() {
	p, err := schedule.ParseCSV("0F0,0F1,,0B0,0B1\n,1F0,1B0,1F1,1B1\n")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Print(p)
	// Output:
	// program whole stages=2 micro-batches=2
	// worker 0: 0F0 0F0>1 0F1 0F1>1 1>0B0 0B0 1>0B1 0B1
	// worker 1: 0>1F0 1F0 1B0 0>1F1 1B0>0 1F1 1B1 1B1>0
}
