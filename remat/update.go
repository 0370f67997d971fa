package remat

import (
	"penstock/nn"
	"penstock/optim"
	"penstock/torch"
)

// update is what an optimizer's update takes, measured on copies of parameters.
type update struct {
	params []updated
	of     optim.Optimizer
}

// updated is the update of a parameter.
type updated struct {
	name string
	optim.Update
}

// measureUpdate rehearses the updates of each shape of parameter. Nil if there is no optimizer, or none that can be rehearsed.
func (m *Module) measureUpdate(c *torch.Ctx) *update {
	if m.config.Optimizer == nil {
		return nil
	}
	known := map[string]optim.Update{}
	u := &update{of: m.config.Optimizer}
	for _, p := range nn.Params(m.model) {
		shape := p.Tensor().String()
		figures, ok := known[shape]
		if !ok {
			if figures, ok = optim.Rehearse(c, m.config.Optimizer, p); !ok {
				return nil
			}
			known[shape] = figures
		}
		u.params = append(u.params, updated{p.Name, figures})
	}
	return u
}

// need is what the next update takes, and what of the optimizer's state is still to be made.
func (u *update) need() (peak, unmade int64) {
	steps := u.of.Steps()
	for _, p := range u.params {
		if made(steps, p.name) {
			peak = max(peak, unmade+p.Later)
		} else {
			peak = max(peak, unmade+p.First)
			unmade += p.State
		}
	}
	return peak, unmade
}

// most is what a later update takes.
func (u *update) most() (peak int64) {
	for _, p := range u.params {
		peak = max(peak, p.Later)
	}
	return peak
}

// made says whether a parameter has been updated. A model that is a part of another one has longer names there.
func made(steps map[string]int64, name string) bool {
	if steps[name] > 0 {
		return true
	}
	for other, n := range steps {
		if d := len(other) - len(name); n > 0 && d > 0 && other[d-1] == '.' && other[d:] == name {
			return true
		}
	}
	return false
}
