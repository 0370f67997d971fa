package guide_test

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"penstock.example/data"
	"penstock.example/metrics"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/pipe"
	"penstock.example/train"
)

// images is a classifier of images of 8 by 8.
func images() *nn.Sequential {
	return nn.NewSequential(nn.NewFlatten(1, -1), nn.NewLinear(64, 32), nn.NewReLU(), nn.NewLinear(32, 10))
}

func Example_checkpoint() {
	dir, err := os.MkdirTemp("", "guide")
	check(err)
	defer os.RemoveAll(dir)
	set, _, err := data.Synthetic{Train: 256, Height: 8, Width: 8}.Open()
	check(err)
	loader := func(start data.Position) *data.Loader {
		l, err := data.NewLoader(set, data.LoaderConfig{BatchSize: 32, Seed: 7, Shuffle: true, Start: start})
		check(err)
		return l
	}
	recipe := train.Recipe{
		Model: train.Choice{Name: "images"}, Data: train.Choice{Name: "synthetic"}, Batch: 32, Chunks: 1, Seed: 7,
		Optimizer: train.Choice{Name: "sgd", Settings: optim.Config{LR: 0.1, Momentum: 0.9}}, LRSchedule: train.Choice{Name: "constant"},
	}

	model := images()
	p, err := pipe.New(model, pipe.Config{Balance: []int{2, 2}, Seed: 7})
	check(err)
	sgd, err := optim.SGD(optim.Config{LR: 0.1, Momentum: 0.9})
	check(err)
	loop := train.Loop{Pipe: p, Optimizer: sgd, Loss: nn.CrossEntropy(), Loader: loader(data.Position{}), Steps: 3}
	log, err := metrics.Open(filepath.Join(dir, metrics.FileName), loop.Step)
	check(err)
	loop.OnStep = append(loop.OnStep, func(s train.StepInfo) error {
		return log.Step(metrics.Step{Step: s.Step, Time: metrics.Seconds(time.Now()), Loss: s.Loss, LR: s.LR, PeakBytes: s.Peak})
	})
	_, err = loop.Run(ctx)
	check(err)
	check(log.Sync()) // before a checkpoint, so that no line is missing after it
	check(log.Close())

	store := train.Store{Dir: dir}
	check(store.Prepare()) // before the first step: can it be written to at all?
	path, err := store.Save(loop.Progress(), recipe, model, loop.Optimizer)
	check(err)
	fmt.Println(filepath.Base(path))
	loop.Loader.Close()
	check(p.Close())
	sgd.Close()
	nn.Free(model)

	again := images()
	sgd, err = optim.SGD(optim.Config{LR: 0.1, Momentum: 0.9})
	check(err)
	saved, err := store.Latest() // every byte of it is as it was written
	check(err)
	check(saved.Check(recipe, again))
	p, err = pipe.New(again, pipe.Config{Balance: []int{3, 1}, Seed: 7}) // another cut
	check(err)
	check(saved.Restore(p, sgd))
	loop = train.Loop{Pipe: p, Optimizer: sgd, Loss: nn.CrossEntropy(), Loader: loader(saved.Position), Step: saved.Step, Steps: 5}
	result, err := loop.Run(ctx)
	check(err)
	fmt.Println("from step", saved.Step, "to", result.Step)
	loop.Loader.Close()
	check(p.Close())
	sgd.Close()
	nn.Free(again)
	// Output:
	// step-000003
	// from step 3 to 5
}
