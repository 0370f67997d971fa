package report

import (
	"fmt"
	"slices"
	"time"

	"penstock.example/plan"
	"penstock.example/remat"
	"penstock.example/schedule"
)

// view is a Run for the page's script, with everything computed.
type view struct {
	*plainRun
	Devices []deviceView `json:"devices"`
	Planned *timeline    `json:"planned"`
	Times   string       `json:"times"` // of Planned: "predicted", "median" of Ran, or "unit", all the same
	Ran     *timeline    `json:"ran"`
	Layers  []layerView  `json:"layers"`
	Chains  []Chain      `json:"costs,omitempty"` // none: the page has their curves
}

// deviceView is a device and its worker.
type deviceView struct {
	Name        string  `json:"name"`
	Stages      []int   `json:"stages"`
	Limit       int64   `json:"limit"`      // bytes; 0 is none
	Predicted   int64   `json:"predicted"`  // the most bytes; 0 is not known
	Peak        int64   `json:"peak"`       // the most bytes after an action of the step that was recorded
	PlannedIdle float64 `json:"idle"`       // share of the planned step
	RanIdle     float64 `json:"ran_idle"`   // share of the recorded one
	Recomputed  int     `json:"recomputed"` // forwards that are run again in a step
}

// layerView is a Layer and its place in the plan.
type layerView struct {
	Layer
	Stage  int    `json:"stage"`
	Device string `json:"device"`
	Policy string `json:"policy"`
	// Again is in how many of MicroBatches the layer is computed again, Runs how often it runs in all.
	Again        int  `json:"again"`
	MicroBatches int  `json:"micro_batches"`
	Runs         int  `json:"runs"`
	Frozen       bool `json:"frozen"` // nothing has to go back through the layer
}

// newView computes the content of the page.
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
		for _, e := range r.Ran.Events {
			v.Devices[e.Worker].Peak = max(v.Devices[e.Worker].Peak, e.Live)
		}
	}
	return v, nil
}

// plannedTimeline is the predicted step. Without predictions an action takes the median time of such
// actions of its stage in the step that was recorded.
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
		of := schedule.Action{Kind: e.Action.Kind, Stage: e.Action.Stage}
		if !of.Kind.Transfer() {
			took[of] = append(took[of], e.End-e.Start)
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

// placeLayers says of each layer where it is and how often it runs.
func (v *view) placeLayers(p *plan.Plan) {
	next := 0
	for i, s := range p.Stages {
		units := s.Units
		if units == nil {
			units = []int{s.Layers}
		}
		end := next + s.Layers // a loss that ends the last unit is no layer of the model
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

// forwards is how often operations run a unit forward.
func forwards(ops []remat.Op, unit int) (n int) {
	for _, op := range ops {
		if op.Layer == unit && op.Kind != remat.Backward && op.Kind != remat.LossStep {
			n++
		}
	}
	return n
}
