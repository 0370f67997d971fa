package torch

import "penstock.example/internal/shim"

// AtenLinear is libtorch's own Linear.
func (c *Ctx) AtenLinear(input, weight, bias *Tensor) *Tensor {
	return c.op("aten::linear").t(input).t(weight).t(bias).one()
}

// AtenMatmul is libtorch's own Matmul.
func (c *Ctx) AtenMatmul(self, other *Tensor) *Tensor {
	return c.op("aten::matmul").t(self).t(other).one()
}

// ForgetNumerics undoes all settings of how CUDA devices compute.
func ForgetNumerics() {
	numerics.passed, numerics.varying, numerics.tf32 = false, false, false
	shim.SetGPUNumerics(false, true)
}
