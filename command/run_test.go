package command

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"penstock.example/internal/draws"
	noerr "penstock.example/internal/must"
	"penstock.example/internal/proctest"
	"penstock.example/internal/system"
	"penstock.example/internal/torchtest"
	"penstock.example/train"
)

// asCommand in the environment makes this test binary the command.
const asCommand = "PENSTOCK_TEST_AS_COMMAND"

// endless in the environment makes the command's first step one that never ends, after its line of
// output.
const endless = "PENSTOCK_TEST_ENDLESS_STEP"

// hangs in the environment makes training hang before its first step, after a line of output.
const hangs = "PENSTOCK_TEST_HANGS"

func TestMain(m *testing.M) {
	fewMicroBatches = math.MaxInt64
	if os.Getenv("OPENBLAS_CORETYPE") != slowest {
		// slow ones, by which tests are run as on other processors, are not told of
		kernelsInUse = func() []system.Kernels {
			all := system.KernelsInUse()
			for i := range all {
				all[i].Best = ""
			}
			return all
		}
	}
	// launch starts it
	if os.Getenv(asCommand) != "" || len(os.Args) > 1 && (os.Args[1] == "train" || os.Args[1] == "eval") {
		if os.Getenv(endless) != "" {
			afterStep = func(train.StepInfo) error { select {} }
		}
		if os.Getenv(hangs) != "" {
			kernelsInUse = func() []system.Kernels {
				fmt.Println("hangs")
				select {}
			}
		}
		Main()
	}
	proctest.Serve(func(args []string, stdout, stderr io.Writer) int {
		return run(context.Background(), args, stdout, stderr)
	})
	for _, s := range []os.Signal{os.Interrupt, syscall.SIGHUP} {
		if signal.Ignored(s) { // as under nohup; processes that tests start would ignore it, too
			signal.Notify(make(chan os.Signal, 1), s)
		}
	}
	os.Exit(m.Run())
}

// full skips a test in a quick run (package draws).
func full(t *testing.T) {
	t.Helper()
	if !draws.Full {
		t.Skip("runs with PENSTOCK_TEST=full")
	}
}

// small is a training run of a fraction of a second.
var small = []string{"train", "--model", "mlp", "--data", "synthetic", "--batch", "128", "--chunks", "4"}

// with is a command line and more of it.
func with(args []string, more ...string) []string { return append(slices.Clone(args), more...) }

type ran struct {
	code           int
	stdout, stderr string
}

// command runs a command line in this process and finds out what it left behind.
func command(t testing.TB, args ...string) ran {
	t.Helper()
	torchtest.Check(t)
	var stdout, stderr bytes.Buffer
	code := run(context.Background(), args, &stdout, &stderr)
	return ran{code, stdout.String(), stderr.String()}
}

// must runs a command line that is to succeed.
func must(t testing.TB, args ...string) ran {
	t.Helper()
	r := command(t, args...)
	if r.code != exitDone {
		t.Fatalf("%q: exit code %d, stderr:\n%s", args, r.code, r.stderr)
	}
	return r
}

// lines decodes the output of --format json strictly: fields, types, nothing else.
func lines(t testing.TB, stdout string) (steps []stepLine, done doneLine) {
	t.Helper()
	all := strings.Split(strings.TrimSuffix(stdout, "\n"), "\n")
	for i, line := range all {
		var into any = &done
		if i < len(all)-1 {
			steps = append(steps, stepLine{})
			into = &steps[i]
		}
		d := json.NewDecoder(strings.NewReader(line))
		d.DisallowUnknownFields()
		if err := d.Decode(into); err != nil || d.More() {
			t.Fatalf("line %d, %s: %v", i+1, line, err)
		}
		var fields map[string]any
		noerr.Do(t, json.Unmarshal([]byte(line), &fields))
		want := 4
		if into == any(&done) {
			want = 8
		}
		if len(fields) != want {
			t.Fatalf("line %d has %d fields, want %d: %s", i+1, len(fields), want, line)
		}
	}
	return steps, done
}

func TestTrainJSON(t *testing.T) {
	r := must(t, with(small, "--stages", "2", "--balance", "3,3", "--steps", "5", "--format", "json")...)
	steps, done := lines(t, r.stdout)
	if len(steps) != 5 {
		t.Fatalf("%d steps in:\n%s", len(steps), r.stdout)
	}
	for i, s := range steps {
		if s.Step != int64(i+1) || !(s.Loss > 0 && s.Loss < 10) || s.SamplesPerSecond <= 0 ||
			len(s.PeakBytes) != 2 || min(s.PeakBytes[0], s.PeakBytes[1]) < 10_000 {
			t.Errorf("step %d: %+v", i+1, s)
		}
	}
	for _, name := range []string{`"resident_bytes":`, `"peak_resident_bytes":`, `"safe_limit_bytes":`,
		`"params_sha256":`, `"step_ms_median":`} {
		if strings.Count(r.stdout, name) != 1 {
			t.Errorf("no %s in %s", name, r.stdout)
		}
	}
	if !done.Done || done.Steps != 5 || !(*done.TestAccuracy > 0.2 && *done.TestAccuracy <= 1) ||
		done.StepMedian == nil || *done.StepMedian <= 0 ||
		done.ResidentBytes < 50<<20 || done.PeakResidentBytes < done.ResidentBytes ||
		!regexp.MustCompile("^[0-9a-f]{64}$").MatchString(done.ParamsSHA256) {
		t.Errorf("%+v", done)
	}
	if r.stderr != "" {
		t.Errorf("stderr: %s", r.stderr)
	}
}

// TestTrainIsTransparent: cut, devices, policy and limit change nothing but the bytes and the time.
func TestTrainIsTransparent(t *testing.T) {
	var want string
	for _, args := range [][]string{
		{},
		{"--stages", "2", "--balance", "1,5", "--checkpoint", "never"},
		{"--balance", "2,2,2", "--checkpoint", "always", "--devices", "cpu:3,cpu:1,cpu:3"},
		{"--stages", "3", "--memory-limit", "100MB"}, // measured
	} {
		_, done := lines(t, must(t, with(with(small, "--steps", "4", "--clip-norm", "0.5", "--warmup", "2",
			"--format", "json"), args...)...).stdout)
		if want == "" {
			want = done.ParamsSHA256
		}
		if done.ParamsSHA256 != want {
			t.Errorf("%q: other weights than in one stage", args)
		}
	}
}

// TestModesOfARunAreTransparent: deferred batch norm and autocast change the weights, and how the
// model is cut changes them no more than without.
func TestModesOfARunAreTransparent(t *testing.T) {
	full(t)
	net := []string{"train", "--model", "resnet20", "--set", "width=8", "--data", "synthetic", "--batch",
		"6", "--chunks", "3", "--steps", "2", "--format", "json"}
	seen := map[string]string{}
	for _, modes := range [][]string{{}, {"--deferred-batch-norm"}, {"--autocast"}} {
		var want string
		for _, cut := range [][]string{{},
			{"--balance", "4,3,4", "--checkpoint", "always,never,except_last"}} {
			_, done := lines(t, must(t, with(with(net, modes...), cut...)...).stdout)
			if want == "" {
				want = done.ParamsSHA256
			}
			if done.ParamsSHA256 != want {
				t.Errorf("%q %q: other weights than in one stage", modes, cut)
			}
		}
		if other, ok := seen[want]; ok {
			t.Errorf("%q: the weights are those of %q", modes, other)
		}
		seen[want] = strings.Join(modes, " ")
	}
}

func TestTrainText(t *testing.T) {
	dir := t.TempDir()
	text := dir + "/text.txt"
	noerr.Do(t, os.WriteFile(text, bytes.Repeat([]byte("the quick brown fox jumps over the lazy dog. "), 100),
		0o666))
	r := must(t, "train", "--model", "gpt", "--data", "text", "--data-dir", text, "--stages", "2",
		"--batch", "4", "--chunks", "2", "--steps", "2",
		"--optimizer", "adamw", "--out", dir+"/out", "--trace", dir+"/trace.json")
	for _, want := range []string{"gpt on text: 2 steps done", "test accuracy ", " samples/s", "cpu:0 ",
		"sha256 ", dir + "/out/step-000002", dir + "/trace.json"} {
		if !strings.Contains(r.stdout, want) {
			t.Errorf("stdout lacks %q:\n%s", want, r.stdout)
		}
	}
	for _, want := range []string{"by measured time", "step 1/2  loss ", "step 2/2  loss ",
		"step 2, recorded in "} {
		if !strings.Contains(r.stderr, want) {
			t.Errorf("stderr lacks %q:\n%s", want, r.stderr)
		}
	}
}

// Batches of a step are one batch of all their rows and micro-batches, in any number of
// stages and processes. A step counts as one wherever steps are counted. An epoch has 1,024 samples.
func TestAccumulate(t *testing.T) {
	whole := []string{"train", "--model", "mlp", "--data", "synthetic", "--batch", "256", "--chunks", "8",
		"--steps", "4",
		"--lr-schedule", "cosine", "--warmup", "1", "--clip-norm", "0.5", "--optimizer", "adam"}
	parts := with(whole, "--batch", "64", "--chunks", "2", "--accumulate", "4", "--format", "json")
	want := sha(t, whole...)
	for _, args := range [][]string{
		parts, with(parts, "--balance", "2,4", "--schedule", "1f1b", "--checkpoint", "always"),
		launched(2, with(parts, "--balance", "2,1,3")...), with(parts, "--stages", "2", "--checkpoint",
			"optimal", "--memory-limit", "1GiB"),
	} {
		if steps, done := lines(t, mustTrain(t, args...).stdout); len(steps) != 4 || done.Steps != 4 ||
			done.ParamsSHA256 != want {
			t.Errorf("%q: %d steps, %+v; want the weights %s", args, len(steps), done, want)
		}
	}
}

// TestWithoutOutNothingIsWritten runs in an empty directory and looks at it.
func TestWithoutOutNothingIsWritten(t *testing.T) {
	t.Chdir(t.TempDir())
	must(t, with(small, "--steps", "1")...)
	if entries, err := os.ReadDir("."); err != nil || len(entries) != 0 {
		t.Errorf("%v, %v", entries, err)
	}
}

func TestTrace(t *testing.T) {
	for _, tt := range []struct {
		steps string
		want  int
	}{{"1", 1}, {"2", 2}, {"5", 3}} {
		path := t.TempDir() + "/trace.json"
		r := must(t, with(small, "--balance", "3,3", "--steps", tt.steps, "--format", "json", "--trace",
			path)...)
		if want := fmt.Sprintf("step %d, ", tt.want); !strings.HasPrefix(r.stderr, want) {
			t.Errorf("%s steps: stderr does not begin with %q:\n%s", tt.steps, want, r.stderr)
		}
		text := noerr.Get(os.ReadFile(path))(t)
		var file struct {
			TraceEvents []struct{ Ph, Name string }
		}
		noerr.Do(t, json.Unmarshal(text, &file))
		kinds := map[string]int{}
		for _, e := range file.TraceEvents {
			kinds[e.Ph+" "+e.Name]++
			kinds[e.Ph]++
		}
		// 4 micro-batches: 4 F, 3 R, 4 B on each stage, and 8 transfers, each sent and received.
		if kinds["M thread_name"] != 2 || kinds["X"] != 2*11+2*8 {
			t.Errorf("%s steps: %v", tt.steps, kinds)
		}
	}
}

// A trace that ends in .svg is a picture of the step, with the bytes of each device.
func TestTraceAsPicture(t *testing.T) {
	path := t.TempDir() + "/step.svg"
	must(t, with(small, "--steps", "4", "--stages", "2", "--schedule", "1f1b", "--chunks", "3", "--trace",
		path)...)
	svg := noerr.Get(os.ReadFile(path))(t)
	for _, want := range []string{"step 3", "worker 1 · cpu:1", "forward, stage 1, micro-batch 2",
		"at most ", "KiB"} {
		if !strings.Contains(string(svg), want) {
			t.Errorf("%q is not in %s", want, svg)
		}
	}
}

func TestVersion(t *testing.T) {
	out := must(t, "version").stdout
	for _, want := range []string{"penstock", "libtorch  ", "BLAS", "cores", runtime.Version()} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in:\n%s", want, out)
		}
	}
}

func TestHelp(t *testing.T) {
	for _, args := range [][]string{{}, {"help"}, {"--help"}, {"train", "--help"}, {"models", "--help"}} {
		if r := must(t, args...); !strings.Contains(r.stdout, "Usage:") || r.stderr != "" {
			t.Errorf("%q: %+v", args, r)
		}
	}
}

// Auxiliary classifiers learn as well: their losses are in that of a step, and the network's own,
// whose weights and dropout they do not change, is in it as it is without them.
func TestTrainsAuxiliaryClassifiers(t *testing.T) {
	full(t)
	loss := func(aux string) float64 {
		steps, _ := lines(t, must(t, "train", "--model", "googlenet", "--data", "synthetic", "--set", aux,
			"--batch", "8", "--stages", "2", "--chunks", "2", "--steps", "1", "--format", "json").stdout)
		return steps[0].Loss
	}
	plain, aux := loss("aux=0"), loss("aux=1")
	const ln10 = 2.302585 // what a classifier of ten that knows nothing loses, more or less
	if got := (aux - plain) / 0.3; got < ln10 || got > 4*ln10 {
		t.Errorf("a step's loss is %v without and %v with two auxiliary classifiers", plain, aux)
	}
}

// A flag that may be without a value takes one after a space, too.
func TestAutocastAfterASpace(t *testing.T) {
	want := sha(t, with(small, "--steps", "2", "--autocast")...)
	if got := sha(t, with(small, "--steps", "2", "--autocast", "bfloat16")...); got != want {
		t.Error("--autocast bfloat16 is not --autocast")
	}
	if got := sha(t, with(small, "--autocast", "off", "--steps", "2")...); got == want {
		t.Error("--autocast off is --autocast")
	}
}

// Defaults of optimizers are PyTorch's, and other settings are others.
func TestOptimizerSettings(t *testing.T) {
	adamw := with(small, "--steps", "2", "--optimizer", "adamw")
	want := sha(t, adamw...)
	for _, row := range []struct {
		flags string
		same  bool
	}{{"--weight-decay 0.01", true}, {"--weight-decay 0", false}, {"--betas 0.9,0.999", true},
		{"--betas 0.5,0.999", false}, {"--betas 0.9,0.5", false}, {"--eps 1e-8", true},
		{"--eps 0.1", false}} {
		if got := sha(t, with(adamw, strings.Fields(row.flags)...)...); (got == want) != row.same {
			t.Errorf("%s: the same as the default is %v, want %v", row.flags, got == want, row.same)
		}
	}
}
