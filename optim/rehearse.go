package optim

import (
	"penstock/nn"
	"penstock/torch"
)

// Unmade is how many bytes of state an optimizer will make for parameters beside what it has made already. It is false for optimizers that are not of this package.
func Unmade(o Optimizer, params []nn.NamedParam) (bytes int64, ok bool) {
	of, ok := o.(*optimizer)
	if !ok {
		return 0, false
	}
	slots := int64(len(of.rule.slots()))
	names := map[string]bool{}
	for _, p := range params {
		names[p.Name] = true
		bytes += slots * p.Numel() * p.DType().Size()
	}
	for _, s := range o.State() {
		if names[s.Param()] {
			_, there := s.Tensor.Storage()
			bytes -= there
		}
	}
	return max(bytes, 0), true
}

// Update is what updates of a parameter take, in bytes: First is most in the first one, beside what was there, State stays; Later is most in one that comes after it. Norm is what SquaredNorms of its gradient takes.
type Update struct{ First, State, Later, Norm int64 }

// Rehearse runs the first two updates of a copy of a parameter, by an optimizer like o that has never stepped, and reads the account of the context's device, which nobody else may use meanwhile. It is false
// for optimizers that are not of this package. Operators that fail panic.
func Rehearse(c *torch.Ctx, o Optimizer, p nn.NamedParam) (out Update, ok bool) {
	twin, ok := Fresh(o)
	if !ok {
		return out, false
	}
	defer twin.Close()
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
	measure := func(f func(*torch.Ctx, []nn.NamedParam)) (peak, left int64) {
		before := device.Memory().Live
		device.ResetPeak()
		f(c, list)
		account := device.Memory()
		return account.Peak - before, account.Live - before
	}
	out.Norm, _ = measure(func(c *torch.Ctx, list []nn.NamedParam) { SquaredNorms(c, list) })
	out.First, out.State = measure(twin.Step)
	out.Later, _ = measure(twin.Step)
	return out, true
}

// stand is a module of one parameter.
type stand struct{ nn.Base }
