package main

import (
	"context"
	"math"
	"testing"

	"penstock.example/internal/torchtest"
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
