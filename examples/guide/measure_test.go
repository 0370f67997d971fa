package guide_test

import (
	"fmt"

	"penstock.example/balance"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/planner"
	"penstock.example/profile"
	"penstock.example/torch"
)

func Example_byTime() {
	model := classifier()
	defer nn.Free(model)
	c := torch.NewCtx(torch.Options{Seed: 1})
	defer c.Close()
	sample, _ := batch(c, 32) // the rows of a micro-batch

	measured, err := profile.Measure(ctx, model, profile.Config{}, sample)
	check(err)
	counts, times, err := balance.ByTime(measured.Layers, 2, balance.TimeConfig{
		Recomputed:     []float64{planner.ExceptLast.Recomputed(8)}, // of 8 micro-batches, on every stage
		SecondsPerByte: measured.SecondsPerByte,
		Skips:          measured.Skips,
	})
	check(err)
	p, err := pipe.New(model, pipe.Config{Balance: counts, Chunks: 8})
	check(err)
	defer p.Close()
	fmt.Println(len(times), "stages of", p.Len(), "layers")
	// Output:
	// 2 stages of 5 layers
}

func Example_bySize() {
	model := classifier()
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	sample, _ := batch(c, 32)

	measured, err := profile.Measure(ctx, model, profile.Config{BytesOnly: true}, sample)
	check(err)
	counts, sizes, err := balance.BySize(measured.Layers, 2, balance.SizeConfig{
		Held:  []balance.Held{{Graphs: 1, Inputs: 7}}, // of 8 micro-batches, on every stage; with the policy never {Graphs: 8}
		State: 2,                                      // Adam
		Input: measured.Input, Skips: measured.Skips, Ties: measured.Ties,
	})
	check(err)
	for i, s := range sizes {
		fmt.Printf("stage %d: %d layers, %d bytes of parameters and state\n", i, counts[i], s.Parameters+s.Gradients+s.State)
	}
	// Output:
	// stage 0: 2 layers, 266240 bytes of parameters and state
	// stage 1: 3 layers, 1093792 bytes of parameters and state
}
