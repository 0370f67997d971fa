package schedule_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"penstock.example/schedule"
)

func TestParse(t *testing.T) {
	want := &schedule.Program{
		Stages: 2, MicroBatches: 1, Phase: schedule.ForwardOnly,
		Workers: [][]schedule.Action{
			{action(t, "0F0"), action(t, "0F0>1")},
			{action(t, "0>1F0"), action(t, "1F0")},
		},
	}
	tests := []struct {
		name, text string
	}{
		{"as printed", "program forward-only stages=2 micro-batches=1\nworker 0: 0F0 0F0>1\nworker 1: 0>1F0 1F0\n"},
		{"no newline at the end", "program forward-only stages=2 micro-batches=1\nworker 0: 0F0 0F0>1\nworker 1: 0>1F0 1F0"},
		{"comments and empty lines", "# a\n\nprogram forward-only stages=2 micro-batches=1 # b\n  # c\nworker 0: 0F0 0F0>1 #0F1\n\nworker 1: 0>1F0 1F0\n#"},
		{"blanks", "  program\tforward-only   stages=2 micro-batches=1\r\nworker 0:  0F0\t0F0>1\r\n\tworker 1: 0>1F0\t1F0  \r\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(want, parse(t, tt.text)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// What runs nowhere can still be read, printed and looked at.
func TestParseDoesNotJudge(t *testing.T) {
	for _, text := range []string{
		"program whole stages=1 micro-batches=1\n",
		"program whole stages=1 micro-batches=1\nworker 0:\nworker 1:\n",
		"program backward-only stages=1 micro-batches=1\nworker 0: 0B0 0B0 7F9 0>3F2 0F2>3\n",
	} {
		if got := parse(t, text).String(); got != text {
			t.Errorf("%q became %q", text, got)
		}
	}
}

func TestParseErrors(t *testing.T) {
	const header = "program whole stages=2 micro-batches=2\n"
	tests := []struct {
		name, text, want string
	}{
		{"empty", "", "line 1: no header"},
		{"comments only", "# nothing\n\n", "line 3: no header"},
		{"no header", "worker 0: 0F0\n", `line 1, word 1: "worker", want program`},
		{"phase", "program gpipe stages=2 micro-batches=2", `line 1, word 2: "gpipe", want whole, forward-only or backward-only`},
		{"header ends", "program whole stages=2", "line 1, word 4: the header ends, want micro-batches= and a number"},
		{"wrong field", "program whole micro-batches=2 stages=2", `line 1, word 3: "micro-batches=2", want stages=`},
		{"no number", "program whole stages= micro-batches=2", `line 1, word 3: "stages=", want stages= and a number`},
		{"negative", "program whole stages=2 micro-batches=-2", `line 1, word 4: "micro-batches=-2"`},
		{"leading zero", "program whole stages=02 micro-batches=2", `line 1, word 3: "stages=02"`},
		{"after the header", "program whole stages=2 micro-batches=2 fast", `line 1, word 5: "fast" after the header`},
		{"no stages", "program whole stages=0 micro-batches=2", "line 1, word 3: 0 stages, want at least 1"},
		{"absurd size", "program whole stages=2147483647 micro-batches=2147483647", "more than 16777216 forwards"},
		{"not a worker", header + "\nwork 0: 0F0", `line 3, word 1: "work", want worker`},
		{"second header", header + header, `line 2, word 1: "program", want worker`},
		{"no number of worker", header + "worker", "line 2, word 2: the line ends, want 0:"},
		{"no colon", header + "worker 0 0F0", `line 2, word 2: "0", want 0:`},
		{"workers out of order", header + "worker 0: 0F0\nworker 2: 1F0", `line 3, word 2: "2:", want 1: as workers are numbered in order`},
		{"action", header + "# why not\nworker 0: 0F0 0F1 0X2", `line 3, word 5: action "0X2"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, err := schedule.Parse(tt.text)
			if err == nil {
				t.Fatalf("read as %v", p)
			}
			if !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %s", err, tt.want)
			}
		})
	}
}

func TestProgramRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := gpipe(t, drawConfig(t))
		if diff := cmp.Diff(want, parse(t, want.String())); diff != "" {
			t.Fatalf("-want +got:\n%s", diff)
		}
	})
}

func FuzzParse(f *testing.F) {
	f.Add("program whole stages=2 micro-batches=2\nworker 0: 0F0 0F0>1 0F1 0F1>1 1>0B0 0B0 1>0B1 0B1\nworker 1: 0>1F0 1F0 0>1F1 1F1 1B0 1B0>0 1B1 1B1>0\n")
	f.Add("# comment\n\nprogram backward-only stages=1 micro-batches=1\r\nworker 0: 0R0 0B0 # recomputed\n")
	f.Add("program whole stages=1 micro-batches=1\nworker 0:\n")
	f.Add("program whole stages=3 micro-batches=1 skips=0>2\nworker 0: 0F0 0>1F0 1F0 0>2F0 1>2F0 2F0 2B0 2>1B0 1B0 2>0B0 1>0B0 0B0\n")
	f.Add("program backward-only stages=4 micro-batches=1 skips=0>3,0>2,3>0,0>1 late-recompute\nworker 0: 0R0\nworker 1:\nworker 2: 3>0B0\n")
	f.Add("program forward-only stages=9 micro-batches=9\nworker 0: 9F9 9F9\nworker 1: 0>3F2")
	f.Fuzz(func(t *testing.T, text string) {
		p, err := schedule.Parse(text)
		if err != nil {
			return
		}
		again := parse(t, p.String())
		if diff := cmp.Diff(p, again); diff != "" {
			t.Errorf("-first +again:\n%s", diff)
		}
		// Whatever was read can be judged.
		if p.Stages*p.MicroBatches < 1000 && schedule.Check(p, schedule.Limits{}) == nil {
			schedule.InFlight(p, nil)
		}
	})
}
