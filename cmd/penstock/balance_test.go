package main

import (
	"bytes"
	"context"
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"penstock.example/internal/torchtest"
	"penstock.example/models"
	"penstock.example/nn"
)

func TestBalanceOfCosts(t *testing.T) {
	for _, test := range []struct {
		costs, stages, want string
	}{
		{"4,2,2,2,2,4,6", "3", `{"balance":[3,3,1],"bottleneck":8}`},
		{"1,1,1,1,1,1,1,1,1,1,1,1,1,1,1", "8", `{"balance":[2,2,2,2,2,2,2,1],"bottleneck":2}`},
		{"0.5, 1.25,0", "2", `{"balance":[1,2],"bottleneck":1.25}`},
		{"0,0,0", "2", `{"balance":[2,1],"bottleneck":0}`},
		{"7", "1", `{"balance":[1],"bottleneck":7}`},
		{"1e3,2e3", "1", `{"balance":[2],"bottleneck":3000}`},
	} {
		r := must(t, "balance", "--costs", test.costs, "--stages", test.stages, "--format", "json")
		if r.stdout != test.want+"\n" || r.stderr != "" {
			t.Errorf("--costs %s --stages %s: got %s, want %s; stderr %q", test.costs, test.stages, r.stdout, test.want, r.stderr)
		}
	}
	r := must(t, "balance", "--costs", "4,2,2,2,2,4,6", "--stages", "3")
	want := `--balance 3,3,1

STAGE  LAYERS  COST  OF BOTTLENECK
0      3       8     100 %
1      3       8     100 %
2      1       6     75 %
`
	if r.stdout != want {
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

// checkStages holds what is true of any stages of a model: all layers are there, and the bottleneck
// is the dearest's cost.
func checkStages(t *testing.T, model string, o models.Options, line costsLine, stages []stageLine) {
	t.Helper()
	m, err := models.New(model, o)
	if err != nil {
		t.Fatal(err)
	}
	layers, most := m.Layers(), 0.0
	for i, s := range stages {
		if s.Layers != line.Balance[i] || s.First != layers[0].Name || s.Last != layers[s.Layers-1].Name || s.Cost <= 0 {
			t.Errorf("stage %d of %v: %+v", i, line.Balance, s)
		}
		layers, most = layers[s.Layers:], max(most, s.Cost)
	}
	if len(layers) != 0 || most != line.Bottleneck || len(stages) != len(line.Balance) {
		t.Errorf("%d layers are left; bottleneck %v of %+v", len(layers), line.Bottleneck, stages)
	}
}

func TestBalanceByTime(t *testing.T) {
	run := func(policy string) modelBalanceLine[timeLine] {
		r := must(t, "balance", "--model", "resnet20", "--set", "width=4", "--stages", "2", "--batch", "8", "--chunks", "4", "--repeats", "1", "--checkpoint", policy, "--format", "json")
		var line modelBalanceLine[timeLine]
		decode(t, r.stdout, &line)
		var stages []stageLine
		for i, s := range line.Stages {
			stages = append(stages, s.stageLine)
			if s.Forward <= 0 || s.Backward <= 0 || (s.Activations > 0) != (i > 0) || (s.Gradients > 0) != (i < 1) {
				t.Errorf("stage %d: %+v", i, s)
			}
			if sum := s.Forward + s.Backward + s.Recomputation + s.Activations + s.Gradients; s.Cost < 0.999*sum || s.Cost > 1.001*sum {
				t.Errorf("stage %d costs %v, its parts %v", i, s.Cost, sum)
			}
		}
		checkStages(t, "resnet20", models.Options{Width: 4}, line.costsLine, stages)
		if line.Unit != "s" {
			t.Errorf("unit %q", line.Unit)
		}
		return line
	}
	for policy, recomputed := range map[string]float64{"never": 0, "except_last": 0.75, "always": 1} {
		for i, s := range run(policy).Stages {
			if math.Abs(s.Recomputation-recomputed*s.Forward) > 1e-9*s.Forward {
				t.Errorf("%s, stage %d: recomputation takes %v of %v", policy, i, s.Recomputation, s.Forward)
			}
		}
	}
	r := must(t, "balance", "--model", "mlp", "--stages", "2", "--batch", "8", "--repeats", "1")
	if lines := strings.Split(r.stdout, "\n"); len(lines) != 10 || !strings.HasPrefix(lines[0], "--balance ") || !strings.HasPrefix(lines[2], "STAGE") || !strings.Contains(r.stdout, "100 %") {
		t.Errorf("got:\n%s", r.stdout)
	}
}

// TestBalanceBySize: bytes are the same on every run, and follow from policy and optimizer.
func TestBalanceBySize(t *testing.T) {
	run := func(args ...string) modelBalanceLine[sizeLine] {
		r := must(t, with([]string{"balance", "--model", "gpt", "--set", "width=16,heads=2,depth=2", "--set", "context=8", "--stages", "3", "--by", "size", "--batch", "6", "--chunks", "3", "--format", "json"}, args...)...)
		var line modelBalanceLine[sizeLine]
		decode(t, r.stdout, &line)
		var stages []stageLine
		for _, s := range line.Stages {
			stages = append(stages, s.stageLine)
			if s.Cost != float64(s.Parameters+s.Gradients+s.State+s.Buffers+s.Saved+s.Inputs) || s.Saved == 0 || s.Inputs == 0 && s.First == "embed" {
				t.Errorf("%+v", s)
			}
		}
		checkStages(t, "gpt", models.Options{Width: 16, Heads: 2, Depth: 2, Context: 8}, line.costsLine, stages)
		if line.Unit != "bytes" {
			t.Errorf("unit %q", line.Unit)
		}
		return line
	}
	sum := func(line modelBalanceLine[sizeLine], of func(s sizeLine) int64) (n int64) {
		for _, s := range line.Stages {
			n += of(s)
		}
		return n
	}
	usual := run()
	if again := run(); !slices.Equal(again.Stages, usual.Stages) {
		t.Errorf("once %+v, then %+v", usual, again)
	}
	m, err := models.New("gpt", models.Options{Width: 16, Heads: 2, Depth: 2, Context: 8})
	if err != nil {
		t.Fatal(err)
	}
	gradients := sum(usual, func(s sizeLine) int64 { return s.Gradients })
	if gradients != 4*nn.Count(m) {
		t.Errorf("%d bytes of gradients for %d parameters", gradients, nn.Count(m))
	}
	for _, test := range []struct {
		args  []string
		slots int64
	}{{nil, 1}, {[]string{"--momentum", "0"}, 0}, {[]string{"--optimizer", "adamw"}, 2}, {[]string{"--optimizer", "rmsprop"}, 1}, {[]string{"--optimizer", "rmsprop", "--momentum", "0.5"}, 2}} {
		if got := sum(run(test.args...), func(s sizeLine) int64 { return s.State }); got != test.slots*gradients {
			t.Errorf("%v: %d bytes of state, want %d times %d", test.args, got, test.slots, gradients)
		}
	}
	never, always := run("--checkpoint", "never"), run("--checkpoint", "always")
	if never.Bottleneck <= always.Bottleneck {
		t.Errorf("never takes %v bytes, always %v", never.Bottleneck, always.Bottleneck)
	}
	mixed := run("--checkpoint", "never,always,always")
	if mixed.Bottleneck > never.Bottleneck || mixed.Bottleneck < always.Bottleneck {
		t.Errorf("a policy for each stage takes %v bytes, never %v, always %v", mixed.Bottleneck, never.Bottleneck, always.Bottleneck)
	}
	r := must(t, "balance", "--model", "mlp", "--stages", "2", "--by", "size")
	if lines := strings.Split(r.stdout, "\n"); len(lines) != 10 || !strings.HasPrefix(lines[0], "--balance ") || !strings.Contains(r.stdout, "KiB") {
		t.Errorf("got:\n%s", r.stdout)
	}
}

// TestBalanceOfEveryModel: what is made up as input is what the model takes, with options too.
func TestBalanceOfEveryModel(t *testing.T) {
	for _, args := range [][]string{
		{"mlp", "size=6,channels=2"}, {"resnet20", "channels=1,width=4"}, {"resnet18", "size=32,classes=5"}, {"gpt", "context=5,width=8,heads=2,classes=7"},
		{"unet", "B=1,C=4,size=32,depth=2"}, {"amoebanetd", "L=3,D=16,size=32"},
	} {
		r := command(t, "balance", "--model", args[0], "--set", args[1], "--stages", "2", "--by", "size", "--batch", "4", "--chunks", "2", "--format", "json")
		var line modelBalanceLine[sizeLine]
		if r.code != exitDone {
			t.Errorf("%v: %s", args, r.stderr)
			continue
		}
		decode(t, r.stdout, &line)
	}
}

func TestBalanceRefuses(t *testing.T) {
	costs := func(args ...string) []string { return append([]string{"balance", "--stages", "2"}, args...) }
	model := func(args ...string) []string {
		return append([]string{"balance", "--stages", "2", "--model", "gpt"}, args...)
	}
	for _, test := range []struct {
		args []string
		want []string
	}{
		{[]string{"balance"}, []string{"--costs", "--model", "resnet20"}},
		{[]string{"balance", "--stages", "2"}, []string{"--costs", "--model"}},
		{costs("--costs", "1,2", "--model", "mlp"), []string{"--costs 1,2", "--model mlp", "one of the two"}},
		{[]string{"balance", "--costs", "1,2"}, []string{"--stages is needed"}},
		{[]string{"balance", "--model", "mlp"}, []string{"--stages is needed"}},
		{[]string{"balance", "--costs", "1,2", "--stages", "0"}, []string{"--stages 0", "at least 1"}},
		{[]string{"balance", "--costs", "1,2", "--stages", "-1"}, []string{"--stages -1", "at least 1"}},
		{[]string{"balance", "--costs", "1,2", "--stages", "3"}, []string{"--stages 3", "2 layers", "at most"}},
		{costs("--costs", ""), []string{"--costs", `""`, "want finite numbers"}},
		{costs("--costs", "1,,2"), []string{"--costs 1,,2", "element 1", "want finite"}},
		{costs("--costs", "1,x"), []string{"--costs 1,x", `"x"`, "element 1"}},
		{costs("--costs", "1,-2"), []string{"--costs 1,-2", `"-2", element 1`, "not negative"}},
		{costs("--costs", "NaN,2"), []string{"--costs NaN,2", `"NaN", element 0`, "finite"}},
		{costs("--costs", "1,Inf"), []string{`"Inf", element 1`, "finite"}},
		{costs("--costs", "1,1e999"), []string{"1e999", "out of range", "larger unit"}},
		{costs("--costs", "1e308,1e308,1e308"), []string{"more than a float64 holds", "larger unit"}},
		{costs("--costs", "1,2", "--format", "xml"), []string{`"xml"`, "json"}},
		{costs("--costs", "1,2", "--by", "size"), []string{"--by", "--costs", "--model"}},
		{costs("--costs", "1,2", "--set", "width=3"), []string{"--set", "--costs"}},

		{costs("--model", "resnet21"), []string{`"resnet21"`, "resnet20"}},
		{costs("--model", ""), []string{`--model ""`, "resnet20"}},
		{model("--stages", "1000"), []string{"--stages 1000", "gpt has", "at most"}},
		{model("--by", "space"), []string{`--by "space"`, "time", "size"}},
		{model("--set", "depth"), []string{`--set "depth"`, "NAME=VALUE"}},
		{model("--set", "hight=3"), []string{"--set hight=3", "heads="}},
		{model("--set", "depth=x"), []string{"--set depth=x", "whole number"}},
		{model("--set", "heads=3"), []string{"--set heads=3"}},
		{model("--checkpoint", "sometimes"), []string{`"sometimes"`, "except_last"}},
		{model("--checkpoint", "never,always,never"), []string{"--checkpoint never,always,never", "3 policies for 2 stages"}},
		{model("--optimizer", "sdg"), []string{`"sdg"`, "sgd"}},
		{model("--optimizer", "adam", "--momentum", "0.9"), []string{"adam", "0.9"}},
		{model("--momentum", "NaN"), []string{"--momentum NaN"}},
		{model("--momentum", "1"), []string{"--momentum 1", "below 1"}},
		{model("--batch", "0"), []string{"--batch 0", "at least 1"}},
		{model("--batch", "99999999999"), []string{"--batch 99999999999", "at most"}},
		{model("--chunks", "-1"), []string{"--chunks -1"}},
		{model("--threads", "257"), []string{"--threads 257", "at most 256"}},
		{model("--repeats", "0"), []string{"--repeats 0"}},
		{model("--stages", "two"), []string{"two", "--help"}},
		{model("extra"), []string{`"extra"`, "--help"}},
	} {
		t.Run(strings.Join(test.args[1:], " "), func(t *testing.T) {
			r := command(t, test.args...)
			line := strings.TrimSuffix(r.stderr, "\n")
			if r.code != exitUsage || r.stdout != "" || !strings.HasPrefix(line, "penstock: ") || strings.Contains(line, "\n") {
				t.Errorf("exit code %d; stdout %q, stderr:\n%s", r.code, r.stdout, r.stderr)
			}
			for _, part := range test.want {
				if !strings.Contains(line, part) {
					t.Errorf("no %q in: %s", part, line)
				}
			}
		})
	}
}

// TestBalanceStops: a signal ends the context, and the command soon after.
func TestBalanceStops(t *testing.T) {
	torchtest.Check(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	var stdout, stderr bytes.Buffer
	code := run(ctx, []string{"balance", "--model", "resnet20", "--stages", "2"}, &stdout, &stderr)
	if code != exitFailed || stdout.Len() != 0 || stderr.String() != "penstock: interrupted while layers were measured; there is no balance yet\n" {
		t.Errorf("exit code %d, stdout %q, stderr %q", code, &stdout, &stderr)
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

// TestLayerProgress: nothing is said of what is quick; a log gets whole lines, a terminal one that
// goes away again.
func TestLayerProgress(t *testing.T) {
	var log bytes.Buffer
	p := newLayerProgress(&log)
	p.layer(1, 9)
	p.next = p.next.Add(-2 * lineEvery)
	p.layer(2, 9)
	p.layer(3, 9)
	p.end()
	if log.String() != "measured 2 of 9 layers\n" {
		t.Errorf("got %q", &log)
	}
	log.Reset()
	p = &layerProgress{w: &log, live: true}
	p.layer(4, 9)
	p.end()
	if log.String() != "\r\x1b[Kmeasured 4 of 9 layers\r\x1b[K" {
		t.Errorf("got %q", &log)
	}
}
