package report

import (
	"fmt"
	"slices"
	"time"

	"penstock.example/plan"
	"penstock.example/remat"
	"penstock.example/schedule"
)

// view is a Run with everything computed for the page's script.
type view struct {
	*plainRun
	Devices []deviceView `json:"devices"`
	Planned *timeline    `json:"planned"`
	Times   string       `json:"times"` // of Planned: "predicted", "median" of Ran, or "unit": all equal
	Ran     *timeline    `json:"ran"`
	Layers  []layerView  `json:"layers"`
	Chains  []Chain      `json:"costs,omitempty"` // always nil: hides Run.Chains from the page
}

type deviceView struct {
	Name        string  `json:"name"`
	Stages      []int   `json:"stages"`
	Limit       int64   `json:"limit"`      // bytes; 0 is none
	Predicted   int64   `json:"predicted"`  // peak, in bytes; 0 is unknown
	PlannedIdle float64 `json:"idle"`       // idle share of the planned step
	RanIdle     float64 `json:"ran_idle"`   // idle share of the recorded step
	Recomputed  int     `json:"recomputed"` // number of recomputed forwards in a step
}

// layerView is a Layer and its place in the plan.
type layerView struct {
	Layer
	Stage        int    `json:"stage"`
	Device       string `json:"device"`
	Policy       string `json:"policy"`
	Again        int    `json:"again"` // number of MicroBatches for which the layer is recomputed
	MicroBatches int    `json:"micro_batches"`
	Runs         int    `json:"runs"`   // number of forwards in a step
	Frozen       bool   `json:"frozen"` // in the prologue, without a backward
}

func newView(r Run) (v view, err error) {
	v = view{plainRun: (*plainRun)(&r), Ran: (*timeline)(r.Ran)}
	for _, l := range r.Layers {
		v.Layers = append(v.Layers, layerView{Layer: l, Stage: -1})
	}
	if r.Plan == nil {
		for w := 0; r.Ran != nil && w < r.Ran.Workers; w++ {
			v.Devices = append(v.Devices, deviceView{Name: fmt.Sprintf("worker %d", w)})
		}
	} else {
		var planned schedule.Timeline
		if planned, v.Times, err = plannedTimeline(r); err != nil {
			return view{}, err
		}
		v.Planned = (*timeline)(&planned)
		for w, d := range r.Plan.Devices {
			out := deviceView{Name: d.Name, Limit: d.Limit, Predicted: d.Peak, PlannedIdle: planned.Idle(w)}
			if w < len(r.Limits) {
				out.Limit = max(out.Limit, r.Limits[w])
			}
			v.Devices = append(v.Devices, out)
		}
		for i, s := range r.Plan.Stages {
			d := &v.Devices[s.Device]
			d.Stages, d.Recomputed = append(d.Stages, i), d.Recomputed+s.Recomputed()
		}
		v.placeLayers(r.Plan)
	}
	if r.Ran != nil {
		for w := range v.Devices {
			v.Devices[w].RanIdle = r.Ran.Idle(w)
		}
	}
	return v, nil
}

// plannedTimeline returns the predicted step. Without predictions an action takes the median time
// of the recorded step's actions of its kind and stage.
func plannedTimeline(r Run) (t schedule.Timeline, times string, err error) {
	p, ran := r.Plan, r.Ran
	if r.Planned != nil {
		return *r.Planned, "predicted", nil
	}
	t, predicted, err := p.Timeline()
	switch {
	case err != nil || predicted:
		return t, "predicted", err
	case ran == nil || len(ran.Events) == 0:
		return t, "unit", nil
	}
	took := map[schedule.Action][]time.Duration{} // by kind and stage
	for _, e := range ran.Events {
		key := schedule.Action{Kind: e.Action.Kind, Stage: e.Action.Stage}
		if !key.Kind.Transfer() {
			took[key] = append(took[key], e.End-e.Start)
		}
	}
	t, err = schedule.Simulate(p.Program, func(a schedule.Action) time.Duration {
		all := took[schedule.Action{Kind: a.Kind, Stage: a.Stage}]
		if len(all) == 0 {
			return 0
		}
		slices.Sort(all)
		return all[len(all)/2]
	})
	return t, "median", err
}

// placeLayers sets each layer's stage, device, policy and number of runs.
func (v *view) placeLayers(p *plan.Plan) {
	next := 0
	for i, s := range p.Stages {
		units := s.Units
		if units == nil {
			units = []int{s.Layers}
		}
		end := next + s.Layers // a loss in the last unit is no layer of the model
		for unit, n := range units {
			again, runs := 0, 0
			for _, m := range s.MicroBatches {
				times := forwards(m.Ops, unit)
				runs += times
				again += min(1, max(0, times-1))
			}
			for ; n > 0 && next < min(end, len(v.Layers)); n-- {
				l := &v.Layers[next]
				l.Stage, l.Device, l.Policy = i, p.Devices[s.Device].Name, string(s.Policy)
				l.Again, l.MicroBatches, l.Runs, l.Frozen = again, len(s.MicroBatches), runs,
					unit < s.Prologue
				next++
			}
		}
	}
}

// forwards counts the operations that run a unit forward.
func forwards(ops []remat.Op, unit int) (n int) {
	for _, op := range ops {
		if op.Layer == unit && op.Kind != remat.Backward && op.Kind != remat.LossStep {
			n++
		}
	}
	return n
}
