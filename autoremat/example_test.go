package autoremat_test

import (
	"fmt"
	"log"

	"penstock.example/autoremat"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/torch"
)

// A model trains in a loop of its own under a limit of 8 MiB, and takes what was predicted.
func Example() {
	var layers []nn.Layer
	for range 16 {
		layers = append(layers, nn.NewLinear(128, 128), nn.NewTanh())
	}
	model := nn.NewSequential(layers...)
	defer nn.Free(model)
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	nn.Materialise(c, nn.State(model), 1)
	sgd, err := optim.SGD(optim.Config{LR: 0.1})
	if err != nil {
		log.Fatal(err)
	}
	defer sgd.Close()
	m, err := autoremat.New(model, autoremat.Config{Limit: 8 << 20, Optimizer: sgd})
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()
	loss := nn.MSE()
	for step := range 3 {
		mark := c.Mark()
		torch.CPU(0).ResetPeak()
		x := c.Ones(torch.Float32, 512, 128)
		n := nn.NewCtx(c, nn.Config{Training: true, Seed: uint64(step)})
		c.SetGrad(true)
		l := loss.Forward(n, m.Forward(n, x), x)
		c.Backward([]*torch.Tensor{l}, []*torch.Tensor{nil}, false)
		c.SetGrad(false)
		sgd.Step(c, nn.Params(model))
		nn.ZeroGrads(model)
		if step > 0 { // the first step measures
			fmt.Println("as predicted:", torch.CPU(0).Memory().Peak <= m.Predicted(), "within the limit:",
				m.Predicted() <= 8<<20)
		}
		c.Release(mark)
	}
	// Output:
	// as predicted: true within the limit: true
	// as predicted: true within the limit: true
}
