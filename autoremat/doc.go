// Package autoremat trains a sequential model under a limit of bytes. It keeps as much of what
// backward needs as fits, and recomputes the rest in the least time (package remat/solver).
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
// The module is a layer: it goes wherever the model could, with any loss and any loop. The first
// batch measures the model's layers and solves for a plan. Later batches of the same shapes follow
// that plan. Outputs, gradients, running statistics and dropped elements are those of the model
// alone, to the bit.
//
// # The limit
//
// The limit is on every byte that the device's account counts: parameters, gradients, the
// optimizer's state, buffers, activations, workspaces, the batch, and whatever else is live.
//
//   - What others hold when Forward begins is read from the account.
//   - Bytes that are sure to come are reserved: gradients, the optimizer's state, and what its
//     update needs.
//   - What is live between Forward and backward is measured: the loss, and what the caller keeps.
//
// So [Module.Predicted] is the peak of a step, to the byte. A step that cannot stay under the limit
// fails before it begins, with a [planner.MemoryError] that says which limit would do. While the module is
// open its limit is the account's, and applies to everything that allocates there.
//
// The prediction assumes that nothing else runs on the device meanwhile. It also assumes that the
// caller holds the input and the output until backward returns, and holds until the update what was
// live at backward. Measuring is not part of a step. It keeps the limit where a unit by itself has
// room in it. Otherwise it goes without, as only a measurement tells the least limit, and holds no more
// than a unit takes with what is measured of it. It leaves the account's peak as it was.
//
// The model must be an nn.Sequential on a CPU device. The package does not offload, does not cut a
// layer into parts ([Atomic] does the opposite), and does not recompute the loss.
package autoremat
