package segment_test

import (
	"fmt"
	"log"

	"penstock.example/nn"
	"penstock.example/remat"
	"penstock.example/segment"
	"penstock.example/torch"
)

// Two units of two layers each: the first keeps its input alone, and is run again before its backward.
func Example() {
	model := nn.NewSequential(nn.NewLinear(4, 8), nn.NewTanh(), nn.NewLinear(8, 8), nn.NewTanh())
	defer nn.Free(model)
	c := torch.NewCtx(torch.Options{Seed: 1})
	defer c.Close()
	nn.Materialise(c, nn.State(model), 1)
	layers := model.Layers()
	s, err := segment.New(segment.Config{Layers: layers, Last: len(layers), Units: []int{2, 2}})
	if err != nil {
		log.Fatal(err)
	}
	ops, err := remat.ParseOps("K0 S1 L B1 S0 B0")
	if err != nil {
		log.Fatal(err)
	}
	var e segment.Execution
	defer e.Free()
	e.Begin(s, func(c *torch.Ctx, run segment.Run) *nn.Ctx {
		return nn.NewCtx(c, nn.Config{Training: true, Checkpointing: run.More, Recomputing: run.Again, Spans: run.Graph, Skips: run.Skips})
	})
	e.Send(0, segment.Arrival{Tensors: []*torch.Tensor{c.Keep(c.Randn(3, 4))}})
	for _, op := range ops {
		if op.Kind == remat.LossStep { // here the output's sum
			output, _, _ := e.Output()
			e.GiveGrads(s.Units(), []*torch.Tensor{c.Keep(c.OnesLike(output[0]))}, nil)
			continue
		}
		e.Do(c, op)
	}
	for _, p := range nn.Params(model) {
		fmt.Println(p.Name, c.GradOf(p.Tensor()) != nil)
	}
	// Output:
	// 0.weight true
	// 0.bias true
	// 2.weight true
	// 2.bias true
}
