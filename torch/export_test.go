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

// ForgetNumerics has nobody have said how CUDA devices compute.
func ForgetNumerics() {
	numerics.told, numerics.varying, numerics.tf32 = false, false, false
	shim.SetGPUNumerics(false, true)
}

// StreamPool opens and closes the streams of a device of which there are so many, given in turn.
func StreamPool(n int64) (open func() (id int64), close func(id int64)) {
	p, given := &streamPool{}, int64(0)
	return func() int64 {
			return p.open(CUDA(0), func() Stream { given++; return Stream{CUDA(0), 1 + given%n} }).id
		},
		func(id int64) { p.close(Stream{CUDA(0), id}) }
}
