package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// planLine runs penstock plan and decodes its JSON, which has these fields and no others.
func planLine(t *testing.T, args ...string) searchLine {
	t.Helper()
	got := must(t, with([]string{"plan"}, with(args, "--format", "json")...)...)
	var line searchLine
	d := json.NewDecoder(strings.NewReader(got.stdout))
	d.DisallowUnknownFields()
	if err := d.Decode(&line); err != nil {
		t.Fatal(err)
	}
	return line
}

// The chain's six layers take 3000 us each on each micro-batch, the loss 100.
func TestPlanOfAChain(t *testing.T) {
	chain := chainFile(t)
	line := planLine(t, chain, "--stages", "2", "--chunks", "4", "--schedule", "1f1b")
	// 9000 us a stage: 4 of the second one's with the loss, and 9000 for the first one's bubble.
	if !slices.Equal(line.Balance, []int{3, 3}) || line.Schedule != "1f1b" || line.Chunks != 4 || line.Step != 4*9100+9000 || line.LowerBound != line.Step || !line.Proved {
		t.Errorf("%+v", line)
	}
	limit := slices.Max(line.Peak) * 3 / 4
	under := planLine(t, chain, "--stages", "2", "--chunks", "4", "--schedule", "1f1b", "--memory-limit", fmt.Sprint(limit))
	if slices.Max(under.Peak) > limit || under.Step < line.Step || under.LowerBound > under.Step || under.LowerBound < line.LowerBound {
		t.Errorf("under %d bytes: %+v", limit, under)
	}
	all := planLine(t, chain, "--stages", "2", "--chunks", "4")
	if all.Step > line.Step {
		t.Errorf("the best of all schedules takes %v us, 1f1b %v", all.Step, line.Step)
	}
	if batch := planLine(t, chain, "--stages", "2", "--batch", "8", "--schedule", "gpipe,1f1b"); batch.Chunks < 2 || 8%batch.Chunks != 0 {
		t.Errorf("of a batch of 8 rows: %+v", batch)
	}
	text := must(t, "plan", chain, "--stages", "2", "--chunks", "4").stdout
	for _, want := range []string{"step", "SCHEDULE", "gpipe", "zb-v", "the best", "a to b"} {
		if !strings.Contains(text, want) {
			t.Errorf("the table lacks %q:\n%s", want, text)
		}
	}
}

func TestPlanForAMachine(t *testing.T) {
	chain := chainFile(t)
	machine := textFile(t, "machine.json", `{"version":1,"devices":[{"name":"fast","bytes":1000000000,"threads":1,"speed":2},{"name":"slow","bytes":1000000000,"threads":1,"speed":1}],
		"links":[{"latency_us":10,"bytes_per_second":1e12}]}`)
	line := planLine(t, chain, "--machine", machine, "--stages", "2", "--chunks", "8", "--schedule", "1f1b")
	if !slices.Equal(line.Balance, []int{4, 2}) || !slices.Equal(line.Devices, []string{"fast", "slow"}) {
		t.Errorf("%+v, want more layers on the faster device, in the order of the file", line)
	}
	text := must(t, "plan", "explain", chain, "--machine", machine, "--chunks", "8", "--schedule", "1f1b").stdout
	for _, want := range []string{"is busy for", "memory", "one more device", "10 % more bytes", "twice the bandwidth"} {
		if !strings.Contains(text, want) {
			t.Errorf("explain lacks %q:\n%s", want, text)
		}
	}
}

// What sets time and memory is data as well: the same as the table says, beside the plan itself.
func TestPlanExplainAsJSON(t *testing.T) {
	chain := chainFile(t)
	explain := func(args ...string) (e planExplanation) {
		t.Helper()
		decode(t, must(t, with([]string{"plan", "explain", chain, "--stages", "2", "--chunks", "4", "--schedule", "1f1b", "--format", "json"}, args...)...).stdout, &e)
		return e
	}
	free := explain()
	if plan := planLine(t, chain, "--stages", "2", "--chunks", "4", "--schedule", "1f1b"); !reflect.DeepEqual(free.searchLine, plan) {
		t.Errorf("explained: %+v, planned: %+v", free.searchLine, plan)
	}
	// 9000 us a stage, of which each layer has a third, and the loss on the second.
	if d := free.Time; d.Device != 1 || d.Name != "device 1" || d.Busy != 4*9100/free.Step || len(d.Layers) != 3 || d.Layers[0].Unit < 3 ||
		d.Layers[0].Name != string('a'+rune(d.Layers[0].Unit)) || math.Abs(d.Layers[0].Part-1./3) > 0.01 {
		t.Errorf("time: %+v", d)
	}
	if d := free.Memory; d.Peak != slices.Max(free.Peak) || d.Peak != free.Peak[d.Device] || d.Limit != 0 || len(d.Layers) != 3 {
		t.Errorf("memory: %+v", d)
	}
	if len(free.Gains) != 1 || free.Gains[0].What != "one more device" || free.Gains[0].Part != 1-free.Gains[0].Step/free.Step || free.Gains[0].Part < 0.1 {
		t.Errorf("without a limit and with free links: %+v", free.Gains)
	}
	limit := slices.Max(free.Peak) * 3 / 4
	short := explain("--memory-limit", fmt.Sprint(limit), "--bandwidth", "1GB/s")
	var what []string
	for _, g := range short.Gains {
		what = append(what, g.What)
		if g.Step > short.Step || g.Part < 0 {
			t.Errorf("%+v of %v us", g, short.Step)
		}
	}
	if !slices.Equal(what, []string{"one more device", "10 % more bytes", "twice the bandwidth"}) || short.Memory.Limit != limit || short.Memory.Peak > limit {
		t.Errorf("under %d bytes: gains of %q, %+v", limit, what, short.Memory)
	}
}

// A chain says the rows and the threads that it was measured with: times of as many are asked of a machine.
func TestPlanGoesByWhatTheChainWasMeasuredWith(t *testing.T) {
	text, err := os.ReadFile(chainFile(t))
	if err != nil {
		t.Fatal(err)
	}
	chain := textFile(t, "chain.json", strings.Replace(string(text), `"input_bytes"`, `"model":"gpt depth=2","rows":8,"threads":2,"input_bytes"`, 1))
	machine := func(name string, threads int) string {
		return textFile(t, name, fmt.Sprintf(`{"version":1,"devices":[{"name":"cpu","bytes":1e9,"threads":%d,"speed":1}]}`, threads))
	}
	// 18,000 us and a loss of 100 for 8 rows, 4 times as much for 32.
	if line := planLine(t, chain, "--stages", "1", "--batch", "32", "--schedule", "gpipe"); line.Step != 4*18100 || line.Threads != 2 {
		t.Errorf("a batch of 32: %+v", line)
	}
	if line := planLine(t, chain, "--machine", machine("m.json", 4), "--stages", "2", "--batch", "32", "--schedule", "gpipe"); !slices.Equal(line.Devices, []string{"cpu/0", "cpu/1"}) {
		t.Errorf("on parts of a device: %+v", line)
	}
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"--machine", machine("one.json", 1), "--chunks", "2"}, "it has devices for 0 stages with 2 threads each"},
	} {
		if got := command(t, with([]string{"plan", chain}, test.args...)...); got.code != exitUsage || !strings.Contains(got.stderr, test.want) {
			t.Errorf("%v: %+v, want %q", test.args, got, test.want)
		}
	}
	svg := filepath.Join(t.TempDir(), "curve.svg")
	must(t, "remat", "curve", chain, "--out", svg)
	if picture, err := os.ReadFile(svg); err != nil || !strings.Contains(string(picture), "gpt depth=2, batch of 8, 6 layers") {
		t.Errorf("%v: the picture has no title with model and batch", err)
	}
}

func TestPlanRefuses(t *testing.T) {
	chain := chainFile(t)
	machine := func(device string) string {
		return textFile(t, "machine.json", `{"version":1,"devices":[`+device+`]}`)
	}
	out := filepath.Join(t.TempDir(), "plan.json")
	for _, test := range []struct {
		args []string
		want []string
	}{
		{[]string{}, []string{"--chunks M", "--batch N"}},
		{[]string{"--chunks", "4"}, []string{"--stages P", "--machine FILE"}},
		{[]string{"--chunks", "4", "--stages", "7"}, []string{"--stages 7", "6 layers"}},
		{[]string{"--chunks", "3", "--batch", "8", "--stages", "2"}, []string{"--chunks 3", "8 rows"}},
		{[]string{"--chunks", "4", "--stages", "2", "--schedule", "gpipe,2f2b"}, []string{`--schedule gpipe,2f2b: "2f2b", element 1: did you mean 1f1b? want one of gpipe`}},
		{[]string{"--chunks", "4", "--stages", "2", "--memory-limit", "1MiB"}, []string{"no plan keeps the limits", "device 0 needs", "device 1 needs", "a limit of at least"}},
		{[]string{"--chunks", "1000000", "--stages", "2"}, []string{"--chunks 1000000", "want at most 16384"}},
		{[]string{"--chunks", "4", "--stages", "4", "--schedule", "bfs,zb-v,interleaved"}, []string{"no schedule can be planned: bfs: 8 stages are more than 6 units"}},
		{[]string{"--chunks", "4", "--machine", filepath.Join(t.TempDir(), "none.json")}, []string{"--machine", "none.json: no such file"}},
		{[]string{"--chunks", "4", "--machine", machine("")}, []string{"--machine", `the machine has none; want at least one`}},
		{[]string{"--chunks", "4", "--stages", "2", "--machine", machine(`{"name":"a","bytes":1000000000,"threads":1,"speed":1}`)}, []string{"it has devices for 1 stages with 1 thread each"}},
		{[]string{"--chunks", "4", "--stages", "2", "--latency", "2h"}, []string{"--latency", "at most 1h"}},
		{[]string{"--batch", "8", "--replicas", "3", "--machine", machine(`{"name":"a","count":3,"bytes":1000000000,"threads":1,"speed":1}`)}, []string{"--replicas 3: want a divisor of the 8 rows"}},
	} {
		got := command(t, with([]string{"plan", chain, "--out", out}, test.args...)...)
		if got.code != exitUsage || got.stdout != "" || strings.Count(got.stderr, "\n") != 1 {
			t.Errorf("%v: exit code %d, stdout %q, stderr:\n%s", test.args, got.code, got.stdout, got.stderr)
		}
		for _, want := range test.want {
			if !strings.Contains(got.stderr, want) {
				t.Errorf("%v: %s lacks %q", test.args, got.stderr, want)
			}
		}
		if _, err := os.Stat(out); err == nil {
			t.Errorf("%v: a file is written", test.args)
		}
	}
}

// The least limit that is told is enough.
func TestPlanSaysWhatWouldDo(t *testing.T) {
	chain := chainFile(t)
	got := command(t, "plan", chain, "--stages", "2", "--chunks", "2", "--schedule", "1f1b", "--memory-limit", "17MiB")
	_, rest, ok := strings.Cut(got.stderr, "a limit of at least ")
	least, _, _ := strings.Cut(rest, " bytes (")
	if !ok || got.code != exitUsage {
		t.Fatalf("exit code %d: %s", got.code, got.stderr)
	}
	planLine(t, chain, "--stages", "2", "--chunks", "2", "--schedule", "1f1b", "--memory-limit", least)
}

// Times that vary too much are of no use; a chain whose times vary less is planned with a warning.
func TestPlanLooksAtTheSpreadOfTimes(t *testing.T) {
	text, err := os.ReadFile(chainFile(t))
	if err != nil {
		t.Fatal(err)
	}
	spread := func(x string) string {
		return textFile(t, "chain.json", strings.Replace(string(text), `"input_bytes"`, `"spread":`+x+`,"input_bytes"`, 1))
	}
	got := command(t, "plan", spread("1.5"), "--stages", "2", "--chunks", "2")
	if want := "its times are of no use: the median run took 150 % longer"; got.code != exitUsage || !strings.Contains(got.stderr, want) || !strings.Contains(got.stderr, "measure again when") {
		t.Errorf("exit code %d: %s", got.code, got.stderr)
	}
	for x, told := range map[string]bool{"0.05": false, "0.5": true} {
		if got := must(t, "plan", spread(x), "--stages", "2", "--chunks", "2"); strings.Contains(got.stderr, "measured times are uncertain") != told {
			t.Errorf("a spread of %s: %s", x, got.stderr)
		}
	}
}

// A plan by a file is for as many devices as it has.
func TestAPlanHasItsDevices(t *testing.T) {
	file := filepath.Join(t.TempDir(), "plan.json")
	must(t, "plan", "--model", "mlp", "--batch", "16", "--devices", "2", "--chunks", "2", "--schedule", "gpipe", "--repeats", "1", "--out", file)
	refuses(t, []string{"train", "--plan", file, "--data", "synthetic", "--steps", "1", "--stages", "3"}, exitUsage, "--stages 3: the plan of --plan "+file+" has 2; want --stages left out, or another plan")
	must(t, "train", "--plan", file, "--data", "synthetic", "--steps", "1", "--stages", "2")
}

// A model's plan is explained by the layers that were measured, of which the step that is planned has the loss beyond.
func TestPlanExplainOfAModel(t *testing.T) {
	for _, test := range [][]string{
		{"--model", "mlp", "--batch", "16", "--devices", "1"},
		{"--model", "mlp", "--batch", "16", "--devices", "2", "--memory-limit", "6MiB"},
		{"--model", "resnet20", "--set", "width=4", "--data", "synthetic", "--data-set", "size=16", "--batch", "8", "--devices", "2", "--memory-limit", "1MiB"},
	} {
		got := must(t, with([]string{"plan", "explain", "--chunks", "2", "--schedule", "1f1b", "--repeats", "1"}, test...)...)
		said := regexp.MustCompile(`(?m)^time +\S.* is busy for [\d.]+ % of the step; of that (.*)\nmemory +\S.* holds .* of what its layers hold (.*)$`).FindStringSubmatch(got.stdout)
		if said == nil {
			t.Fatalf("%v: no time and memory in\n%s", test, got.stdout)
		}
		for _, list := range said[1:] {
			for share := range strings.SplitSeq(list, ", ") {
				var part float64
				var name string
				if n, err := fmt.Sscanf(share, "%g %% %s", &part, &name); n != 2 || part < 0 || part > 100 {
					t.Errorf("%v: the share %q: %v", test, share, err)
				}
			}
		}
	}
}

// The limit that is told where nothing fits has a plan, at the latest when the limits of two tries are told.
func TestPlansKeepTheLimitThatIsTold(t *testing.T) {
	for _, model := range [][]string{
		{"--model", "mlp", "--batch", "16", "--devices", "1", "--memory-limit", fmt.Sprint(3160 << 10)},
		{"--model", "resnet20", "--set", "width=4", "--data", "synthetic", "--data-set", "size=16", "--batch", "8", "--devices", "2", "--memory-limit", fmt.Sprint(200 << 10)},
	} {
		args := with([]string{"plan", "--chunks", "2", "--schedule", "1f1b", "--repeats", "1"}, model...)
		r := command(t, args...)
		for range 2 {
			said := regexp.MustCompile(`at least (\d+) bytes`).FindStringSubmatch(r.stderr)
			if r.code != exitUsage || said == nil {
				break
			}
			args[len(args)-1] = said[1]
			r = command(t, args...)
		}
		if r.code != exitDone || r.stdout == "" {
			t.Errorf("%v: exit code %d\n%s", args, r.code, r.stderr)
		}
	}
}

// What cannot fit whatever is measured is refused before anything is: gpt2-xl would be measured for minutes, and takes
// more memory than there is.
func TestPlansThatCannotFitAreNotMeasured(t *testing.T) {
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"--devices", "2", "--memory-limit", "4GiB"}, "--memory-limit 4294967296: parameters, gradients and the optimizer's state take 18"},
		{[]string{"--devices", "2", "--memory-limit", "4GiB"}, "and all devices together may have 8589934592 bytes (8.0 GiB); want larger limits"},
		{[]string{"--devices", "2", "--memory-limit", "4GiB", "--optimizer", "adamw"}, "state take 24"},
		{[]string{"--devices", "48", "--memory-limit", "700MiB"}, `state of layer "wte" take 964934400 bytes (920.2 MiB), and a device may have 734003200 bytes (700.0 MiB); want larger limits`},
	} {
		refuses(t, with([]string{"plan", "--model", "gpt2-xl", "--batch", "8"}, test.args...), exitUsage, test.want)
	}
}

// Sizes that cannot fit are said in one line, and the plan is one of the others.
func TestSizesThatCannotFitAreNotMeasured(t *testing.T) {
	r := must(t, "plan", "--model", "resnet20", "--set", "size=32,width=4", "--batch", "32", "--devices", "2", "--threads", "1", "--schedule", "1f1b",
		"--repeats", "1", "--memory-limit", "900KiB", "--format", "json")
	if strings.Count(r.stderr, "micro-batches of more rows are not measured: layer ") != 1 {
		t.Fatalf("stderr:\n%s", r.stderr)
	}
	var line searchLine
	decode(t, r.stdout, &line)
	if line.Rows >= 16 || line.Rows*line.Chunks != 32 {
		t.Errorf("%+v", line)
	}
}
