// Package autoremat trains a sequential model under a limit of bytes. It keeps the tensors for
// backward as far as they fit, and recomputes the rest in the least time.
//
//	m, err := autoremat.New(model, autoremat.Config{Limit: 700 << 20, Optimizer: adam})
//	defer m.Close()
//	for ... {
//		c.SetGrad(true)
//		loss := criterion.Forward(n, m.Forward(n, x), y)
//		c.Backward([]*torch.Tensor{loss}, []*torch.Tensor{nil}, false)
//		c.SetGrad(false)
//		adam.Step(c, nn.Params(m))
//		...
//	}
//
// The module is a layer and takes the place of the model, with any loss and any loop. It runs a
// pipe of one stage and one micro-batch with the policy optimal. The first batch measures the
// model's layers and makes a plan. Later batches of the same shapes follow the plan. Outputs,
// gradients, running statistics and dropped elements are bit-equal to the model's alone.
//
// The limit is on every byte that the device's account counts. The plan leaves bytes for gradients,
// the optimizer's state and the loss. The first step assumes that the loss takes four times the
// output, and measures it. [Module.Predicted] is a bound on the peak of a step if nothing else runs
// on the device. A step that cannot stay under the limit fails before it begins, with a
// [plan.MemoryError] that has the least limit.
//
// The model must be an nn.Sequential on a CPU device.
package autoremat
