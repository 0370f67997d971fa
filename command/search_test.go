package command

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	noerr "penstock.example/internal/must"
)

// planLine runs penstock plan and decodes its JSON, which has these fields and no others.
func planLine(t *testing.T, args ...string) (line planJSON) {
	t.Helper()
	decode(t, must(t, with([]string{"plan"}, with(args, "--format", "json")...)...).stdout, &line)
	return line
}

// The chain's six layers take 3000 us each on each micro-batch, the loss 100.
func TestPlanOfAChain(t *testing.T) {
	two := []string{chainFile(t), "--stages", "2", "--chunks", "4"}
	line := planLine(t, with(two, "--schedule", "1f1b")...)
	// 9000 us a stage: 4 of the second one's with the loss, and 9000 for the first one's bubble.
	if !slices.Equal(line.Balance, []int{3, 3}) || line.Schedule != "1f1b" || line.Chunks != 4 ||
		line.Step != 4*9100+9000 || line.LowerBound != line.Step || !line.Proved {
		t.Errorf("%+v", line)
	}
	limit := slices.Max(line.Peak) * 3 / 4
	under := planLine(t, with(two, "--schedule", "1f1b", "--memory-limit", fmt.Sprint(limit))...)
	if slices.Max(under.Peak) > limit || under.Step < line.Step || under.LowerBound > under.Step ||
		under.LowerBound < line.LowerBound {
		t.Errorf("under %d bytes: %+v", limit, under)
	}
	if all := planLine(t, two...); all.Step > line.Step {
		t.Errorf("the best of all schedules takes %v us, 1f1b %v", all.Step, line.Step)
	}
	text := must(t, with([]string{"plan", "explain"}, two...)...).stdout
	for _, want := range []string{"step", "SCHEDULE", "gpipe", "zb-v", "the best", "a to b", "is busy for",
		"memory ", "one more device"} {
		if !strings.Contains(text, want) {
			t.Errorf("the table lacks %q:\n%s", want, text)
		}
	}
	var e planJSON
	decode(t, must(t, with([]string{"plan", "explain"}, with(two, "--format", "json")...)...).stdout, &e)
	if e.Step != planLine(t, two...).Step || len(e.Explained.Slow) == 0 || len(e.Explained.Gains) != 1 {
		t.Errorf("%+v", e)
	}
}

func TestPlanForAMachine(t *testing.T) {
	machine := textFile(t, "machine.json", `{"version":1,
		"devices":[{"name":"fast","bytes":1e9,"threads":1,"speed":2},
			{"name":"slow","bytes":1e9,"threads":1,"speed":1}],
		"links":[{"latency_us":10,"bytes_per_second":1e12}]}`)
	line := planLine(t, chainFile(t), "--machine", machine, "--stages", "2", "--chunks", "8", "--schedule",
		"1f1b")
	if !slices.Equal(line.Balance, []int{4, 2}) || !slices.Equal(line.Devices, []string{"fast", "slow"}) {
		t.Errorf("%+v, want more layers on the faster device, in the order of the file", line)
	}
}

// A chain says the rows and the threads that it was measured with, and how far its times can be trusted.
func TestPlanGoesByWhatTheChainWasMeasuredWith(t *testing.T) {
	text := noerr.Get(os.ReadFile(chainFile(t)))(t)
	chain := func(fields string) string {
		return textFile(t, "chain.json",
			strings.Replace(string(text), `"input_bytes"`, fields+`,"input_bytes"`, 1))
	}
	measured := chain(`"model":"gpt depth=2","rows":8,"threads":2`)
	machine := textFile(t, "m.json",
		`{"version":1,"devices":[{"name":"cpu","bytes":1e9,"threads":4,"speed":1}]}`)
	// 18,000 us and a loss of 100 for 8 rows, 4 times as much for 32.
	if line := planLine(t, measured, "--stages", "1", "--batch", "32", "--schedule", "gpipe"); line.Step !=
		4*18100 || line.Threads != 2 {
		t.Errorf("a batch of 32: %+v", line)
	}
	if line := planLine(t, measured, "--machine", machine, "--stages", "2", "--batch", "32", "--schedule",
		"gpipe"); !slices.Equal(line.Devices, []string{"cpu:0", "cpu:1"}) {
		t.Errorf("on parts of a device: %+v", line)
	}
	svg := filepath.Join(t.TempDir(), "curve.svg")
	must(t, "remat", "curve", measured, "--out", svg)
	if picture, err := os.ReadFile(svg); err != nil ||
		!strings.Contains(string(picture), "gpt depth=2, batch of 8, 6 layers") {
		t.Errorf("%v: the picture has no title with model and batch", err)
	}
	two := []string{"--stages", "2", "--chunks", "2"}
	refuses(t, with([]string{"plan", chain(`"spread":1.5`)}, two...), exitUsage,
		"its times are of no use: the median run took 150 % longer", "measure again when")
	for x, told := range map[string]bool{"0.05": false, "0.5": true} {
		got := must(t, with([]string{"plan", chain(`"spread":` + x)}, two...)...)
		if strings.Contains(got.stderr, "measured times are uncertain") != told {
			t.Errorf("a spread of %s: %s", x, got.stderr)
		}
	}
}

// The table counts the layers of the model, also if several were measured as one unit.
func TestPlansCountLayers(t *testing.T) {
	text := must(t, "plan", "--model", "mlp", "--batch", "4", "--devices", "2", "--chunks", "2", "--threads",
		"1", "--repeats", "1").stdout
	sum := 0
	for _, row := range regexp.MustCompile(`(?m)^\d+ +cpu:\d +(\d+): `).FindAllStringSubmatch(text, -1) {
		n, _ := strconv.Atoi(row[1])
		sum += n
	}
	if sum != 6 {
		t.Errorf("%d layers, want the 6 of mlp:\n%s", sum, text)
	}
}

// The limit that is told where nothing fits has a plan, at the latest when the limits of two tries are told.
func TestPlansKeepTheLimitThatIsTold(t *testing.T) {
	for _, args := range [][]string{
		{"plan", chainFile(t), "--stages", "2", "--chunks", "2", "--schedule", "1f1b", "--memory-limit",
			"17MiB"},
		{"plan", "--model", "mlp", "--batch", "16", "--devices", "1", "--chunks", "2", "--schedule", "1f1b",
			"--repeats", "1", "--memory-limit", "3160KiB"},
	} {
		r := command(t, args...)
		if r.code != exitUsage {
			t.Errorf("%v: %+v", args, r)
		}
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

// What cannot fit whatever is measured is refused before anything is: gpt2-xl would be measured for
// minutes, and takes more memory than there is.
func TestPlansThatCannotFitAreNotMeasured(t *testing.T) {
	xl := []string{"plan", "--model", "gpt2-xl", "--batch", "8"}
	refuses(t, with(xl, "--devices", "2", "--memory-limit", "4GiB", "--optimizer", "adamw"), exitUsage,
		"--memory-limit 4294967296: parameters, gradients and the optimizer's state take 24")
}

// Sizes that cannot fit are said in one line, and the plan is one of the others.
func TestSizesThatCannotFitAreNotMeasured(t *testing.T) {
	r := must(t, "plan", "--model", "resnet20", "--set", "size=32,width=4", "--batch", "32", "--devices",
		"2", "--threads", "1", "--schedule", "1f1b",
		"--repeats", "1", "--memory-limit", "900KiB", "--format", "json")
	if strings.Count(r.stderr, "micro-batches of more rows are not measured: layer ") != 1 {
		t.Fatalf("stderr:\n%s", r.stderr)
	}
	var line planJSON
	decode(t, r.stdout, &line)
	if line.Chunks <= 2 || line.Train["batch"] != "32" {
		t.Errorf("%+v", line)
	}
}
