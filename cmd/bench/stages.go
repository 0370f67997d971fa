package main

import (
	"context"
	"fmt"

	"penstock.example/nn"
	"penstock.example/pipe"
)

// stageCounts are what each workload is cut into. The first is what the others are compared with;
// torchgpipe runs the first two.
var stageCounts = []int{1, 2, 4}

// workloadResult is what was measured of a workload.
type workloadResult struct {
	workload
	Settings   map[string]any `json:"options"`
	Layers     int            `json:"layers"` // that a balance counts
	Parameters int64          `json:"parameters"`
	Pipes      []pipeResult   `json:"pipes"` // by number of stages
	Others     []otherResult  `json:"torchgpipe,omitempty"`
}

// pipeResult is what was measured over some number of stages.
type pipeResult struct {
	Stages     int     `json:"stages"`
	Balance    []int   `json:"balance"`
	Step       spread  `json:"step_ms"` // medians of rounds
	Throughput spread  `json:"samples_per_s"`
	Ratio      spread  `json:"ratio"`        // of a step to one over one stage, round by round
	Bound      float64 `json:"bubble_bound"` // of the ratio
	Peak       []int64 `json:"peak_bytes"`   // by device
	Idle       idle    `json:"idle"`
}

// bubbleBound is (m+n-1)/(mn): the step of m micro-batches over n stages to that over one, where
// stages are equal and transfers free (Huang et al. 2019, section 2.3).
func bubbleBound(microBatches, stages int) float64 {
	return float64(microBatches+stages-1) / float64(microBatches*stages)
}

// throughput is samples a second, from milliseconds a step.
func (w workload) throughput(ms []float64) spread {
	rates := make([]float64, len(ms))
	for i, v := range ms {
		rates[i] = float64(w.Batch) / v * 1e3
	}
	return spreadOf(rates)
}

// measure lets the numbers of stages take turns, and torchgpipe's with them.
func (w workload) measure(ctx context.Context, e effort, others []*child) (workloadResult, error) {
	result := workloadResult{workload: w}
	var err error
	if result.Settings, err = w.settings(); err != nil {
		return result, err
	}
	balances, err := w.partitions(ctx, e.profile, stageCounts...)
	if err != nil {
		return result, err
	}
	var trainers []*trainer
	var contestants []contestant
	defer func() {
		for _, t := range trainers {
			t.close()
		}
	}()
	if w.FasterTuned == 0 {
		others = others[:min(len(others), 1)]
	}
	devices := 0
	for _, b := range balances {
		t, err := w.trainer(ctx, pipe.Config{Balance: b}, devices)
		if err != nil {
			return result, err
		}
		devices += len(b)
		trainers, contestants = append(trainers, t), append(contestants, t)
	}
	result.Layers, result.Parameters = trainers[0].pipe.Len(), nn.Count(trainers[0].model)
	for _, c := range others {
		for _, t := range trainers[:comparedStages] {
			o, err := newOpponent(c, w, t)
			if err != nil {
				return result, err
			}
			contestants = append(contestants, o)
		}
	}
	ms, failures, err := alternate(ctx, e, contestants)
	if err != nil {
		return result, err
	}
	for i, t := range trainers {
		if failures[i] != nil {
			return result, failures[i]
		}
		p, err := w.pipeResult(t, ms[i], ms[0])
		if err != nil {
			return result, fmt.Errorf("%d stages: %w", len(balances[i]), err)
		}
		result.Pipes = append(result.Pipes, p)
	}
	for k, c := range others {
		first := len(trainers) + k*comparedStages
		result.Others = append(result.Others, w.otherResult(c, ms[first:first+comparedStages], failures[first:first+comparedStages], ms))
	}
	return result, nil
}

// pipeResult is of a trainer's rounds, next to those over one stage.
func (w workload) pipeResult(t *trainer, ms, one []float64) (pipeResult, error) {
	balance := t.pipe.Config().Balance
	r := pipeResult{
		Stages: len(balance), Balance: balance, Step: spreadOf(ms), Throughput: w.throughput(ms), Ratio: paired(ms, one), Bound: bubbleBound(w.Chunks, len(balance)), Peak: t.peaks(),
	}
	var err error
	r.Idle, err = t.actions.idle()
	return r, err
}
