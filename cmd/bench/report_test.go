package main

import (
	"encoding/json"
	"strings"
	"testing"

	"penstock.example/torch"
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
	w := workload{Model: "mlp", Batch: 256, Chunks: 8, Checkpoint: "never", Faster: 2, FasterTuned: 2.5}
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
			}}, {Name: "torchgpipe, tuned", BLAS: "SkylakeX", Error: "RuntimeError: no\nmore"}},
		}},
		Ablations: []contest{{workload: skipped, Devices: 2, Variants: []variantResult{
			{Name: "as it is", Balance: []int{50, 59}, Throughput: spread{40, 39, 41}, Faster: spread{1, 1, 1}, Peak: []int64{3 << 20, 4 << 20}, Idle: idle{Measured: []float64{0.25, 0.5}, Predicted: []float64{0.2, 0.4}}},
		}}},
	}
	step := func(peak int64, ms float64) planResult {
		return planResult{Peak: peak << 20, PredictedPeak: peak << 20, Step: spread{ms, ms, ms}, PredictedStep: ms - 4}
	}
	r.Remat = &rematResult{
		Solver: []solverResult{{Layers: 100, Limit: 0.3, Table: spread{30, 29, 31}, TableBytes: spread{11e6, 10e6, 12e6}, First: spread{35, 34, 36}, FirstGap: spread{0.002, 0.001, 0.003},
			Solve: spread{60, 50, 70}, Gap: spread{0.0005, 0.0004, 0.0006}, Overhead: spread{0.17, 0.16, 0.18}, Rotor: rotor[1]}},
		Networks: []networkResult{{network: network{Model: "googlenet", Batch: 8}, Size: 96, Layers: 21, Base: 27 << 20, None: step(200, 200), Gain: 0.2, Skipped: []int{3, 6},
			Points: []rematPoint{{Strategy: "sequential", Segments: 4, Theirs: step(150, 264), Best: step(149, 220), Gain: spread{0.2, 0.1, 0.3}}, {Strategy: "all", Theirs: step(90, 800), Best: step(90, 240)}}}},
		Gain: 0.2,
	}
	r.Remat.Networks[0].Points[1].Best.PredictedPeak = 89 << 20
	r.Plans = []plannedResult{{Model: "gpt", Batch: 16, Devices: 2, Plan: "2 stages, 1 threads, 1f1b with 4 micro-batches", Balance: []int{30, 28}, Predicted: 103, Measured: spread{100, 99, 101},
		Simulated: 98, Mean: 100}}
	r.Plain = []plainResult{{Model: "mlp", Batch: 256, Threads: 2, Theirs: "1.13.0", BLAS: "Haswell", Step: spread{110, 100, 120}, Ours: []plainSide{
		{How: "one stage, 2 threads", Step: spread{100, 90, 110}, Faster: spread{1.1, 1, 1.2}, Cheaper: spread{1.05, 1, 1.1}}}}}
	r.Targets, r.Notes = targets(r), r.notes(true, nil)
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
		"unet over 2 devices balance samples/s",
		"as it is 50 59 40.0 1.00 1.00-1.00 0.25 0.50 0.20 0.40 3.0 4.0",
		"torchgpipe mlp 8 2 1830.0 640.0 2.86 2.50-3.00 Prescott",
		"torchgpipe, tuned mlp 8 failed: RuntimeError: no; more",
		"product: share of the core's peak 0.90 at least 0.85 met",
		"cell: overhead, us 10.00 at most 10.00 met",
		"2 stages: time to that of 1 stage 0.70 at most 0.65 missed",
		"2 stages: idle beside the simulation's, points 6.00 at most 5.00 missed",
		"2 stages: throughput to torchgpipe's 2.86 at least 2.00 met",
		"2 stages: throughput to tuned torchgpipe's 0.00 at least 2.50 missed",
		"4 stages on 2 cores",
		"100 layers 30 % 30.0 11.0 35.0 0.20 60.0 0.050 17.0 850-910 523",
		"googlenet 8 96 21 27.0 3 6 +20.0",
		"mean of networks +20.0",
		"googlenet none 200.0 100 % 200.0 196.0 +0.0 +0.0",
		"googlenet sequential 4 150.0 75 % 264.0 260.0 +32.0 +32.7 149.0 220.0 216.0 +10.0 +10.2 +20.0 +10.0 to +30.0",
		"googlenet all 90.0 45 % 800.0 796.0 +300.0 +306.1 90.0 (predicted 89.0) 240.0",
		"gpt 16 2 stages, 1 threads, 1f1b with 4 micro-batches 30 28 103.0 100.0 99.0-101.0 +3.0 98.0 100.0 -2.0",
		"plain PyTorch 1.13.0, 2 threads batch",
		"mlp 256 110.0 one stage, 2 threads 100.0 1.10 1.00-1.20 1.05 1.00-1.10 Haswell",
		"gpt, 2 stages, 1 threads, 1f1b with 4 micro-batches: predicted step apart from the measured one 0.03 at most 0.05 met",
		"mlp, one stage, 2 threads: throughput to plain PyTorch's 1.10 at least 1.00 met",
		"a table, ms 30.00 at most 40.00 met",
		"peaks that are not as predicted, to the byte 1.00 at most 0.00 missed",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
	if strings.Contains(text, "not compared") {
		t.Errorf("the table says that there was no compared:\n%s", b.String())
	}
}

// Steps over one stage in one and in 8 micro-batches are two workloads, and one target.
func TestTargetOfManyMicroBatches(t *testing.T) {
	of := func(chunks int, ms float64) workloadResult {
		return workloadResult{workload: workload{Model: mlp, Chunks: chunks}, Pipes: []pipeResult{{Stages: 1, Step: spread{ms, ms, ms}}}}
	}
	one, eight, other := of(1, 100), of(8, 130), of(4, 110)
	if got := manyTargets([]workloadResult{other, one, eight}); len(got) != 1 || got[0].Value != 1.3 || got[0].Met {
		t.Errorf("got %+v", got)
	}
	if got := manyTargets([]workloadResult{other, eight}); got != nil {
		t.Errorf("without one micro-batch: %+v", got)
	}
}

// A compared that failed is a target missed.
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
	r.Targets, r.Notes = targets(r), r.notes(false, []torch.Kernels{{Library: "BLAS", Name: "SkylakeX", By: "penstock"}})
	var b strings.Builder
	if err := r.write(&b); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(b.String()), "\n")
	if len(lines) != 3 || !strings.Contains(lines[0], "other processes used 0.25 cores") || !strings.Contains(lines[2], "set TORCHGPIPE") {
		t.Errorf("got\n%s", b.String())
	}
}

// Kernels that are not the best are a note of the table.
func TestSlowKernelsAreNoted(t *testing.T) {
	slow := torch.Kernels{Library: "BLAS", Name: "Haswell", By: "OPENBLAS_CORETYPE=Haswell", Best: "SkylakeX"}
	if notes := (&report{}).notes(true, []torch.Kernels{{Library: "ATen", Name: "AVX2", By: "ATen"}, slow}); len(notes) != 1 || notes[0] != slow.Slow() {
		t.Errorf("got %q", notes)
	}
}

func TestJSON(t *testing.T) {
	text, err := json.Marshal(sample())
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"model":"mlp"`, `"options":{"width":1024}`, `"bubble_bound":0.5625`, `"peak_bytes":[1048576,1048576]`, `"step_ms":{"median":140,`, `"samples_per_s":{"median":1830,`,
		`"points":[2,-6]`, `"throughput_ratio":`, `"ours":{"median":2.86,`, `"segments":4`, `"predicted_peak_bytes":93323264`, `"rotor_quoted":{"layers":100,`, `"met":false`,
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %s in %s", want, text)
		}
	}
}
