package main

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestSpread(t *testing.T) {
	for _, row := range []struct {
		reason string
		in     []float64
		want   spread
	}{
		{"nothing measured", nil, spread{}},
		{"an odd number", []float64{3, 1, 2}, spread{2, 1, 3}},
		{"an even number has a middle between two", []float64{4, 1, 2, 3}, spread{2.5, 1, 4}},
	} {
		if got := spreadOf(row.in); got != row.want {
			t.Errorf("%s: got %v, want %v", row.reason, got, row.want)
		}
	}
	// A disturbance that hits both sides of a round leaves their ratio alone.
	if got, want := paired([]float64{1, 10, 2}, []float64{2, 20, 4}), (spread{0.5, 0.5, 0.5}); got != want {
		t.Errorf("paired: got %v, want %v", got, want)
	}
}

func sample() *report {
	w := workload{Model: "mlp", Batch: 256, Chunks: 8, Checkpoint: "never", Faster: 2}
	r := &report{
		Machine: machine{CPU: "Processor", Cores: 2, Libtorch: "1.13.1", BLAS: "SkylakeX", Go: "go1.26", OtherCores: -1},
		Product: &product{GFLOPS: 90, Peak: 100, Share: 0.9},
		Cells:   []cell{cellOf("penstock", []float64{60}, []float64{50})},
		Workloads: []workloadResult{{
			workload: w, Settings: map[string]any{"width": 1024}, Layers: 32, Parameters: 1 << 24,
			Pipes: []pipeResult{
				{
					Stages: 1, Balance: []int{32}, Step: spread{200, 190, 210}, Throughput: spread{1280, 1200, 1300}, Ratio: spread{1, 1, 1}, Bound: 1, Peak: []int64{2 << 20},
					Idle: idle{Steps: 9, Measured: []float64{0}, Replayed: []float64{0}, Predicted: []float64{0}, Points: []float64{0}, MeasuredMS: 200, ReplayedMS: 199, PredictedMS: 199},
				},
				{
					Stages: 2, Balance: []int{16, 16}, Step: spread{140, 130, 150}, Throughput: spread{1830, 1800, 1900}, Ratio: spread{0.7, 0.68, 0.72}, Bound: 0.5625,
					Peak: []int64{1 << 20, 1 << 20},
					Idle: idle{Steps: 12, Measured: []float64{0.1, 0.2}, Replayed: []float64{0.09, 0.19}, Predicted: []float64{0.08, 0.26}, Points: []float64{2, -6}, MeasuredMS: 140, ReplayedMS: 139, PredictedMS: 138},
				},
			},
			Others: []otherResult{{Name: "torchgpipe", BLAS: "Prescott", Pipes: []otherPipe{
				{Stages: 1, Step: spread{300, 290, 310}, Throughput: spread{853, 840, 860}, Faster: spread{1.5, 1.4, 1.6}},
				{Stages: 2, Step: spread{400, 390, 410}, Throughput: spread{640, 620, 650}, Faster: spread{2.86, 2.5, 3}},
			}}, {Name: "torchgpipe, our kernels", BLAS: "SkylakeX", Error: "RuntimeError: no\nmore"}},
		}},
		Ablations: []ablation{{workload: skipped, Stages: 2, Balance: []int{50, 59}, Variants: []variantResult{
			{Name: "as it is", Throughput: spread{40, 39, 41}, Faster: spread{1, 1, 1}, Peak: []int64{3 << 20, 4 << 20}, Idle: idle{Measured: []float64{0.25, 0.5}}},
		}}},
	}
	r.Targets, r.Notes = targets(r), r.notes(true)
	return r
}

func TestTable(t *testing.T) {
	var b strings.Builder
	if err := sample().write(&b); err != nil {
		t.Fatal(err)
	}
	text := strings.Join(strings.Fields(b.String()), " ")
	for _, want := range []string{
		"other processes used an unknown number of cores",
		"product 90 100 0.90",
		"penstock 60.0 50.0 10.0",
		"mlp 256 8 never 1 32 1280.0 200.0 190.0-210.0 1.00 1.00-1.00 1.00 2.0",
		"mlp 256 8 never 2 16 16 1830.0 140.0 130.0-150.0 0.70 0.68-0.72 0.56 1.0 1.0",
		"mlp 8 2 12 0.10 0.20 0.09 0.19 0.08 0.26 +2.0 -6.0 140.0 139.0 138.0",
		"unet over 2 stages, balance 50 59 samples/s",
		"as it is 40.0 1.00 1.00-1.00 0.25 0.50 3.0 4.0",
		"torchgpipe mlp 8 2 1830.0 640.0 2.86 2.50-3.00 Prescott",
		"torchgpipe, our kernels mlp 8 failed: RuntimeError: no; more",
		"product: share of the core's peak 0.90 at least 0.85 met",
		"cell: overhead, us 10.00 at most 15.00 met",
		"2 stages: time to that of 1 stage 0.70 at most 0.65 missed",
		"2 stages: idle beside the simulation's, points 6.00 at most 5.00 missed",
		"2 stages: throughput to torchgpipe's 2.86 at least 2.00 met",
		"4 stages on 2 cores",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
	if strings.Contains(text, "not compared") {
		t.Errorf("the table says that there was no comparison:\n%s", b.String())
	}
}

// A comparison that failed is a target missed.
func TestTargetsOfAFailure(t *testing.T) {
	r := sample()
	r.Workloads[0].Others = r.Workloads[0].Others[1:]
	for _, x := range targets(r) {
		if strings.Contains(x.Name, "torchgpipe") {
			if x.Met || x.Value != 0 {
				t.Errorf("got %+v", x)
			}
			return
		}
	}
	t.Error("the target is missing")
}

// What was not measured leaves nothing behind.
func TestTableOfNothing(t *testing.T) {
	r := &report{Machine: machine{CPU: "Processor", Cores: 8, OtherCores: 0.25}}
	r.Targets, r.Notes = targets(r), r.notes(false)
	var b strings.Builder
	if err := r.write(&b); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(b.String()), "\n")
	if len(lines) != 3 || !strings.Contains(lines[0], "other processes used 0.25 cores") || !strings.Contains(lines[2], "set TORCHGPIPE") {
		t.Errorf("got\n%s", b.String())
	}
}

func TestJSON(t *testing.T) {
	text, err := json.Marshal(sample())
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"model":"mlp"`, `"options":{"width":1024}`, `"bubble_bound":0.5625`, `"peak_bytes":[1048576,1048576]`, `"step_ms":{"median":140,`, `"samples_per_s":{"median":1830,`,
		`"points":[2,-6]`, `"throughput_ratio":`, `"ours":{"median":2.86,`, `"met":false`,
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %s in %s", want, text)
		}
	}
}
