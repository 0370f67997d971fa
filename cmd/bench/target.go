package main

import (
	"fmt"
	"math"
)

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

// idlePoints is how far the simulation's idle shares may lie from the measured ones over two
// stages, which have a core each.
const idlePoints = 5

// targets are those of what was measured.
func targets(r *report) []target {
	var list []target
	if r.Product != nil {
		list = append(list, atLeast("product: share of the core's peak", r.Product.Share, 0.85))
	}
	if len(r.Cells) > 0 {
		list = append(list, atMost("cell: overhead, us", r.Cells[0].Overhead.Median, 10))
	}
	list = append(list, manyTargets(r.Workloads)...)
	for _, w := range r.Workloads {
		name := fmt.Sprintf("%s, %d micro-batches, 2 stages: ", w.name(), w.Chunks)
		for _, p := range w.Pipes {
			if p.Stages != 2 {
				continue
			}
			if w.Model == mlp && w.Chunks == 8 {
				list = append(list, atMost(name+"time to that of 1 stage", p.Ratio.Median, 0.65))
			}
			list = append(list, atMost(name+"idle beside the simulation's, points", farthest(p.Idle.Points), idlePoints))
		}
		if w.Faster > 0 && len(w.Others) > 0 {
			list = append(list, atLeast(name+"throughput to torchgpipe's", w.Others[0].over(2).Faster.Median, w.Faster))
		}
		if w.FasterTuned > 0 && len(w.Others) > 1 {
			list = append(list, atLeast(name+"throughput to tuned torchgpipe's", w.Others[1].over(2).Faster.Median, w.FasterTuned))
		}
	}
	list = append(list, scheduleTargets(r.Schedules)...)
	list = append(list, processesTargets(r.Processes)...)
	list = append(list, plansTargets(r.Plans)...)
	list = append(list, plainTargets(r.Plain)...)
	list = append(list, devicesTargets(r.Devices)...)
	if r.Remat != nil {
		list = append(list, r.Remat.targets()...)
	}
	return list
}

// slowerByMany is the most that a step over one stage may take in 8 micro-batches, of its time in one.
const slowerByMany = 1.2

// manyTargets says what many micro-batches of few rows cost.
func manyTargets(list []workloadResult) []target {
	steps := map[int]float64{}
	for _, w := range list {
		if w.Model == mlp && w.Pipes[0].Stages == 1 {
			steps[w.Chunks] = w.Pipes[0].Step.Median
		}
	}
	if steps[1] == 0 || steps[8] == 0 {
		return nil
	}
	return []target{atMost("mlp, 1 stage: time in 8 micro-batches to that in 1", steps[8]/steps[1], slowerByMany)}
}

// over is what was measured over so many stages, or zero, which reaches no target, where torchgpipe
// failed.
func (o otherResult) over(stages int) otherPipe {
	for _, p := range o.Pipes {
		if p.Stages == stages {
			return p
		}
	}
	return otherPipe{}
}

// farthest is the greatest distance from 0.
func farthest(points []float64) float64 {
	most := 0.0
	for _, p := range points {
		most = max(most, math.Abs(p))
	}
	return most
}
