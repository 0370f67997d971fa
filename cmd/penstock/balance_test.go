package main

import (
	"bytes"
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"penstock.example/models"
	"penstock.example/nn"
)

func TestBalanceOfCosts(t *testing.T) {
	for _, test := range []struct{ costs, stages, want string }{
		{"4,2,2,2,2,4,6", "3", `{"balance":[3,3,1],"bottleneck":8}`},
		{"0.5, 1.25,0", "2", `{"balance":[1,2],"bottleneck":1.25}`},
		{"0,0,0", "2", `{"balance":[2,1],"bottleneck":0}`},
	} {
		r := must(t, "balance", "--costs", test.costs, "--stages", test.stages, "--format", "json")
		if r.stdout != test.want+"\n" || r.stderr != "" {
			t.Errorf("--costs %s: got %s, want %s; stderr %q", test.costs, r.stdout, test.want, r.stderr)
		}
	}
	want := `--balance 3,3,1

STAGE  LAYERS  COST  OF BOTTLENECK
0      3       8     100 %
1      3       8     100 %
2      1       6     75 %
`
	if r := must(t, "balance", "--costs", "4,2,2,2,2,4,6", "--stages", "3"); r.stdout != want {
		t.Errorf("got:\n%s\nwant:\n%s", r.stdout, want)
	}
}

// decode reads one line of JSON strictly.
func decode(t *testing.T, stdout string, into any) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(stdout))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil || d.More() || strings.Count(stdout, "\n") != 1 {
		t.Fatalf("%q: %v", stdout, err)
	}
}

// balanced is the JSON of a balance, of which this is true of any: all layers are there, the bottleneck is the dearest's
// cost, and a cost is the sum of its parts.
func balanced(t *testing.T, o models.Options, args ...string) balanceLine {
	t.Helper()
	var line balanceLine
	decode(t, must(t, with([]string{"balance", "--format", "json"}, args...)...).stdout, &line)
	m, err := models.New(args[1], o)
	if err != nil {
		t.Fatal(err)
	}
	layers, most := m.Layers(), 0.0
	for i, s := range line.Stages {
		n, cost, parts := line.Balance[i], s["cost"].(float64), 0.0
		for name, part := range s {
			if x, ok := part.(float64); ok && name != "cost" && name != "layers" {
				parts += x
			}
		}
		if s["layers"] != float64(n) || s["first"] != layers[0].Name || s["last"] != layers[n-1].Name || cost <= 0 || math.Abs(parts-cost) > 1e-9*cost {
			t.Errorf("stage %d of %v: %v", i, line.Balance, s)
		}
		layers, most = layers[n:], max(most, cost)
	}
	if len(layers) != 0 || most != line.Bottleneck {
		t.Errorf("%d layers are left; bottleneck %v of %v", len(layers), line.Bottleneck, most)
	}
	return line
}

func TestBalanceByTime(t *testing.T) {
	for policy, recomputed := range map[string]float64{"never": 0, "except_last": 0.75, "always": 1} {
		line := balanced(t, models.Options{Width: 4}, "--model", "resnet20", "--set", "width=4", "--stages", "2",
			"--batch", "8", "--chunks", "4", "--repeats", "1", "--checkpoint", policy)
		for i, s := range line.Stages {
			forward, again := s["forward"].(float64), s["recomputation"].(float64)
			if line.Unit != "s" || forward <= 0 || s["backward"].(float64) <= 0 || math.Abs(again-recomputed*forward) > 1e-9*forward ||
				(s["activations"].(float64) > 0) != (i > 0) || (s["gradients"].(float64) > 0) != (i < 1) {
				t.Errorf("%s, stage %d: %v", policy, i, s)
			}
		}
	}
	r := must(t, "balance", "--model", "mlp", "--stages", "2", "--batch", "8", "--repeats", "1")
	if !strings.HasPrefix(r.stdout, "--balance ") || !strings.Contains(r.stdout, "\nSTAGE") || !strings.Contains(r.stdout, "100 %") {
		t.Errorf("got:\n%s", r.stdout)
	}
}

// TestBalanceBySize: bytes follow from policy and optimizer.
func TestBalanceBySize(t *testing.T) {
	options := models.Options{Width: 16, Heads: 2, Depth: 2, Context: 8}
	m, err := models.New("gpt", options)
	if err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) balanceLine {
		return balanced(t, options, with([]string{"--model", "gpt", "--set", "width=16,heads=2,depth=2", "--set", "context=8", "--stages", "3",
			"--by", "size", "--batch", "6", "--chunks", "3"}, args...)...)
	}
	sum := func(line balanceLine, part string) (n float64) {
		for _, s := range line.Stages {
			n += s[part].(float64)
		}
		return n
	}
	gradients := sum(run(), "gradients")
	if gradients != 4*float64(nn.Count(m)) {
		t.Errorf("%v bytes of gradients for %d parameters", gradients, nn.Count(m))
	}
	for _, test := range []struct {
		args  []string
		slots float64
	}{{nil, 1}, {[]string{"--momentum", "0"}, 0}, {[]string{"--optimizer", "adamw"}, 2}} {
		if got := sum(run(test.args...), "state"); got != test.slots*gradients {
			t.Errorf("%v: %v bytes of state, want %v times %v", test.args, got, test.slots, gradients)
		}
	}
	never, mixed, always := run("--checkpoint", "never"), run("--checkpoint", "never,always,always"), run("--checkpoint", "always")
	if never.Bottleneck < mixed.Bottleneck || mixed.Bottleneck < always.Bottleneck || never.Bottleneck == always.Bottleneck {
		t.Errorf("never takes %v bytes, mixed %v, always %v", never.Bottleneck, mixed.Bottleneck, always.Bottleneck)
	}
}

// TestPlanProgress: a log gets whole lines, a terminal one that goes away again.
func TestPlanProgress(t *testing.T) {
	for live, want := range map[bool]string{
		false: "planning for 3 s\nplanning for 5 s: schedule 2 of 4, 1f1b\nkept\n",
		true:  "\r\x1b[Kplanning for 3 s\r\x1b[Kplanning for 5 s: schedule 2 of 4, 1f1b\r\x1b[Kkept\n",
	} {
		var log bytes.Buffer
		p := newPlanProgress(&log, "planning")
		p.live = live
		p.tell(p.began.Add(3 * time.Second))
		p.searching("1f1b", 1, 4)
		p.tell(p.began.Add(5 * time.Second))
		p.line("kept")
		p.end()
		if log.String() != want {
			t.Errorf("got %q, want %q", &log, want)
		}
	}
}
