package plan

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"penstock.example/remat"
	"penstock.example/schedule"
)

// Explanation says what sets the time and the memory of a plan.
type Explanation struct {
	Slowest int     `json:"slowest_device"` // the device that is busy longest
	Busy    float64 `json:"busy"`           // its share of the step
	Slow    []Share `json:"slow"`           // its slowest units, at most three
	// Fullest is the device with the greatest peak relative to its limit, or without limits the
	// greatest peak.
	Fullest int     `json:"fullest_device"`
	Full    []Share `json:"full"` // its units with the most bytes, at most three
	Gains   []Gain  `json:"gains"`
}

// Share is a unit's part of its device's time or bytes.
type Share struct {
	Unit int     `json:"unit"`
	Name string  `json:"name"`
	Part float64 `json:"part"` // from 0 to 1
}

// Gain is the step on a larger machine. It is at most the plan's step.
type Gain struct {
	What string        `json:"what"`
	Step time.Duration `json:"step_ns"`
}

// Explain says what sets the time and the memory of the best plan of a search. It searches again with
// one more device like the last, with a tenth more bytes, and with twice the bandwidth of links. It
// reports these searches to [Options.Progress]. It blocks until it is done, and fails with ctx.Err()
// when ctx ends.
func Explain(ctx context.Context, profile Profile, machine Machine, options Options,
	plan *Candidate) (*Explanation, error) {
	measured, ok := profile.costsFor(plan.Rows, plan.Threads)
	if !ok || plan.Planned == nil {
		return nil, fmt.Errorf("plan: the profile has no costs for %d rows and %d threads", plan.Rows,
			plan.Threads)
	}
	out := &Explanation{}
	full := func(w int) float64 { return float64(plan.Peaks[w]) / float64(max(plan.Limits[w], 1)) }
	for w := range plan.Devices {
		if plan.Busy[w] > plan.Busy[out.Slowest] {
			out.Slowest = w
		}
		if full(w) > full(out.Fullest) {
			out.Fullest = w
		}
	}
	out.Busy = float64(plan.Busy[out.Slowest]) / float64(plan.Step)
	took, held := unitShares(plan, averaged(measured.Chain, plan.MicroBatches))
	shares := func(device int, of []float64) (list []Share) {
		first, sum := 0, 1e-300
		for s, n := range plan.Balance {
			for u := first; u < first+n && plan.Planned.Stages[s].Device == device; u++ {
				list, sum = append(list, Share{u, measured.Chain.Layers[u].Name, of[u]}), sum+of[u]
			}
			first += n
		}
		slices.SortStableFunc(list, func(a, b Share) int { return cmp.Compare(b.Part, a.Part) })
		for i := range list {
			list[i].Part /= sum
		}
		return list[:min(3, len(list))]
	}
	out.Slow, out.Full = shares(out.Slowest, took), shares(out.Fullest, held)
	search := func(what string, m Machine, w Options) error {
		w.Progress = func(schedule string, done, all int) {
			options.report(schedule+", with "+what, done, all)
		}
		r, err := Search(ctx, profile, m, w)
		if err == nil {
			g := Gain{What: what, Step: plan.Step}
			if r.Best != nil {
				g.Step = min(g.Step, r.Best.Step)
			}
			out.Gains = append(out.Gains, g)
		}
		return err
	}
	larger, w := machine.withOneMore(), options
	if w.Devices > 0 {
		w.Devices++
	}
	if larger.check() == nil { // it may have too many threads
		if err := search("one more device", larger, w); err != nil {
			return nil, err
		}
	}
	more, limited := slices.Clone(machine.Devices), options.Limit > 0
	for i := range more {
		limited = limited || more[i].Bytes > 0
		more[i].Bytes += more[i].Bytes / 10
	}
	if w := options; limited {
		w.Limit += w.Limit / 10
		if err := search("10 % more bytes", Machine{more, machine.Links}, w); err != nil {
			return nil, err
		}
	}
	if slices.ContainsFunc(machine.Links, func(l Link) bool { return l.Bandwidth > 0 }) {
		links := slices.Clone(machine.Links)
		for i := range links {
			links[i].Bandwidth *= 2
		}
		if err := search("twice the bandwidth", Machine{machine.Devices, links}, options); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// unitShares returns, by unit, the microseconds of a step, with recomputations, and the bytes held with
// all micro-batches in flight: weights, their gradients, and tensors saved by forwards.
func unitShares(plan *Candidate, c remat.Chain) (took, held []float64) {
	took, held = make([]float64, len(c.Layers)), make([]float64, len(c.Layers))
	first := 0
	for s, n := range plan.Balance {
		most := schedule.InFlight(plan.Planned.Program)[plan.Planned.Stages[s].Device]
		part := min(1, float64(most)/float64(plan.MicroBatches))
		for u := first; u < first+n; u++ {
			held[u] = 2 * float64(c.Layers[u].WeightGradient)
		}
		for _, m := range plan.Planned.Stages[s].MicroBatches {
			forward, _, _ := Split(m.Ops)
			for i, op := range m.Ops {
				u := first + op.Layer
				switch op.Kind {
				case remat.ForwardSave:
					if took[u] += c.Layers[u].Forward; i < len(forward) {
						held[u] += part * float64(c.Layers[u].Saved)
					}
				case remat.Forward, remat.ForwardKeep:
					took[u] += c.Layers[u].ForwardNoGrad
				case remat.Backward:
					took[u] += c.Layers[u].Backward
				}
			}
		}
		first += n
	}
	return took, held
}
