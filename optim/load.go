package optim

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"penstock.example/nn"
	"penstock.example/torch"
)

func (o *optimizer) Load(tensors []SavedTensor, steps map[string]int64, places []Placement) error {
	if o.isClosed() {
		return errors.New("optim: load after Close")
	}
	if len(tensors) == 0 && len(steps) == 0 {
		o.replace(map[string]*memory{})
		return nil
	}
	saved := map[string]SavedTensor{}
	for _, t := range tensors {
		if _, twice := saved[t.Name]; twice {
			return fmt.Errorf("optim: load: %q is there twice", t.Name)
		}
		saved[t.Name] = t
	}
	// Nothing is allocated before all is known to fit.
	if err := o.fits(saved, steps, places); err != nil {
		return fmt.Errorf("optim: load: %w", err)
	}
	of := map[string]*memory{}
	for _, place := range places {
		if err := o.read(of, saved, steps, place); err != nil {
			for _, m := range of {
				m.free()
			}
			return fmt.Errorf("optim: load: %w", err)
		}
	}
	o.replace(of)
	return nil
}

func (o *optimizer) isClosed() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.of == nil
}

// fits checks that the saved state has exactly these parameters under this rule.
func (o *optimizer) fits(saved map[string]SavedTensor, steps map[string]int64, places []Placement) error {
	unknownSteps, unknown := maps.Clone(steps), maps.Clone(saved)
	seen := map[string]bool{}
	for _, place := range places {
		for _, p := range place.Params {
			n, ok := steps[p.Name]
			switch {
			case seen[p.Name]:
				return fmt.Errorf("parameter %q is placed twice", p.Name)
			case !ok:
				return fmt.Errorf("no count of steps for parameter %q", p.Name)
			case n < 0:
				return fmt.Errorf("parameter %q has a count of %d steps", p.Name, n)
			}
			seen[p.Name] = true
			delete(unknownSteps, p.Name)
			if n == 0 {
				continue // never updated: it has no tensors
			}
			for _, slot := range o.rule.slots() {
				name := stateName(slot, p.Name)
				t, ok := saved[name]
				if !ok {
					return fmt.Errorf("no tensor %q", name)
				}
				if t.DType != p.DType() || !slices.Equal(t.Shape, p.Shape()) {
					return fmt.Errorf("%q is %v%v, the parameter is %v%v", name, t.DType, t.Shape,
						p.DType(), p.Shape())
				}
				delete(unknown, name)
			}
		}
	}
	if len(unknownSteps) > 0 {
		return fmt.Errorf("steps of parameters that the model does not have: %q",
			slices.Sorted(maps.Keys(unknownSteps)))
	}
	if len(unknown) > 0 {
		return fmt.Errorf("tensors that belong to no parameter of the model under this optimizer: %q",
			slices.Sorted(maps.Keys(unknown)))
	}
	return nil
}

// read adds the state of one place's parameters to of, also in a call that fails.
func (o *optimizer) read(of map[string]*memory, saved map[string]SavedTensor, steps map[string]int64,
	place Placement) error {
	c := torch.NewCtx(torch.Options{Device: place.Device})
	defer c.Close()
	for _, p := range place.Params {
		m := &memory{steps: steps[p.Name]}
		of[p.Name] = m
		if m.steps == 0 {
			continue
		}
		m.slots = []*torch.Tensor{}
		for _, slot := range o.rule.slots() {
			t, err := readTensor(c, saved[stateName(slot, p.Name)], p)
			if err != nil {
				return err
			}
			m.slots = append(m.slots, c.Keep(t))
		}
	}
	return nil
}

func readTensor(c *torch.Ctx, saved SavedTensor, p nn.NamedParam) (t *torch.Tensor, err error) {
	data, err := saved.Read()
	if err != nil {
		return nil, fmt.Errorf("%q: %w", saved.Name, err)
	}
	if err := torch.Try(func() { t = torch.FromBytes(c, data, p.DType(), p.Shape()) }); err != nil {
		return nil, fmt.Errorf("%q: %w", saved.Name, err)
	}
	return t, nil
}
