package main

import (
	"fmt"
	"slices"

	"penstock.example/torch"
)

// report is everything a run measured; --format json prints it as it is.
type report struct {
	Machine   machine           `json:"machine"`
	Product   *product          `json:"product,omitempty"`
	Cells     []cell            `json:"cells,omitempty"` // ours first
	Workloads []workloadResult  `json:"workloads,omitempty"`
	Ablations []contest         `json:"ablation,omitempty"` // by number of stages
	Schedules []contest         `json:"schedules,omitempty"`
	Processes []processesResult `json:"processes,omitempty"`
	StepTimes []stepTime        `json:"step_times,omitempty"`
	Plans     []plannedResult   `json:"plans,omitempty"`
	Plain     []plainResult     `json:"plain,omitempty"`
	Remat     *rematResult      `json:"remat,omitempty"`
	Devices   []deviceResult    `json:"devices,omitempty"`
	Targets   []target          `json:"targets"`
	Notes     []string          `json:"notes,omitempty"`
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

// paired is the spread of a[i]/b[i]: the two were measured next to each other, so what disturbs
// both cancels.
func paired(a, b []float64) spread {
	q := make([]float64, min(len(a), len(b)))
	for i := range q {
		q[i] = a[i] / b[i]
	}
	return spreadOf(q)
}

// notes says what a reader of the table has to know of this run.
func (r *report) notes(compared bool, kernels []torch.Kernels) []string {
	var list []string
	if most := slices.Max(stageCounts); len(r.Workloads) > 0 && r.Machine.Cores < most {
		list = append(list, fmt.Sprintf("%d stages on %d cores: the workers take turns, so time is hardly less than with a stage for each core; the bubble bound is of as many cores as stages",
			most, r.Machine.Cores))
	}
	for _, k := range kernels {
		if slow := k.Slow(); slow != "" {
			list = append(list, slow)
		}
	}
	if !compared {
		list = append(list, "torchgpipe: not compared; set TORCHGPIPE to the folder of a torchgpipe checkout")
	}
	return list
}
