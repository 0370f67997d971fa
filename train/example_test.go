package train_test

import (
	"context"
	"fmt"
	"log"

	"penstock.example/data"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/pipe"
	"penstock.example/train"
)

// A pipe trains on a data set of one's own for a hundred epochs, with a line after some steps.
func ExampleLoop() {
	// exclusive or
	set, err := data.FromSlices([]float32{0, 0, 0, 1, 1, 0, 1, 1}, []int64{2}, []int{0, 1, 1, 0})
	if err != nil {
		log.Fatal(err)
	}
	loader, err := data.NewLoader(set, data.LoaderConfig{BatchSize: 4, Seed: 1})
	if err != nil {
		log.Fatal(err)
	}
	defer loader.Close()
	model := nn.NewSequential(nn.NewLinear(2, 16), nn.NewTanh(), nn.NewLinear(16, 2))
	defer nn.Free(model)
	p, err := pipe.New(model, pipe.Config{Balance: []int{2, 1}, Chunks: 2, Seed: 1})
	if err != nil {
		log.Fatal(err)
	}
	defer p.Close()
	adam, err := optim.Adam(optim.Config{LR: 0.05})
	if err != nil {
		log.Fatal(err)
	}
	defer adam.Close()
	loop := &train.Loop{Pipe: p, Optimizer: adam, Loss: nn.CrossEntropy(), Loader: loader, Epochs: 100}
	loop.OnStep = []train.Hook{func(s train.StepInfo) error {
		if s.Step%50 == 0 {
			fmt.Println("step", s.Step)
		}
		return nil
	}}
	if _, err := loop.Run(context.Background()); err != nil {
		log.Fatal(err)
	}
	e, err := train.Evaluate(context.Background(), p, set, train.EvaluateConfig{Batch: 4})
	fmt.Println("accuracy", *e.Accuracy, err)
	// Output:
	// step 50
	// step 100
	// accuracy 1 <nil>
}
