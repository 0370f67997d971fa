package optim

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"penstock.example/safetensors"
	"penstock.example/torch"
)

func (o *optimizer) Load(tensors []safetensors.Tensor, steps map[string]int64,
	places []Placement) (err error) {
	if o.state == nil {
		return errors.New("optim: load after Close")
	}
	loaded, saved, counts := map[string]*memory{}, map[string]safetensors.Tensor{}, maps.Clone(steps)
	defer func() {
		if err != nil {
			free(loaded)
			err = fmt.Errorf("optim: load: %w", err)
		}
	}()
	for _, t := range tensors {
		if _, twice := saved[t.Name]; twice {
			return fmt.Errorf("%q is there twice", t.Name)
		}
		saved[t.Name] = t
	}
	for _, place := range places {
		if len(saved)+len(steps) == 0 {
			break
		}
		if err := o.read(loaded, saved, counts, place); err != nil {
			return err
		}
	}
	if len(counts)+len(saved) > 0 {
		return fmt.Errorf("state of no parameter of the model under this optimizer: steps %q, tensors %q",
			slices.Sorted(maps.Keys(counts)), slices.Sorted(maps.Keys(saved)))
	}
	free(o.state)
	o.state = loaded
	return nil
}

// read moves the state of a place's parameters from saved and counts to loaded. If it fails, loaded has what
// was allocated.
func (o *optimizer) read(loaded map[string]*memory, saved map[string]safetensors.Tensor,
	counts map[string]int64, place Placement) error {
	c := torch.NewCtx(torch.Options{Device: place.Device})
	defer c.Close()
	for _, p := range place.Params {
		n, ok := counts[p.Name]
		if !ok || n < 0 {
			return fmt.Errorf("no count of steps for parameter %q, or it is placed twice", p.Name)
		}
		delete(counts, p.Name)
		m := &memory{steps: n}
		loaded[p.Name] = m
		if n == 0 {
			continue // no tensors before the first update
		}
		m.slots = []*torch.Tensor{}
		for _, slot := range o.rule.slots() {
			name := stateName(slot, p.Name)
			t, ok := saved[name]
			if !ok {
				return fmt.Errorf("no tensor %q", name)
			}
			if dtype := torch.FileDType(p.DType()); t.DType != dtype || !slices.Equal(t.Shape, p.Shape()) {
				return fmt.Errorf("%q is %v%v, the parameter is %v%v", name, t.DType, t.Shape, dtype,
					p.Shape())
			}
			delete(saved, name)
			if err := t.Load(func(b []byte) error {
				return torch.Try(func() {
					m.slots = append(m.slots, c.Keep(torch.FromBytes(c, b, p.DType(), p.Shape())))
				})
			}); err != nil {
				return fmt.Errorf("%q: %w", name, err)
			}
		}
	}
	return nil
}
