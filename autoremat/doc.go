// Package autoremat trains a sequential model under a limit of bytes: it keeps what fits of what backward needs and computes the rest again, at the least time (package remat/solver).
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
// The module is a layer, to be used wherever the model could be, with any loss and any loop. The first batch measures the model's layers and solves for a plan; later ones of the same shapes follow it.
// Outputs, gradients, running statistics and dropped elements are those of the model alone, to the bit.
//
// # The limit
//
// The limit is for every byte that the device's account counts: parameters, gradients, the optimizer's state, buffers, activations, workspaces, the batch, and whatever else is there. What others
// hold when Forward begins is read from the account; what is known to come, gradients, the optimizer's state and what its update needs, is set aside; what is alive between Forward and backward, the
// loss and what the caller keeps, is measured. So [Module.Predicted] is the peak of a step, to the byte, and a step that cannot stay under the limit fails before it begins, with a [LimitError] that
// says what limit would do. While the module is open the limit is the account's: nothing can exceed it, whoever asks.
//
// The prediction is for one thing at a time on the device, in which the caller holds the input and the output until backward is over, and what is there at backward until the update is over.
// Measuring is not part of a step: it runs unit after unit without the limit, and leaves the account's peak as it was.
//
// It is for models that are an nn.Sequential on a CPU device. It does not offload, does not cut layers into parts ([Atomic] does the opposite), and does not look into the loss.
package autoremat
