package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"penstock.example/internal/draws"
)

// A plan of a model is what training runs: no device holds more than the plan says, which is no more than
// the limit.
func TestTrainingByAPlan(t *testing.T) {
	file := filepath.Join(t.TempDir(), "plan.json")
	const limit = 3 << 20
	got := must(t, "plan", "--model", "mlp", "--batch", "64", "--devices", "2", "--memory-limit",
		fmt.Sprint(limit), "--repeats", "1", "--out", file)
	if !strings.Contains(got.stdout, "the best") {
		t.Errorf("no table:\n%s", got.stdout)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var line searchLine
	if err := json.Unmarshal(text, &line); err != nil {
		t.Fatal(err)
	}
	layers := 0
	for _, n := range line.Balance {
		layers += n
	}
	if virtual := line.Virtual; len(line.Balance) != 2*virtual || layers != 6 {
		t.Errorf("a balance of %v, want the 6 layers of mlp on 2 devices, %d stages on each", line.Balance,
			virtual)
	}
	trained := func(args ...string) stepLine {
		got := must(t, with([]string{"train", "--data", "synthetic", "--steps", "2", "--format", "json"},
			args...)...)
		lines := strings.Split(got.stdout, "\n")
		var step stepLine
		if err := json.Unmarshal([]byte(lines[1]), &step); err != nil {
			t.Fatal(err)
		}
		return step
	}
	step := trained("--plan", file)
	for device, peak := range step.PeakBytes {
		if peak > line.Peak[device] || peak > limit {
			t.Errorf("device %d: training holds %d bytes, the plan says %d, the limit is %d", device, peak,
				line.Peak[device], limit)
		}
	}
	if step = trained("--plan", "auto", "--model", "mlp", "--batch", "64", "--memory-limit", "3MiB",
		"--stages", "2", "--chunks", fmt.Sprint(line.Chunks)); len(step.PeakBytes) != 2 {
		t.Errorf("%d devices, want 2", len(step.PeakBytes))
	}

	write := func(name, text string) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"train", "--plan", file, "--data", "synthetic", "--model", "resnet20"},
			"--model resnet20: the plan of --plan " + file + " has mlp"},
		{[]string{"train", "--plan", file, "--data", "synthetic", "--memory-limit", "4MiB"},
			"--memory-limit 4194304"},
		{[]string{"train", "--plan", write("junk", "{"), "--data", "synthetic"},
			"unexpected EOF; penstock plan --model --out writes plans"},
		{[]string{"train", "--plan", write("chain", `{"balance":[1],"schedule":"gpipe","chunks":1}`),
			"--data", "synthetic"}, "it is of a chain, whose layers are not those of a model"},
		{[]string{"train", "--plan", filepath.Join(t.TempDir(), "none"), "--data", "synthetic"},
			"no such file"},
		{[]string{"train", "--plan", "auto", "--data", "synthetic"}, "--model is needed"},
		{[]string{"plan", "--model", "mlp"}, "want --batch N"},
	} {
		got := command(t, test.args...)
		if got.code != exitUsage && got.code != 1 || !strings.Contains(got.stderr, test.want) {
			t.Errorf("%v: exit %d, want %q in\n%s", test.args, got.code, test.want, got.stderr)
		}
	}
}

// inAuto is a run that plans itself.
var inAuto = []string{"train", "--model", "mlp", "--data", "synthetic", "--batch", "64", "--plan", "auto",
	"--format", "json"}

// chosen is the flags that a run said it has chosen for itself, and the line in which it said so.
func chosen(t *testing.T, stderr string) (flags []string, line string) {
	t.Helper()
	found := regexp.MustCompile(`--plan auto: (.*?(\S+) with (--balance \S+ --chunks \S+ --threads \d+).*)`).FindStringSubmatch(stderr)
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
		p := begin(t, nil, launched(2, with(with(inAuto, "--steps", "2"), more...)...)...)
		if code := p.end(t); code != exitDone {
			t.Fatalf("%v: exit code %d, stderr:\n%s", more, code, p.stderr)
		}
		if strings.Count(p.stderr.String(), "from process to process: ") != 1 {
			t.Errorf("%v: stderr:\n%s", more, p.stderr)
		}
		steps, done := lines(t, p.stdout.String())
		flags, _ := chosen(t, p.stderr.String())
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
	p := begin(t, nil, launched(2, with(fixed, "--steps", "4", "--out", out, "--resume", "--memory-limit",
		"3MiB")...)...)
	if code := p.end(t); code != exitDone {
		t.Fatalf("exit code %d, stderr:\n%s", code, p.stderr)
	}
	want := sha(t, "train", "--model", "mlp", "--data", "synthetic", "--batch", "64", "--chunks", "4",
		"--steps", "4")
	if _, done := lines(t, p.stdout.String()); done.ParamsSHA256 != want {
		t.Errorf("other weights; stderr:\n%s", p.stderr)
	}
	r := command(t, with(inAuto, "--chunks", "8", "--steps", "5", "--out", out, "--resume")...)
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
	p := begin(t, nil, launched(2, args...)...)
	if code := p.end(t); code != exitDone {
		t.Fatalf("exit code %d, stderr:\n%s", code, p.stderr)
	}
	if _, done := lines(t, p.stdout.String()); done.ParamsSHA256 != sha(t, args[:len(args)-2]...) {
		t.Errorf("other weights than in one process; stderr:\n%s", p.stderr)
	}
	r := begin(t, nil, launched(3, args...)...)
	if want := "--plan " + file + " has 2 devices, and one device is in one process, of which there are " +
		"3: want a plan for --devices 3 or more"; r.end(t) != exitUsage ||
		!strings.Contains(r.stderr.String(), want) {
		t.Errorf("want %q in %s", want, r.stderr)
	}
}

func TestAutoRefuses(t *testing.T) {
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"--balance", "3,3"}, "--balance 3,3: --plan auto decides it"},
		{[]string{"--checkpoint", "always"}, "--checkpoint always: --plan auto decides it"},
		{[]string{"--replicas", "2"}, "--replicas 2: --plan auto decides it"},
		{[]string{"--schedule", "auto"}, "--schedule auto with --plan auto"},
		{[]string{"--chunks", "7"}, "--chunks 7: want a divisor of the 64 rows"},
		{[]string{"--memory-limit", "20KiB"},
			"--memory-limit 20480: parameters, gradients and the optimizer's state"},
	} {
		r := command(t, with(inAuto, append(test.args, "--steps", "1")...)...)
		if r.code != exitUsage || !strings.Contains(r.stderr, test.want) || r.stdout != "" {
			t.Errorf("%v: exit code %d, want %q in %s", test.args, r.code, test.want, r.stderr)
		}
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

// A plan is for the data that it was made with: training on them holds no more than it says and hardly less.
func TestPlansAreForTheirData(t *testing.T) {
	file := filepath.Join(t.TempDir(), "plan.json")
	on := func(size int, classes int) []string {
		return []string{"--data", "synthetic", "--data-set", fmt.Sprintf("size=%d,classes=%d", size, classes)}
	}
	model := []string{"--model", "resnet20", "--set", "width=4", "--batch", "8"}
	must(t, with(append([]string{"plan"}, model...),
		append(on(16, 5), "--devices", "2", "--chunks", "4", "--schedule", "1f1b", "--memory-limit", "1MiB",
			"--repeats", "1", "--out", file)...)...)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	line, err := parsePlan(text)
	if err != nil {
		t.Fatal(err)
	}
	got := must(t, with(append([]string{"train", "--plan", file}, on(16, 5)...), "--steps", "2", "--format",
		"json")...)
	var step stepLine
	if err := json.Unmarshal([]byte(strings.Split(got.stdout, "\n")[1]), &step); err != nil {
		t.Fatal(err)
	}
	for device, peak := range step.PeakBytes { // less where what a plan lets wait on a link did not wait
		if peak > line.Peak[device] || peak < line.Peak[device]*9/10 {
			t.Errorf("device %d: training holds %d bytes, the plan says %d", device, peak, line.Peak[device])
		}
	}
	if got := must(t, "train", "--plan", file, "--steps", "1"); !strings.Contains(got.stdout+got.stderr,
		"resnet20 on synthetic") {
		t.Errorf("without --data:\n%s%s", got.stdout, got.stderr)
	}
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"plan", "--model", "resnet20", "--batch", "8", "--data-set", "size=8"},
			"--data-set size=8: want --data NAME with it"},
		{[]string{"plan", "--model", "gpt", "--batch", "8", "--data", "fashion-mnist"},
			"--model gpt is for next token"},
		{[]string{"plan", "chain.json", "--stages", "2", "--chunks", "2", "--data", "synthetic"},
			"--data is for a model that is measured"},
		{[]string{"plan", "--model", "resnet20", "--batch", "64", "--data", "synthetic", "--data-set",
			"train=32"}, "--batch 64: --data synthetic has 32 samples"},
	} {
		if got := command(t, test.args...); got.code != exitUsage ||
			!strings.Contains(got.stderr, test.want) {
			t.Errorf("%v: exit code %d, want %q in %s", test.args, got.code, test.want, got.stderr)
		}
	}
}

// Without a limit too a plan tells the memory of the training that it is for: a run's own plan has its peaks,
// which one device has to the byte, and several never pass.
func TestPlansWithoutALimitTellThePeaks(t *testing.T) {
	data := []string{"--data", "synthetic", "--data-set", "size=16,train=32,test=8"}
	for name, model := range map[string][]string{
		"plain": {"--model", "mlp", "--devices", "2", "--schedule", "gpipe"},
		"residual": {"--model", "resnet20", "--set", "width=4", "--devices", "1", "--schedule",
			"1f1b"},
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
	dir := t.TempDir()
	model := []string{"--model", "resnet20", "--set", "width=4", "--data", "synthetic", "--data-set",
		"size=16,channels=3,train=32,test=8", "--batch", "8", "--devices", "2", "--chunks", "4",
		"--schedule", "1f1b", "--repeats", "1", "--memory-limit", "1MiB"}
	plan := func(name string, more ...string) (string, searchLine) {
		file := filepath.Join(dir, name)
		return file, planLine(t, with(with(model, more...), "--out", file)...)
	}
	whole, all := plan("all")
	head, some := plan("head", "--train-only", "head")
	if len(some.Balance) != 2 || some.Train["train-only"] != "head" ||
		slices.Max(some.Peak) > slices.Max(all.Peak)*2/3 {
		t.Errorf("only the head is trained: %+v; all of it: %+v", some, all)
	}
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"train", "--plan", head, "--steps", "1", "--train-only", "layer3*"},
			"--train-only layer3*: the plan of --plan " + head + " has head"},
		{[]string{"train", "--plan", whole, "--steps", "1", "--train-only", "head"},
			"--train-only head: the plan of --plan " + whole + " has none"},
		{with([]string{"plan"}, with(model, "--train-only", "nosuch")...),
			`--train-only: no layer with parameters is named "nosuch"`},
		{[]string{"plan", "chain.json", "--stages", "1", "--chunks", "1", "--train-only", "head"},
			"--train-only is for a model that is measured"},
	} {
		refuses(t, test.args, exitUsage, test.want)
	}
}

// What a plan leaves out is as train has it by itself: a plan is not for another model, limit or optimizer.
func TestPlansRefuseWhatTheyLeaveOut(t *testing.T) {
	file := filepath.Join(t.TempDir(), "plan.json")
	must(t, "plan", "--model", "mlp", "--data", "synthetic", "--data-set", "size=8,train=16,test=8",
		"--batch", "4", "--devices", "1", "--chunks", "1",
		"--schedule", "gpipe", "--repeats", "1", "--out", file)
	args := []string{"train", "--plan", file, "--steps", "1"}
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"--set", "width=2"}, "--set width=2: the plan of --plan " + file +
			" has none; want --set left out, or another plan"},
		{[]string{"--momentum", "0.5"}, "--momentum 0.5: the plan of --plan " + file +
			" has 0.9; want --momentum left out, or another plan"},
	} {
		refuses(t, with(args, test.args...), exitUsage, test.want)
	}
	must(t, with(args, "--momentum", "0.90")...)
}

// A plan that was edited by hand is refused in words of its file, with the field, and before anything
// is written.
func TestEditedPlans(t *testing.T) {
	const plan = `{"train":{"balance":"3,3","chunks":"2","model":"mlp","batch":"16"}}`
	out := filepath.Join(t.TempDir(), "out")
	for _, test := range []struct{ was, is, want string }{
		{`3,3`, `2,1,3,5`, "--balance 2,1,3,5"},
		{`"train"`, `"trian"`, `unknown field "trian"`},
		{`"chunks"`, `"chunk"`, `chunk is 2: there is no such flag`},
		{`"16"`, `"99999999998"`, "batch is 99999999998: want at most 2147483647"},
		{`"mlp"`, `"mpl"`, `model is mpl: did you mean mlp? `},
	} {
		r := command(t, "train", "--plan",
			textFile(t, "plan.json", strings.Replace(plan, test.was, test.is, 1)),
			"--data", "synthetic", "--steps", "1", "--out", out)
		if r.code != exitUsage || !strings.Contains(r.stderr, test.want) {
			t.Errorf("%s for %s: exit code %d, want %q in\n%s", test.is, test.was, r.code, test.want,
				r.stderr)
		}
		if found, _ := filepath.Glob(out + "/*"); found != nil {
			t.Fatalf("%s for %s: something is written", test.is, test.was)
		}
	}
}
