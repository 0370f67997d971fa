package main

import (
	"context"
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"penstock/internal/torchtest"
)

// BenchmarkCell is what the pipe adds to the operators of one (stage, micro-batch).
func BenchmarkCell(b *testing.B) {
	c, err := newCellBench()
	if err != nil {
		b.Fatal(err)
	}
	defer c.close()
	var piped, plain []float64
	for b.Loop() {
		p, err := c.piped(context.Background())
		if err != nil {
			b.Fatal(err)
		}
		q, err := c.plain(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		piped, plain = append(piped, p), append(plain, q)
	}
	r := cellOf("", piped, plain)
	b.ReportMetric(r.Pipe.Median, "us/cell")
	b.ReportMetric(r.Plain.Median, "us/plain")
	b.ReportMetric(r.Overhead.Median, "us/overhead")
}

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

func TestCell(t *testing.T) {
	torchtest.Check(t)
	r, err := measureCell(context.Background(), 2)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []spread{r.Pipe, r.Plain} {
		if s.Min <= 0 || math.IsInf(s.Max, 0) {
			t.Errorf("times of a cell are %v", s)
		}
	}
}

func TestWorkload(t *testing.T) {
	torchtest.Check(t)
	e := effort{rounds: 2, round: time.Nanosecond}
	r, err := workload{"gpt", "", 2, 2, "never"}.measure(context.Background(), e, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Balance) != 2 || r.Bound != 0.75 || r.Ratio.Median <= 0 {
		t.Errorf("got balance %v, bound %v, ratio %v", r.Balance, r.Bound, r.Ratio)
	}
	for i, s := range r.Stages {
		if len(s.Idle) != i+1 || len(s.Peak) != i+1 || s.Peak[i] == 0 || s.Step.Min <= 0 {
			t.Errorf("%d stages: %+v", i+1, s)
		}
	}
}

func sample() *report {
	w := workload{"mlp", "", 256, 8, "never"}
	r := &report{
		Machine: machine{CPU: "Processor", Cores: 2, Libtorch: "1.13.1", BLAS: "SkylakeX", Go: "go1.26", OtherCores: -1},
		Product: product{GFLOPS: 90, Peak: 100, Share: 0.9},
		Cells:   []cell{cellOf("penstock", []float64{60}, []float64{50})},
		Workloads: []workloadResult{{
			workload: w, Balance: []int{16, 16}, Bound: 0.5625,
			Stages: [2]stages{
				{Step: spread{200, 190, 210}, Idle: []float64{0}, Peak: []int64{2 << 20}},
				{Step: spread{140, 130, 150}, Idle: []float64{0.1, 0.2}, Peak: []int64{1 << 20, 1 << 20}},
			},
			Ratio:  spread{0.7, 0.68, 0.72},
			Others: []otherResult{{Name: "torchgpipe", Step: [2]spread{{300, 290, 310}, {400, 390, 410}}, Ours: [2]spread{{0.67, 0.6, 0.7}, {0.35, 0.3, 0.4}}}},
		}},
	}
	r.Targets = targets(r)
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
		"mlp 256 8 never 32 200.0 190.0-210.0 0.00 2.0",
		"mlp 256 8 never 16 16 140.0 130.0-150.0 0.70 0.68-0.72 0.56 0.10 0.20 1.0 1.0",
		"torchgpipe mlp 8 2 140.0 400.0 0.35 0.30-0.40",
		"product: share of the core's peak 0.90 at least 0.85 met",
		"cell: overhead, us 10.00 at most 15.00 met",
		"2 stages / 1 stage 0.70 at most 0.65 missed",
		"ours / torchgpipe 0.35 at most 0.45 met",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
}

func TestJSON(t *testing.T) {
	text, err := json.Marshal(sample())
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"model":"mlp"`, `"bubble_bound":0.5625`, `"peak_bytes":[1048576,1048576]`, `"step_ms":{"median":140,`, `"met":false`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %s in %s", want, text)
		}
	}
}
