package optim

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"penstock.example/torch"
)

func (o *optimizer) Load(tensors []SavedTensor, steps map[string]int64, places []Placement) (err error) {
	if o.closed() {
		return errors.New("optim: load after Close")
	}
	loaded := map[string]*memory{}
	defer func() {
		if err != nil {
			for _, m := range loaded {
				m.free()
			}
			err = fmt.Errorf("optim: load: %w", err)
		}
	}()
	if len(tensors) > 0 || len(steps) > 0 {
		saved := map[string]SavedTensor{}
		for _, t := range tensors {
			if _, twice := saved[t.Name]; twice {
				return fmt.Errorf("%q is there twice", t.Name)
			}
			saved[t.Name] = t
		}
		if err := o.checkSaved(saved, steps, places); err != nil {
			return err
		}
		for _, place := range places {
			if err := o.read(loaded, saved, steps, place); err != nil {
				return err
			}
		}
	}
	o.replace(loaded)
	return nil
}

// checkSaved checks that the saved state is of exactly the placed parameters and this rule.
func (o *optimizer) checkSaved(saved map[string]SavedTensor, steps map[string]int64,
	places []Placement) error {
	counts, unused := maps.Clone(steps), maps.Clone(saved)
	for _, place := range places {
		for _, p := range place.Params {
			n, ok := counts[p.Name]
			if !ok || n < 0 {
				return fmt.Errorf("no count of steps for parameter %q, or it is placed twice", p.Name)
			}
			delete(counts, p.Name)
			if n == 0 {
				continue // no tensors before the first update
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
				delete(unused, name)
			}
		}
	}
	if len(counts)+len(unused) > 0 {
		return fmt.Errorf("state of no parameter of the model under this optimizer: steps %q, tensors %q",
			slices.Sorted(maps.Keys(counts)), slices.Sorted(maps.Keys(unused)))
	}
	return nil
}

// read adds the state of a place's parameters to loaded. If it fails, loaded has what was allocated.
func (o *optimizer) read(loaded map[string]*memory, saved map[string]SavedTensor, steps map[string]int64,
	place Placement) error {
	c := torch.NewCtx(torch.Options{Device: place.Device})
	defer c.Close()
	for _, p := range place.Params {
		m := &memory{steps: steps[p.Name]}
		loaded[p.Name] = m
		if m.steps == 0 {
			continue
		}
		m.slots = []*torch.Tensor{}
		for _, slot := range o.rule.slots() {
			t := saved[stateName(slot, p.Name)]
			data, err := t.Read()
			if err == nil {
				err = torch.Try(func() {
					m.slots = append(m.slots, c.Keep(torch.FromBytes(c, data, p.DType(), p.Shape())))
				})
			}
			if err != nil {
				return fmt.Errorf("%q: %w", t.Name, err)
			}
		}
	}
	return nil
}
