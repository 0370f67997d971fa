package autoremat

import (
	"strings"

	"penstock.example/nn"
	"penstock.example/optim"
)

// updateNeed returns what the optimizer's next update of the model allocates; ok is false without
// an optimizer.
func (m *Module) updateNeed() (n optim.Need, ok bool) {
	o := m.config.Optimizer
	if o == nil {
		return n, false
	}
	params, steps := nn.Params(m.model), o.Steps()
	for i := range params {
		params[i].Name = nameIn(steps, params[i].Name)
	}
	return o.Need(params), true
}

// nameIn returns the name under which an optimizer counts the updates of a parameter. A model that
// is part of another one has longer names there.
func nameIn(steps map[string]int64, name string) string {
	if steps[name] > 0 {
		return name
	}
	for other, n := range steps {
		if n > 0 && strings.HasSuffix(other, "."+name) {
			return other
		}
	}
	return name
}
