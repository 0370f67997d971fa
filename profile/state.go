package profile

import (
	"penstock.example/nn"
	"penstock.example/torch"
)

// prepare makes a layer ready to run: it makes parameters that do not exist, puts gradients aside,
// and copies buffers, which layers change. restore undoes all of it. If prepare panics, nothing has
// changed.
func prepare(c *torch.Ctx, l nn.NamedLayer, seed uint64) (restore func()) {
	var undo []func()
	restore = func() {
		for _, u := range undo {
			u()
		}
	}
	done := false
	defer func() {
		if !done {
			restore()
		}
	}()
	var missing []nn.NamedParam
	for _, s := range l.State() {
		p := s.Param.Owner()
		if !p.Exists() {
			missing = append(missing, nn.NamedParam{Name: s.Name, Param: p})
			undo = append(undo, p.Free)
			continue
		}
		t := s.Tensor()
		if s.IsBuffer() {
			was := c.Clone(t)
			undo = append(undo, func() { c.NoGrad(func() { c.Copy_(t, was) }) }) // always: native_batch_norm does not count as a change
		}
	}
	nn.Materialise(c, missing, seed)
	for _, p := range l.State() {
		if !p.Trainable() {
			continue
		}
		t := p.Tensor()
		grad := c.GradOf(t)
		t.SetGradOf(nil)
		undo = append([]func(){func() { t.SetGradOf(grad) }}, undo...)
	}
	done = true
	return restore
}
