package remat

import (
	"penstock/nn"
	"penstock/optim"
	"penstock/torch"
)

// update is what an optimizer's update takes, measured on copies of parameters by an optimizer of the same rule that has never stepped.
type update struct {
	params []updated
	of     optim.Optimizer
}

// updated is the update of a parameter, in bytes. first is most in the first one, beside what was there, state stays; later is most in one that comes after it.
type updated struct {
	name                string
	bytes               int64
	first, state, later int64
}

// measureUpdate runs the first two updates of a copy of each shape of parameter. Nil if there is no optimizer, or none whose rule can be copied.
func (m *Module) measureUpdate(c *torch.Ctx) *update {
	if m.config.Optimizer == nil {
		return nil
	}
	type shape struct {
		text string
	}
	known := map[shape]updated{}
	u := &update{of: m.config.Optimizer}
	for _, p := range nn.Params(m.model) {
		key := shape{p.Tensor().String()}
		figures, ok := known[key]
		if !ok {
			twin, copied := optim.Fresh(m.config.Optimizer)
			if !copied {
				return nil
			}
			figures = rehearseUpdate(c, twin, p)
			twin.Close()
			known[key] = figures
		}
		figures.name, figures.bytes = p.Name, p.Numel()*p.DType().Size()
		u.params = append(u.params, figures)
	}
	return u
}

// stand is a module of one parameter.
type stand struct{ nn.Base }

// rehearseUpdate measures the updates of a parameter of p's shape.
func rehearseUpdate(c *torch.Ctx, o optim.Optimizer, p nn.NamedParam) (out updated) {
	var s stand
	s.Param("p", nn.Zeros, p.Shape()...)
	list := nn.Params(&s)
	nn.Convert(c, list, p.DType())
	nn.Materialise(c, list, 0)
	defer nn.Free(&s)
	t := list[0].Tensor()
	mark := c.Mark()
	defer func() { c.Release(mark) }()
	c.NoGrad(func() { t.SetGradOf(c.ZerosLike(t)) })
	device := c.Device()
	step := func() (peak, left int64) {
		before := device.Memory().Live
		device.ResetPeak()
		o.Step(c, list)
		account := device.Memory()
		return account.Peak - before, account.Live - before
	}
	out.first, out.state = step()
	out.later, _ = step()
	return out
}

// need is what the next update takes, and what of the optimizer's state is still to be made.
func (u *update) need() (peak, unmade int64) {
	steps := u.of.Steps()
	for _, p := range u.params {
		if made(steps, p.name) {
			peak = max(peak, unmade+p.later)
		} else {
			peak = max(peak, unmade+p.first)
			unmade += p.state
		}
	}
	return peak, unmade
}

// most is what a later update takes.
func (u *update) most() (peak int64) {
	for _, p := range u.params {
		peak = max(peak, p.later)
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
