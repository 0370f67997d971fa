package torch

var opAlias = declare("aten::alias(Tensor(a) self) -> Tensor(a)")
var opPlainLinear = declare("aten::linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor")

func (c *Ctx) Branch(t *Tensor) *Tensor {
	if !c.Grad() || !t.RequiresGrad() {
		return c.Share(t)
	}
	return c.begin(opAlias).t(t).one()
}

func (c *Ctx) PlainLinear(input, weight, bias *Tensor) *Tensor {
	return c.begin(opPlainLinear).t(input).t(weight).t(bias).one()
}
func (c *Ctx) Mailbox() *Tensor { return c.Empty(Float32, 0).SetRequiresGrad(true) }
func (c *Ctx) SetAutocast(on bool) bool { return false }

func (c *Ctx) Checkpoint(f func(c *Ctx, in []*Tensor) []*Tensor, in []*Tensor, trained bool) []*Tensor {
	return f(c, in)
}
