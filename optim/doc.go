// Package optim updates parameters: SGD, Adam, AdamW and RMSprop with PyTorch 1.13's formulas,
// learning-rate schedules, and clipping of gradients by their global norm. It does not own the
// loop, nor the gradients it reads.
//
// A model that is cut over several devices is updated one part at a time, each part by the worker
// that holds it:
//
//	opt, err := optim.New("adamw", optim.Config{LR: 3e-4, WeightDecay: 0.1})
//	...
//	defer opt.Close()
//	for step := range steps {
//		opt.SetLR(schedule(step))
//		// forward and backward
//		for _, stage := range stages { // concurrently, if one likes
//			opt.Step(stage.ctx, stage.params)
//		}
//	}
//
// The result does not depend on the cut. Every update is element by element, and a parameter's
// state has the parameter's name; the global norm is summed in an order that names give. So the
// bits are the same for one part or many, on one thread or many.
package optim
