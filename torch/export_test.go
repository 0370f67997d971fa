package torch

// Operators of libtorch that the package replaces: what its own are compared with.
var (
	opAtenLinear = declare("aten::linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor")
	opAtenMatmul = declare("aten::matmul(Tensor self, Tensor other) -> Tensor")
)

// AtenLinear is libtorch's own Linear.
func (c *Ctx) AtenLinear(input, weight, bias *Tensor) *Tensor {
	return c.begin(opAtenLinear).t(input).t(weight).t(bias).one()
}

// AtenMatmul is libtorch's own Matmul.
func (c *Ctx) AtenMatmul(self, other *Tensor) *Tensor {
	return c.begin(opAtenMatmul).t(self).t(other).one()
}

// AvailableMemoryUnder is AvailableMemory of a system whose files are under root.
var AvailableMemoryUnder = availableMemory
