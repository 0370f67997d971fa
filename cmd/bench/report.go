package main

import (
	"fmt"
	"slices"
)

// report is everything a run measured; --format json prints it as it is.
type report struct {
	Machine   machine          `json:"machine"`
	Product   product          `json:"product"`
	Cells     []cell           `json:"cells"` // ours first
	Workloads []workloadResult `json:"workloads"`
	Targets   []target         `json:"targets"`
	Note      string           `json:"note,omitempty"`
}

// spread is the middle of several measurements and how far they lie apart.
type spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

func spreadOf(values []float64) spread {
	if len(values) == 0 {
		return spread{}
	}
	v := slices.Sorted(slices.Values(values))
	m := v[len(v)/2]
	if len(v)%2 == 0 {
		m = (v[len(v)/2-1] + m) / 2
	}
	return spread{Median: m, Min: v[0], Max: v[len(v)-1]}
}

func median(values []float64) float64 { return spreadOf(values).Median }

// paired is the spread of a[i]/b[i]: the two were measured next to each other, so what disturbs both cancels.
func paired(a, b []float64) spread {
	q := make([]float64, min(len(a), len(b)))
	for i := range q {
		q[i] = a[i] / b[i]
	}
	return spreadOf(q)
}

// target is a number to reach.
type target struct {
	Name    string  `json:"name"`
	Value   float64 `json:"value"`
	Bound   float64 `json:"bound"`
	AtLeast bool    `json:"at_least"` // otherwise at most
	Met     bool    `json:"met"`
}

func atLeast(name string, value, bound float64) target {
	return target{name, value, bound, true, value >= bound}
}

func atMost(name string, value, bound float64) target {
	return target{name, value, bound, false, value <= bound}
}

func targets(r *report) []target {
	list := []target{
		atLeast("product: share of the core's peak", r.Product.Share, 0.85),
		atMost("cell: overhead, us", r.Cells[0].Overhead.Median, 15),
	}
	for _, w := range r.Workloads {
		if w.Model != "mlp" {
			continue
		}
		name := fmt.Sprintf("mlp, %d micro-batches: ", w.Chunks)
		if w.Chunks == 8 {
			list = append(list, atMost(name+"2 stages / 1 stage", w.Ratio.Median, 0.65))
		}
		if w.Chunks > 1 && len(w.Others) > 0 && w.Others[0].Error == "" {
			list = append(list, atMost(name+"2 stages, ours / torchgpipe", w.Others[0].Ours[1].Median, 0.45))
		}
	}
	return list
}
