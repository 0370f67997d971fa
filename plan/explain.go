package plan

import (
	"cmp"
	"context"
	"fmt"
	"math"
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
	// Fullest is the device with the greatest peak relative to its limit, or without limits the greatest peak.
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

// Gain is the step with more of something. It is at most the plan's step, as the plan need not use
// it.
type Gain struct {
	What string        `json:"what"`
	Step time.Duration `json:"step_ns"`
}

// Explain says what sets the time and the memory of the best plan of a search. It searches again
// with one more device like the last, with a tenth more bytes, and with links of twice the
// bandwidth, and reports these to [Options.Progress] with each schedule. It blocks until it is done,
// and fails with ctx.Err() when ctx ends.
func Explain(ctx context.Context, profile Profile, machine Machine, wishes Options,
	plan *Candidate) (*Explanation, error) {
	if err := profile.check(); err != nil {
		return nil, err
	}
	measured, ok := profile.of(plan.Rows, plan.Threads)
	if !ok || plan.Planned == nil {
		return nil, fmt.Errorf("plan: the plan is for %d rows and %d threads, which the profile does not have; want a plan of Search for this profile", plan.Rows, plan.Threads)
	}
	out := &Explanation{}
	for w := range plan.Devices {
		full := func(w int) float64 {
			if plan.Limits[w] == 0 {
				return float64(plan.Peaks[w]) / math.MaxInt64
			}
			return float64(plan.Peaks[w]) / float64(plan.Limits[w])
		}
		if plan.Busy[w] > plan.Busy[out.Slowest] {
			out.Slowest = w
		}
		if full(w) > full(out.Fullest) {
			out.Fullest = w
		}
	}
	out.Busy = float64(plan.Busy[out.Slowest]) / float64(plan.Step)
	layers := measured.Chain.Layers
	shares := func(device int, of func(unit int) float64) (list []Share) {
		at, sum := 0, 0.0
		for s, n := range plan.Balance {
			for u := at; u < at+n; u++ {
				if plan.Planned.Stages[s].Device == device {
					list, sum = append(list, Share{u, layers[u].Name, of(u)}), sum+of(u)
				}
			}
			at += n
		}
		slices.SortStableFunc(list, func(a, b Share) int { return cmp.Compare(b.Part, a.Part) })
		for i := range list {
			list[i].Part /= max(sum, 1e-300)
		}
		return list[:min(3, len(list))]
	}
	took, held := taken(plan, averaged(measured.Chain, plan.MicroBatches))
	out.Slow = shares(out.Slowest, func(u int) float64 { return took[u] })
	out.Full = shares(out.Fullest, func(u int) float64 { return held[u] })
	for _, more := range []struct {
		what   string
		change func(m *Machine, w *Options) bool
	}{
		{"one more device", func(m *Machine, w *Options) bool {
			*m = m.withOneMore()
			if w.Devices > 0 {
				w.Devices++
			}
			return m.check() == nil // it may have too many threads
		}},
		{"10 % more bytes", func(m *Machine, w *Options) bool {
			limited := w.Limit > 0
			w.Limit += w.Limit / 10
			for i := range m.Devices {
				limited = limited || m.Devices[i].Bytes > 0
				m.Devices[i].Bytes += m.Devices[i].Bytes / 10
			}
			return limited
		}},
		{"twice the bandwidth", func(m *Machine, _ *Options) bool {
			bounded := false
			for i := range m.Links {
				bounded = bounded || m.Links[i].Bandwidth > 0
				m.Links[i].Bandwidth *= 2
			}
			return bounded
		}},
	} {
		m, w := Machine{slices.Clone(machine.Devices), slices.Clone(machine.Links)}, wishes
		if !more.change(&m, &w) {
			continue
		}
		w.Progress = func(schedule string, done, all int) { wishes.report(schedule+", with "+more.what, done, all) }
		r, err := Search(ctx, profile, m, w)
		if err != nil {
			return nil, err
		}
		g := Gain{What: more.what, Step: plan.Step}
		if r.Best != nil {
			g.Step = min(g.Step, r.Best.Step)
		}
		out.Gains = append(out.Gains, g)
	}
	return out, nil
}

// taken returns, by unit, the microseconds of a step, with recomputations, and the bytes held when
// most micro-batches of the stage are in flight: weights, their gradients, and the tensors that its
// forwards save.
func taken(plan *Candidate, c remat.Chain) (took, held []float64) {
	took, held = make([]float64, len(c.Layers)), make([]float64, len(c.Layers))
	most, now := make([]int, len(plan.Balance)), make([]int, len(plan.Balance)) // by stage: in flight
	for _, actions := range plan.Planned.Program.Workers {
		for _, a := range actions {
			switch a.Kind {
			case schedule.Forward:
				now[a.Stage]++
				most[a.Stage] = max(most[a.Stage], now[a.Stage])
			case schedule.Backward, schedule.BackwardInput:
				now[a.Stage]--
			}
		}
	}
	first := 0
	for s, n := range plan.Balance {
		part := float64(most[s]) / float64(plan.MicroBatches)
		for u := first; u < first+n; u++ {
			held[u] = 2 * float64(c.Layers[u].WeightGradient)
		}
		for _, m := range plan.Planned.Stages[s].MicroBatches {
			before := true // the loss
			for _, op := range m.Ops {
				u := first + op.Layer
				switch op.Kind {
				case remat.ForwardSave:
					if took[u] += c.Layers[u].Forward; before {
						held[u] += part * float64(c.Layers[u].Saved)
					}
				case remat.Forward, remat.ForwardKeep:
					took[u] += c.Layers[u].ForwardNoGrad
				case remat.Backward:
					took[u] += c.Layers[u].Backward
				case remat.LossStep:
					before = false
				}
			}
		}
		first += n
	}
	return took, held
}
