package main

import (
	"context"
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
	"time"

	"github.com/spf13/cobra"
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
		{[]string{"--machine", machine("one.json", 1), "--chunks", "2"}, "no device has the 2 threads"},
		{[]string{"--machine", machine("five.json", 5), "--stages", "3", "--chunks", "2"}, "the machine has devices for 2, with 2 threads each"},
		{[]string{"--stages", "2", "--batch", "16", "--rows", "4"}, "--rows 4: "},
	} {
		if got := command(t, with([]string{"plan", chain}, test.args...)...); got.code != exitUsage || !strings.Contains(got.stderr, test.want) {
			t.Errorf("%v: %+v, want %q", test.args, got, test.want)
		}
	}
	old := must(t, "plan", chainFile(t), "--machine", machine("m.json", 1), "--chunks", "2")
	if want := "does not say with how many threads it was measured; it is read as 1"; !strings.Contains(old.stderr, want) {
		t.Errorf("%q lacks %q", old.stderr, want)
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
		{[]string{"--chunks", "4", "--stages", "0"}, []string{"--stages"}},
		{[]string{"--chunks", "4", "--stages", "7"}, []string{"--stages 7", "6 layers"}},
		{[]string{"--chunks", "3", "--batch", "8", "--stages", "2"}, []string{"--chunks 3", "8 rows"}},
		{[]string{"--chunks", "4", "--stages", "2", "--schedule", "2f2b"}, []string{`--schedule "2f2b": want one of gpipe`}},
		{[]string{"--chunks", "4", "--stages", "2", "--schedule", "gpipe,2f2b"}, []string{`--schedule gpipe,2f2b: "2f2b", element 1: want one of gpipe`}},
		{[]string{"--chunks", "4", "--stages", "2", "--memory-limit", "0"}, []string{"--memory-limit", "more than 0 bytes"}},
		{[]string{"--chunks", "4", "--stages", "2", "--memory-limit", "1MiB"}, []string{"no plan keeps the limits", "device 0 needs", "device 1 needs", "a limit of at least"}},
		{[]string{"--chunks", "1000000", "--stages", "2"}, []string{"--chunks 1000000", "want at most 16384"}},
		{[]string{"--chunks", "4", "--stages", "4", "--schedule", "bfs,zb-v,interleaved"}, []string{"no schedule can be planned: bfs: 8 stages are more than 6 units; zb-v: 8 stages"}},
		{[]string{"--chunks", "4", "--machine", filepath.Join(t.TempDir(), "none.json")}, []string{"--machine", "none.json: no such file"}},
		{[]string{"--chunks", "4", "--machine", t.TempDir()}, []string{"--machine", "not a regular file but a directory"}},
		{[]string{"--chunks", "4", "--machine", machine("")}, []string{"--machine", `machine.json: devices is []; want at least one device`}},
		{[]string{"--chunks", "4", "--machine", machine(`{"name":"a","bytes":-1,"threads":1,"speed":1}`)}, []string{"devices[0].bytes is -1"}},
		{[]string{"--chunks", "4", "--machine", machine(`{"name":"a","bytes":1}`)}, []string{"devices[0].threads is missing"}},
		{[]string{"--chunks", "4", "--stages", "2", "--machine", machine(`{"name":"a","bytes":1000000000,"threads":1,"speed":1}`)}, []string{"the machine has devices for 1, with 1 thread each"}},
		{[]string{"--chunks", "4", "--stages", "2", "--latency", "2h"}, []string{"--latency", "at most 1h"}},
		{[]string{"--stages", "2", "--batch", "2000000000"}, []string{"chain.json: ", "so long takes a micro-batch", "want steps of less than a year"}},
		{[]string{"--chunks", "4", "--replicas", "2", "--stages", "1"}, []string{"--replicas", "--machine"}},
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

// What a machine cannot have is said in words of the command line.
func TestPlansOfReplicasRefuse(t *testing.T) {
	machine := textFile(t, "machine.json", `{"version":1,"devices":[{"name":"a","count":3,"bytes":1000000000,"threads":1,"speed":1}]}`)
	for replicas, want := range map[string]string{"4": ": 4 replicas are wanted, and the machine has 3 devices with 1 thread", "3": "--replicas 3: want a divisor of the 8 rows of a step"} {
		refuses(t, []string{"plan", chainFile(t), "--machine", machine, "--batch", "8", "--replicas", replicas}, exitUsage, want)
	}
}

// Data that are not there are wrong input.
func TestPlansOfMissingDataRefuse(t *testing.T) {
	refuses(t, []string{"plan", "--model", "mlp", "--batch", "8", "--data", "fashion-mnist", "--data-dir", filepath.Join(t.TempDir(), "none")}, exitUsage, "name its directory")
}

// What is no chain is wrong input.
func TestPlanRefusesWhatIsNoChain(t *testing.T) {
	for path, want := range map[string]string{filepath.Join(t.TempDir(), "none.json"): "no such file", textFile(t, "x.json", "{"): "unexpected EOF", textFile(t, "y.json", `{"version":1}`): "input_bytes"} {
		got := command(t, "plan", path, "--stages", "2", "--chunks", "2")
		if got.code != exitUsage || !strings.Contains(got.stderr, path) || !strings.Contains(got.stderr, want) || strings.Count(got.stderr, "\n") != 1 {
			t.Errorf("%s: %+v, want %q", path, got, want)
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
	if want := "its times are of no use: the median run took 150 % longer"; got.code != exitUsage || !strings.Contains(got.stderr, want) || !strings.Contains(got.stderr, "penstock profile again") {
		t.Errorf("exit code %d: %s", got.code, got.stderr)
	}
	for x, told := range map[string]bool{"0.05": false, "0.5": true} {
		if got := must(t, "plan", spread(x), "--stages", "2", "--chunks", "2"); strings.Contains(got.stderr, "measured times are uncertain") != told {
			t.Errorf("a spread of %s: %s", x, got.stderr)
		}
	}
	for _, x := range []string{"-1", "null", `"a"`} {
		if got := command(t, "plan", spread(x), "--stages", "2", "--chunks", "2"); got.code == exitDone || !strings.Contains(got.stderr, "spread") {
			t.Errorf("a spread of %s: exit code %d, %s", x, got.code, got.stderr)
		}
	}
}

// What cannot fit whatever is measured is refused before anything is: gpt2-xl would be measured for minutes, and takes
// more memory than there is. What is missing is said of all devices together, or of the layer that has most.
func TestPlansThatCannotFitAreNotMeasured(t *testing.T) {
	machine := textFile(t, "machine.json", `{"version":1,"devices":[{"name":"gpu","count":4,"bytes":4000000000,"threads":1,"speed":1}]}`)
	out := filepath.Join(t.TempDir(), "plan.json")
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"--devices", "2", "--memory-limit", "4GiB"}, "no plan keeps the limits: parameters, gradients and sgd's state take 18"},
		{[]string{"--devices", "2", "--memory-limit", "4GiB"}, "and all devices together may have 8589934592 bytes (8.0 GiB); want a limit of more than 9"},
		{[]string{"--devices", "2", "--memory-limit", "4GiB"}, ", or more than 4 devices; the least limit, which is higher, is told within that"},
		{[]string{"--devices", "2", "--memory-limit", "4GiB", "--optimizer", "adamw"}, "adamw's state take 24"},
		{[]string{"--memory-limit", "2GiB", "--optimizer", "adam"}, "want more devices, or higher limits"},
		{[]string{"--devices", "48", "--memory-limit", "700MiB"}, `layer "wte" takes 964934400 bytes (920.2 MiB) for its parameters, gradients and sgd's state, and a device may have 734003200 bytes (700.0 MiB); more devices will not help; want a limit of more than 964934400 bytes (920.2 MiB), or an --optimizer of less state; the least`},
		{[]string{"--machine", machine}, "and all devices together may have 16000000000 bytes (14.9 GiB); want more devices, or higher limits"},
		{[]string{"--machine", machine, "--memory-limit", "700MB"}, "and a device may have 700000000 bytes (667.6 MiB)"},
	} {
		got := command(t, with([]string{"plan", "--model", "gpt2-xl", "--batch", "8", "--out", out}, test.args...)...)
		if got.code != exitUsage || !strings.Contains(got.stderr, test.want) || strings.Contains(got.stderr, "measured") {
			t.Errorf("%v: exit code %d, want %q in %s", test.args, got.code, test.want, got.stderr)
		}
		if _, err := os.Stat(out); err == nil {
			t.Errorf("%v: something is written", test.args)
		}
	}
	got := command(t, "train", "--model", "gpt2-xl", "--data", "text", "--data-dir", textFile(t, "text", strings.Repeat("a text ", 1000)), "--batch", "8", "--plan", "auto", "--memory-limit", "1GiB", "--steps", "1")
	if got.code != exitUsage || !strings.Contains(got.stderr, "no plan keeps the limits: ") || strings.Contains(got.stderr, "measured") {
		t.Errorf("--plan auto: exit code %d, %s", got.code, got.stderr)
	}
}

// A slip is said in one line: what is uncertain of the chain's times is said of what is planned.
func TestSlipsComeBeforeWarnings(t *testing.T) {
	text, err := os.ReadFile(chainFile(t))
	if err != nil {
		t.Fatal(err)
	}
	chain := textFile(t, "chain.json", strings.Replace(string(text), `"input_bytes"`, `"spread":0.5,"input_bytes"`, 1))
	for _, args := range [][]string{{"--machine", textFile(t, "m.json", "{}"), "--chunks", "2"}, {"--stages", "9", "--chunks", "2"}} {
		if got := command(t, with([]string{"plan", chain}, args...)...); got.code != exitUsage || strings.Count(got.stderr, "\n") != 1 {
			t.Errorf("%v: exit code %d, %s", args, got.code, got.stderr)
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
		said := regexp.MustCompile(`(?m)^time +\S.* is busy for [\d.]+ % of the step; of that (.*)\nmemory +\S.* holds .* of what its layers hold (.*)$`).FindStringSubmatch(
			regexp.MustCompile(`\n {5,}`).ReplaceAllString(got.stdout, " "))
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
		{"--model", "mlp", "--batch", "16", "--devices", "2", "--memory-limit", "1KiB"}, // measured for the least limit
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

// A layer that no device has memory for is named: more devices do not help.
func TestPlansOfALayerThatIsTooLarge(t *testing.T) {
	// 784 x 256 weights and 256 biases are 803,840 bytes: four times as many with adam.
	r := command(t, "plan", "--model", "mlp", "--batch", "16", "--devices", "2", "--repeats", "1", "--optimizer", "adam", "--memory-limit", "1MiB")
	for _, want := range []string{`layer "fc1" takes 3215360 bytes`, `; more devices will not, as layer "fc1..relu1" alone takes 32`, ", and a device may have 1048576 bytes"} {
		if r.code != exitUsage || !strings.Contains(r.stderr, want) {
			t.Errorf("exit code %d, want %q in\n%s", r.code, want, r.stderr)
		}
	}
}

// The time that a search has taken goes on while its plan is explained.
func TestOneClockOfAnExplanation(t *testing.T) {
	file := chainFile(t)
	f, cmd := searchFlags{stages: 2, chunks: 2, schedules: []string{"gpipe"}}, &cobra.Command{}
	job, err := f.read(cmd, []string{file})
	if err != nil {
		t.Fatal(err)
	}
	var told strings.Builder
	show := newPlanProgress(&told, "planning")
	show.end()
	show.began = show.began.Add(-time.Hour)
	if _, _, _, err := job.explain(context.Background(), show); err != nil {
		t.Fatal(err)
	}
	show.tell(time.Now())
	if got := told.String(); got != "planning for 3600 s: schedule 1 of 1, gpipe, with one more device\n" {
		t.Errorf("%q", got)
	}
}
