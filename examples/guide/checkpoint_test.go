package guide_test

import (
	"fmt"
	"os"

	"penstock.example/data"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/pipe"
	"penstock.example/train"
)

func Example_checkpoint() {
	dir, err := os.MkdirTemp("", "guide")
	check(err)
	defer os.RemoveAll(dir)
	whole, testing, err := data.Synthetic{Train: 256, Height: 8, Width: 8}.Open()
	check(err)
	set, held, err := data.Split(whole, 0.25, 7)
	check(err)
	from := func(start data.Position) *data.Loader {
		l, err := data.NewLoader(set, data.LoaderConfig{BatchSize: 32, Seed: 7, Shuffle: true, Start: start})
		check(err)
		return l
	}
	images := func() *nn.Sequential {
		return nn.NewSequential(nn.NewFlatten(1, -1), nn.NewLinear(64, 32), nn.NewReLU(), nn.NewLinear(32, 10))
	}
	recipe := train.Recipe{Model: train.Choice{Name: "images"}, Batch: 32, Seed: 7}
	sgd, err := optim.SGD(optim.Config{LR: 0.1, Momentum: 0.9})
	check(err)
	model, loader := images(), from(data.Position{})
	p, err := pipe.New(model, pipe.Config{Balance: []int{2, 2}, Seed: 7})
	check(err)

	store := train.Store{Dir: dir, Keep: 1} // the newest, and the best
	unlock, err := store.Lock()             // makes the directory, for this run alone
	check(err)
	defer unlock()
	loop := train.Loop{Pipe: p, Optimizer: sgd, Loss: nn.CrossEntropy(), Loader: loader, Epochs: 20}
	loop.Validation = &train.Validation{Set: held, Patience: 3}
	loop.OnEpoch = func(int) error {
		_, err := store.Save(loop.Progress(), recipe, model, sgd)
		return err
	}
	_, err = loop.Run(ctx)
	check(err)
	loader.Close()
	check(p.Close())
	sgd.Close()
	nn.Free(model)

	model = images()
	sgd, err = optim.SGD(optim.Config{LR: 0.1, Momentum: 0.9})
	check(err)
	saved, err := store.Latest() // verifies every byte
	check(err)
	check(saved.Check(recipe, model))
	p, err = pipe.New(model, pipe.Config{Balance: []int{3, 1}, Seed: 7})
	check(err)
	check(saved.Restore(p, sgd))
	loader = from(saved.Position)
	loop = train.Loop{Pipe: p, Optimizer: sgd, Loss: nn.CrossEntropy(), Loader: loader, Step: saved.Step, Steps: 150}
	_, err = loop.Run(ctx)
	check(err)

	best, err := train.OpenCheckpoint(store.Path(saved.Best.Step))
	check(err)
	check(best.RestoreModel(p)) // the weights alone
	e, err := train.Evaluate(ctx, p, testing, train.EvaluateConfig{Batch: 64, Loss: nn.CrossEntropy()})
	check(err)
	fmt.Println("right in more than 9 of 10:", *e.Accuracy > 0.9)
	loader.Close()
	check(p.Close())
	sgd.Close()
	nn.Free(model)
	// Output:
	// right in more than 9 of 10: true
}
