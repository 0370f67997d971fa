// Package optim updates parameters: SGD, Adam, AdamW and RMSprop with PyTorch 1.13's formulas,
// learning-rate schedules, and clipping of gradients by their global norm. Gradients stay the caller's.
//
// If a model is cut over several devices, each part is updated by its worker:
//
//	opt, err := optim.New("adamw", optim.Config{LR: 3e-4, WeightDecay: 0.1})
//	...
//	defer opt.Close()
//	for step := range steps {
//		opt.SetLR(schedule(step))
//		// forward and backward
//		for _, stage := range stages { // may run concurrently
//			opt.Step(stage.ctx, stage.params)
//		}
//	}
//
// The bits of the result depend neither on the cut nor on the number of threads. Updates are element by
// element, and the global norm is summed in the order of names.
package optim
