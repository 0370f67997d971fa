package command

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"penstock.example/data"
	"penstock.example/internal/draws"
	noerr "penstock.example/internal/must"
)

// inAuto is a run that plans itself.
var inAuto = []string{"train", "--model", "mlp", "--data", "synthetic", "--batch", "64", "--plan", "auto",
	"--format", "json"}

// chosen is the flags that a run said it has chosen for itself, and the line in which it said so.
func chosen(t *testing.T, stderr string) (flags []string, line string) {
	t.Helper()
	plan := regexp.MustCompile(`--plan auto: (.*?(\S+) with (--balance \S+ --chunks \S+ --threads \d+).*)`)
	found := plan.FindStringSubmatch(stderr)
	if found == nil {
		t.Fatalf("nothing is said of a plan:\n%s", stderr)
	}
	return append([]string{"--schedule", found[2]}, strings.Fields(found[3])...), found[1]
}

// Processes that plan themselves have the plan of rank 0, with a device for each at least, and the weights
// that one process has by the same micro-batches and threads.
func TestProcessesPlanThemselves(t *testing.T) {
	for _, more := range [][]string{{"--stages", "3"}, {"--memory-limit", "3MiB", "--chunks", "4"}, nil} {
		if !draws.Full && more[0] != "--stages" {
			break
		}
		r := mustTrain(t, launched(2, with(with(inAuto, "--steps", "2"), more...)...)...)
		if strings.Count(r.stderr, "from process to process: ") != 1 {
			t.Errorf("%v: stderr:\n%s", more, r.stderr)
		}
		steps, done := lines(t, r.stdout)
		flags, _ := chosen(t, r.stderr)
		want := 2
		if len(more) > 0 && more[0] == "--stages" {
			want = 3
		}
		if len(steps) != 2 || len(steps[0].PeakBytes) != want {
			t.Errorf("%v: %d steps on %d devices, want 2 on %d", more, len(steps), len(steps[0].PeakBytes),
				want)
		}
		same := []string{"train", "--model", "mlp", "--data", "synthetic", "--batch", "64", "--steps", "2"}
		for i := 0; i < len(flags); i += 2 {
			if flags[i] == "--chunks" || flags[i] == "--threads" {
				same = append(same, flags[i], flags[i+1])
			}
		}
		if sum := sha(t, same...); sum != done.ParamsSHA256 {
			t.Errorf("%v: other weights than one process by %v", more, same)
		}
	}
}

// A run that goes on in the same world has the plan that it had, and the weights of a run that was not
// interrupted. In another world it is planned again, and says so.
func TestPlansOfResumedRuns(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	args := with(inAuto, "--out", out)
	first, _ := chosen(t, must(t, with(args, "--steps", "2")...).stderr)
	whole := sha(t, with([]string{"train", "--model", "mlp", "--data", "synthetic", "--batch", "64",
		"--steps", "3"}, first...)...)
	r := must(t, with(args, "--steps", "3", "--resume")...)
	same, said := chosen(t, r.stderr)
	if _, done := lines(t, r.stdout); done.ParamsSHA256 != whole || !slices.Equal(first, same) ||
		!strings.HasPrefix(said, "as before, ") {
		t.Errorf("%v, then %v (%s): the weights %s, want %s", first, same, said, done.ParamsSHA256, whole)
	}
	chunks := first[slices.Index(first, "--chunks")+1]
	for i, test := range []struct {
		processes int
		args      []string
		want      string
	}{
		{1, []string{"--stages", "2"}, "planned again, "},
		{1, []string{"--stages", "2", "--memory-limit", "4MiB"}, "planned again, "},
		{2, nil, "planned again, "},
	} {
		run := with(with(args, "--steps", fmt.Sprint(4+i), "--resume"), test.args...)
		if test.processes > 1 {
			run = launched(test.processes, run...)
		}
		stderr := mustTrain(t, run...).stderr
		var said string
		same, said = chosen(t, stderr)
		if !strings.HasPrefix(said, test.want) {
			t.Errorf("%v: %s\nwant %s", test.args, said, test.want)
		}
		now := same[slices.Index(same, "--chunks")+1]
		if told := strings.Contains(stderr, "results differ"); told != (now != chunks) {
			t.Errorf("%v: --chunks %s after %s, and told so %v:\n%s", test.args, now, chunks, told, stderr)
		}
		chunks = now
	}
}

// In another world weights are those of a run that was not interrupted if micro-batches and threads are.
func TestAnotherWorldKeepsTheWeights(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	fixed := with(inAuto, "--chunks", "4", "--threads", "1")
	must(t, with(fixed, "--steps", "2", "--out", out)...)
	kept, err := os.ReadFile(filepath.Join(out, "config.toml"))
	if err != nil || !strings.Contains(string(kept), `plan = "auto"`) {
		t.Errorf("config.toml is %q, %v", kept, err)
	}
	must(t, "eval", out)
	r := mustTrain(t, launched(2, with(fixed, "--steps", "4", "--out", out, "--resume", "--memory-limit",
		"3MiB")...)...)
	want := sha(t, "train", "--model", "mlp", "--data", "synthetic", "--batch", "64", "--chunks", "4",
		"--steps", "4")
	if _, done := lines(t, r.stdout); done.ParamsSHA256 != want {
		t.Errorf("other weights; stderr:\n%s", r.stderr)
	}
	r = command(t, with(inAuto, "--chunks", "8", "--steps", "5", "--out", out, "--resume")...)
	if r.code != exitUsage || !strings.Contains(r.stderr, "chunks is 4 there and 8 here") {
		t.Errorf("exit code %d: %s", r.code, r.stderr)
	}
}

// Several processes run by a plan in a file, which has to have a device for each.
func TestProcessesByAPlanInAFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "plan.json")
	must(t, "plan", "--model", "mlp", "--batch", "64", "--devices", "2", "--chunks", "4", "--repeats", "1",
		"--out", file)
	args := []string{"train", "--plan", file, "--data", "synthetic", "--steps", "2", "--format", "json"}
	r := mustTrain(t, launched(2, args...)...)
	if _, done := lines(t, r.stdout); done.ParamsSHA256 != sha(t, args[:len(args)-2]...) {
		t.Errorf("other weights than in one process; stderr:\n%s", r.stderr)
	}
	p := begin(t, nil, launched(3, args...)...)
	if want := "3 processes share 2 devices; each needs one"; p.end(t) != exitUsage ||
		!strings.Contains(p.stderr.String(), want) {
		t.Errorf("want %q in %s", want, p.stderr)
	}
}

// The optimizer's state counts as --momentum says.
func TestPlansCountTheStateOfTheOptimizer(t *testing.T) {
	peak := func(more ...string) int64 {
		line := planLine(t, with([]string{"--model", "mlp", "--batch", "16", "--devices", "1", "--chunks",
			"1", "--memory-limit", "1GiB", "--schedule", "gpipe", "--repeats", "1"}, more...)...)
		return line.Peak[0]
	}
	with, without := peak(), peak("--momentum", "0")
	if weights := int64(4 * 269322); with-without != weights {
		t.Errorf("%d bytes with a momentum, %d without; want %d more", with, without, weights)
	}
}

// Without a limit too a plan tells the memory of the training that it is for: a run's own plan has its peaks,
// which one device has to the byte, and several never pass.
func TestPlansWithoutALimitTellThePeaks(t *testing.T) {
	data := []string{"--data", "synthetic", "--data-set", "size=16,train=32,test=8"}
	for name, model := range map[string][]string{
		"plain":    {"--model", "mlp", "--devices", "2", "--schedule", "gpipe"},
		"residual": {"--model", "resnet20", "--set", "width=4", "--devices", "1", "--schedule", "1f1b"},
		"frozen, zero bubble": {"--model", "resnet20", "--set", "width=4", "--devices", "2", "--schedule",
			"zb-v", "--train-only", "layer3*", "--train-only", "head"},
		"frozen, on one device": {"--model", "resnet20", "--set", "width=4", "--devices", "1", "--schedule",
			"zb-v", "--train-only", "layer3*", "--train-only", "head"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "plan.json")
			line := planLine(t, with(with(model, data...), "--batch", "8", "--chunks", "4", "--threads",
				"1", "--repeats", "1", "--out", file)...)
			steps, done := lines(t, must(t, "train", "--plan", file, "--steps", "2", "--format",
				"json").stdout)
			if !slices.Equal(done.SafeLimitBytes, line.Peak) {
				t.Errorf("a run takes %v bytes if stages run ahead, the plan says %v", done.SafeLimitBytes,
					line.Peak)
			}
			// In the first step the optimizer has no state yet.
			for device, peak := range steps[1].PeakBytes {
				says := line.Peak[device]
				// less where what may wait on a link did not
				if peak > says || len(line.Peak) == 1 && peak != says || peak < says*3/4 {
					t.Errorf("device %d: training holds %d bytes, the plan says %d", device, peak, says)
				}
			}
		})
	}
}

// A plan for a model of which only some layers are trained takes less memory than that for all of it, cuts
// what is frozen too, and is for such training alone.
func TestPlansOfFrozenLayers(t *testing.T) {
	model := []string{"--model", "resnet20", "--set", "width=4", "--data", "synthetic", "--data-set",
		"size=16,channels=3,train=32,test=8", "--batch", "8", "--devices", "2", "--chunks", "4",
		"--schedule", "1f1b", "--repeats", "1", "--memory-limit", "1MiB"}
	plan := func(more ...string) planJSON { return planLine(t, with(model, more...)...) }
	all, some := plan(), plan("--train-only", "head")
	if len(some.Balance) != 2 || some.Train["train-only"] != "head" ||
		slices.Max(some.Peak) > slices.Max(all.Peak)*2/3 {
		t.Errorf("only the head is trained: %+v; all of it: %+v", some, all)
	}
	refuses(t, with([]string{"plan"}, with(model, "--train-only", "nosuch")...), exitUsage,
		`--train-only: no layer with parameters is named "nosuch"`)
}

// A plan in a file is taken as it is, and what it leaves out is as train has it by itself. Other flags, and
// edits by hand, are refused in words of flags and of the file, before anything is written.
func TestPlanFilesRefuse(t *testing.T) {
	const plan = `{"train":{"balance":"3,3","stages":"2","chunks":"2","model":"mlp","batch":"16","set":"",` +
		`"momentum":"0.9","optimizer":"sgd","memory-limit":"","train-only":"","devices":"cpu:7,cpu:4"}}`
	out := filepath.Join(t.TempDir(), "out")
	run := func(text string, more ...string) ran {
		return command(t, with([]string{"train", "--plan", textFile(t, "plan.json", text), "--data",
			"synthetic",
			"--steps", "1", "--out", out}, more...)...)
	}
	for _, test := range []struct{ was, is, want string }{
		{`3,3`, `2,1,3,5`, "--balance 2,1,3,5"},
		{`"train"`, `"trian"`, `unknown field "trian"`},
		{`"chunks"`, `"chunk"`, `chunk is 2: there is no such flag`},
		{`"16"`, `"99999999998"`, "batch is 99999999998: want a whole number from 1 to 2147483647"},
		{`"mlp"`, `"mpl"`, `model is mpl: did you mean mlp? `},
		{plan, `{"balance":[1]}`, "it is of a chain, whose layers are not those of a model"},
		{plan, `{`, "unexpected EOF; penstock plan --model --out writes plans"},
		{"", "--model resnet20", " has mlp; want --model left out, or another plan"},
		{"", "--memory-limit 4MiB", "--memory-limit 4194304: the plan of --plan "},
		{"", "--set width=2", " has none; want --set left out"},
		{"", "--momentum 0.5", " has 0.9; want --momentum left out"},
		{"", "--stages 3", " has 2; want --stages left out"},
		{"", "--train-only head", " has none; want --train-only left out"},
		{"", "--devices cpu:4,cpu:7", " has cpu:7,cpu:4; want --devices left out"},
	} {
		text, more := strings.Replace(plan, test.was, test.is, 1), []string(nil)
		if test.was == "" {
			text, more = plan, strings.Fields(test.is)
		}
		if r := run(text, more...); r.code != exitUsage || !strings.Contains(r.stderr, test.want) {
			t.Errorf("%s: exit code %d, want %q in\n%s", test.is, r.code, test.want, r.stderr)
		}
		if found, _ := filepath.Glob(out + "/*"); found != nil {
			t.Fatalf("%s: something is written", test.is)
		}
	}
	if r := run(plan, "--momentum", "0.90", "--stages", "2"); r.code != exitDone ||
		!strings.Contains(r.stdout, "cpu:7") {
		t.Errorf("the plan itself: %+v", r)
	}
}

// Commas in quotes stay part of a setting's value, from penstock plan over its file to the data set.
func TestPlansKeepQuotedCommas(t *testing.T) {
	var f trainFlags
	cmd := &cobra.Command{}
	f.register(cmd)
	line := planJSON{Train: map[string]string{"data-set": `target="x, y",header=1`}}
	noerr.Do(t, f.setFromPlan(cmd.Flags(), line))
	var o data.Options
	if err := data.Set("csv", &o, f.dataSettings); err != nil || o.CSV.Target != "x, y" {
		t.Errorf("%q are read as %q, %v", f.dataSettings, o.CSV.Target, err)
	}
	if got := parseAssignments(f.dataSettings)["target"]; got != "x, y" {
		t.Errorf("the recipe has %q", got)
	}
}
