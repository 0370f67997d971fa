// Package nn has the parts of networks: Module, Param, Sequential, layers, losses and initialisers,
// named and initialised as PyTorch's.
//
// Modules hold no state of a run. Training or evaluation, the micro-batch and whether this is a
// recomputation are facts of the Ctx that is handed to Forward, so one model can be run by several
// goroutines at once. Parameters are declared with their shape when a module is made and allocated
// later, by Materialise, on the device they are to live on: a model can be counted, cut and planned
// without memory for its weights.
//
// A layer of one's own embeds Base, declares its parameters and has a Forward:
//
//	type Scale struct {
//		nn.Base
//		weight *nn.Param
//	}
//
//	func NewScale(n int64) *Scale {
//		s := &Scale{}
//		s.weight = s.Param("weight", nn.Ones, n)
//		return s
//	}
//
//	func (s *Scale) Forward(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.Mul(x, s.weight.Tensor()) }
//
// A layer with layers inside declares each with Child, in its constructor, and runs them with
// Ctx.Run. Run refuses a layer that was not declared.
package nn
