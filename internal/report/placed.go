package report

import (
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/remat"
)

// DescribePipe describes the model of a run: its layers, the costs of its stages, and the limits of
// devices.
func DescribePipe(p *pipe.Pipe) Run {
	r := Run{Layers: layersOf(p)}
	for _, d := range p.Devices() {
		r.Limits = append(r.Limits, d.Memory().Limit)
	}
	for i, c := range p.Chains() {
		if len(c.Layers) > 0 { // the stage is trained, and its units were measured
			r.Chains = append(r.Chains, Chain{Stage: i,
				Chain: c.Footprint.Chain(c.UnitTimes, c.Loss.Backward, c.Prologue, remat.Adds)})
		}
	}
	return r
}

// layersOf lists the layers of the model. After a cut by time they have their measured costs. After
// planning, the first layer of each unit has the unit's costs.
func layersOf(p *pipe.Pipe) (out []Layer) {
	for _, s := range nn.Summary(p.Model()) {
		if s.Name != "" { // otherwise parameters of the model itself
			out = append(out, Layer{Name: s.Name, Type: s.Type, Parameters: s.Bytes})
		}
	}
	if measured := p.Config().Profile; measured != nil && len(measured.Layers) == len(out) {
		for i, l := range measured.Layers {
			out[i].Forward, out[i].Backward, out[i].Saved = l.Forward, l.Backward, l.Saved
		}
		return out
	}
	end, stages := 0, p.Stages()
	for i, c := range p.Chains() {
		first := end
		end += len(stages[i].Layers)
		for unit, n := range c.Units {
			if first >= end {
				break
			}
			l := &out[first]
			l.Of = min(n, end-first) // a loss that ends a unit is no layer of the model
			if k := unit - c.Prologue; k < 0 {
				l.Forward = c.UnitTimes[unit].ForwardNoGrad / 1e6
			} else if k < len(c.Layers) {
				m := c.Layers[k]
				l.Forward, l.Backward, l.Saved = m.Forward/1e6, m.Later()/1e6, m.Saved
			}
			first += n
		}
	}
	return out
}
