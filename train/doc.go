// Package train is the loop around a pipe: batches in, updates out, hooks in between, and
// checkpoints from which a run goes on bit for bit.
//
//	loop := &train.Loop{Pipe: p, Optimizer: o, Loss: nn.CrossEntropy(), Loader: loader, Epochs: 3}
//	loop.OnStep = []train.Hook{func(s train.StepInfo) error { fmt.Println(s.Step, s.Loss); return nil }}
//	result, err := loop.Run(ctx)
//
// It does not know how a step is run (pipe), how weights are updated (optim) or where samples come
// from (data), and it prints nothing.
package train
