package command

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	noerr "penstock.example/internal/must"
	"penstock.example/internal/shim"
	"penstock.example/torch"
	"penstock.example/train"
)

func step(n int64) train.StepInfo {
	return train.StepInfo{Step: n, Loss: 1.5, Samples: 10, Duration: 20 * time.Millisecond,
		SamplesPerSecond: 500, Peak: []int64{1 << 20, 3 << 20}}
}

func textReport(stdout, stderr *bytes.Buffer) *reporter {
	return &reporter{stdout: stdout, stderr: stderr, title: "a on b",
		devices: []torch.Device{torch.CPU(4), torch.CPU(5)}, names: []string{"cpu:4", "cpu:5"}, last: 9}
}

func TestTextReport(t *testing.T) {
	torch.CPU(5).SetLimit(4 << 20)
	defer torch.CPU(5).SetLimit(0)
	var stdout, stderr bytes.Buffer
	r := textReport(&stdout, &stderr)
	for n := int64(7); n <= 9; n++ {
		noerr.Do(t, r.step(step(n)))
	}
	r.endSteps()
	// The first step of the run and the last of all; the one between is too soon.
	want := "step 7/9  loss 1.5000  500 samples/s  cpu:4 1.0 MiB  cpu:5 3.0 MiB of 4.0 MiB\n" +
		"step 9/9  loss 1.5000  500 samples/s  cpu:4 1.0 MiB  cpu:5 3.0 MiB of 4.0 MiB\n"
	if stderr.String() != want {
		t.Errorf("got\n%swant\n%s", &stderr, want)
	}
	o := doneLine{Steps: 9, TestAccuracy: new(0.875), SafeLimitBytes: []int64{1 << 20, 3 << 20},
		ResidentBytes: 300 << 20, PeakResidentBytes: 400 << 20, ParamsSHA256: "abc",
		checkpoint: "out/step-000009"}
	noerr.Do(t, r.done(o))
	want = `a on b: 9 steps done
test accuracy  87.50 %
speed          500 samples/s, 20.000 ms a step (medians)
peak memory    cpu:4 1.0 MiB  cpu:5 3.0 MiB of 4.0 MiB
safe limit     --memory-limit 3145728 (3.0 MiB) is enough, whichever stage runs ahead
process        300.0 MiB resident, at most 400.0 MiB
params sha256  abc
checkpoint     out/step-000009
`
	if stdout.String() != want {
		t.Errorf("got\n%swant\n%s", &stdout, want)
	}
}

// A validation is a line of its own.
func TestJSONReportOfEvaluations(t *testing.T) {
	var stdout bytes.Buffer
	r := &reporter{lines: json.NewEncoder(&stdout)}
	noerr.Do(t, r.validated(train.ValidationInfo{Epoch: 1, Step: 7,
		Evaluation: train.Evaluation{Loss: new(0.5), Accuracy: new(0.25)}, Better: true}))
	if want := `{"epoch":1,"step":7,"validation_loss":0.5,"validation_accuracy":0.25,"best":true}` +
		"\n"; stdout.String() != want {
		t.Errorf("%s, want %s", &stdout, want)
	}
}

// --autocast alone is bfloat16, as it was when that was the only type. What GPUs compute by is said to
// libtorch before the model is made.
func TestPrecisionFlags(t *testing.T) {
	refuses(t, with(small, "--steps", "1", "--autocast=half"), exitUsage,
		`--autocast "half": want one of off, bfloat16, float16`)
	sum := func(flags ...string) string {
		r := must(t, with(small, append([]string{"--steps", "1", "--format", "json"}, flags...)...)...)
		_, after, _ := strings.Cut(r.stdout, "params_sha256")
		return after[:70]
	}
	defer gpuFlags{deterministic: true}.apply()
	gpuFlags{tf32: true}.apply()
	if got := shim.GPUNumerics(); got != shim.TF32Convolutions|shim.TF32Products {
		t.Errorf("libtorch has %b", got)
	}
	plain := sum()
	if off, on := sum("--autocast", "off"), sum("--autocast"); off != plain || on == plain ||
		on != sum("--autocast", "bfloat16") || on != sum("--autocast=bfloat16") ||
		on != sum("--autocast=true") {
		t.Errorf("--autocast=off %s, --autocast %s, none %s", off, on, plain)
	}
	// What is planned is measured as it will be trained.
	for _, verb := range [][]string{with(small, "--steps", "1"),
		{"plan", "--model", "mlp", "--batch", "16", "--devices", "2", "--chunks", "2", "--schedule",
			"gpipe", "--repeats", "1"}} {
		for _, flag := range []string{"tf32", "deterministic=false"} {
			refuses(t, with(verb, "--"+flag), exitUsage, "has no effect without a GPU among --devices")
		}
		gpuFlags{tf32: true}.apply()
		must(t, verb...)
		if got := shim.GPUNumerics(); got != shim.Deterministic {
			t.Errorf("penstock %s: libtorch has %b", verb[0], got)
		}
	}
}
