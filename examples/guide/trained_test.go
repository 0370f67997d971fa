package guide_test

import (
	"fmt"
	"os"
	"path/filepath"

	"penstock.example/data"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/pipe"
	"penstock.example/train"
)

func Example_afterTraining() {
	dir, err := os.MkdirTemp("", "guide")
	check(err)
	defer os.RemoveAll(dir)
	whole, testing, err := data.Synthetic{Train: 256, Height: 8, Width: 8}.Open()
	check(err)
	set, held, err := data.Split(whole, 0.25, 7)
	check(err)
	loader, err := data.NewLoader(set, data.LoaderConfig{BatchSize: 32, Seed: 7, Shuffle: true})
	check(err)
	model, store := images(), train.Store{Dir: dir, Keep: 1}
	p, err := pipe.New(model, pipe.Config{Balance: []int{2, 2}, Seed: 7})
	check(err)
	sgd, err := optim.SGD(optim.Config{LR: 0.1, Momentum: 0.9})
	check(err)
	info := set.Info()
	recipe := train.Recipe{Model: train.Choice{Name: "images"}, Batch: 32, Samples: &info}

	loop := train.Loop{Pipe: p, Optimizer: sgd, Loss: nn.CrossEntropy(), Loader: loader, Epochs: 20}
	loop.Validation = &train.Validation{Set: held, Patience: 3} // after each epoch
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

	newest, err := store.Latest()
	check(err)
	best, err := train.OpenCheckpoint(store.Path(newest.Best.Step)) // which Store has kept
	check(err)
	model = images()
	p, err = pipe.New(model, pipe.Config{Balance: []int{3, 1}}) // any cut, and no optimizer
	check(err)
	check(best.RestoreModel(p))
	e, err := train.Evaluate(ctx, p, testing, train.EvaluateConfig{Batch: 64, Loss: nn.CrossEntropy()})
	check(err)
	fmt.Println("right in more than 9 of 10:", *e.Accuracy > 0.9)

	file := filepath.Join(dir, "x.npy")
	check(os.WriteFile(file, blackNPY(8, 8), 0o666))
	inputs, err := data.NewInputs(*best.Recipe.Samples, nil, []string{file}) // made as the samples were
	check(err)
	err = train.Predict(ctx, p, inputs, train.EvaluateConfig{Batch: 64}, func(i int, probabilities []float32) error {
		path, _ := inputs.Source(i)
		fmt.Println(filepath.Base(path), "has", len(train.Likely(probabilities, 3)), "most likely classes of", len(probabilities))
		return nil
	})
	check(err)
	check(p.Close())
	nn.Free(model)

	// Output:
	// right in more than 9 of 10: true
	// x.npy has 3 most likely classes of 10
}

// blackNPY is a file of NumPy with a black image.
func blackNPY(height, width int) []byte {
	header := fmt.Sprintf("{'descr': '<f4', 'fortran_order': False, 'shape': (1, %d, %d), }", height, width)
	text := fmt.Sprintf("\x93NUMPY\x01\x00\x76\x00%-117s\n", header)
	return append([]byte(text), make([]byte, 4*height*width)...)
}
