package profile_test

import (
	"context"
	"fmt"
	"log"

	"penstock.example/nn"
	"penstock.example/plan"
	"penstock.example/profile"
	"penstock.example/torch"
)

// Bytes alone are measured, and cut the model into stages of even sizes.
func ExampleMeasure() {
	model := nn.NewSequential(nn.NewLinear(64, 256), nn.NewReLU(), nn.NewLinear(256, 256), nn.NewReLU(),
		nn.NewLinear(256, 10))
	defer nn.Free(model)
	c := torch.NewCtx(torch.Options{Seed: 1}) // owns the sample
	defer c.Close()
	p, err := profile.Measure(context.Background(), model, profile.Config{BytesOnly: true}, c.Randn(32, 64))
	if err != nil {
		log.Fatal(err)
	}
	counts, sizes, err := plan.BySize(p.Layers, 2,
		plan.SizeConfig{Held: []plan.Held{{Graphs: 8}}, Input: p.Input, Skips: p.Skips, Ties: p.Ties})
	if err != nil {
		log.Fatal(err)
	}
	for i, s := range sizes {
		fmt.Printf("stage %d: %d layers, %d bytes of parameters\n", i, counts[i], s.Parameters)
	}
	// Output:
	// stage 0: 3 layers, 329728 bytes of parameters
	// stage 1: 2 layers, 10280 bytes of parameters
}
