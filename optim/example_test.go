package optim_test

import (
	"fmt"

	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/torch"
)

// Finds the minimum of (w - 3)² with momentum and a rate that falls.
func Example() {
	c := torch.NewCtx(torch.Options{Grad: true})
	defer c.Close()
	m := &module{}
	w := m.Param("w", nn.Zeros, 1)
	nn.Materialise(c, nn.Params(m), 0)
	defer nn.Free(m)

	opt, err := optim.New("sgd", optim.Config{Momentum: 0.5})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer opt.Close()
	rate, err := optim.NewSchedule("cosine", optim.ScheduleConfig{LR: 0.2, TotalSteps: 60})
	if err != nil {
		fmt.Println(err)
		return
	}
	for step := range 60 {
		opt.SetLR(rate(step))
		mark := c.Mark()
		d := c.Op("aten::add.Scalar", w.Tensor(), -3)
		c.Backward([]*torch.Tensor{c.Mul(d, d)}, []*torch.Tensor{nil}, false)
		opt.Step(c, nn.Params(m))
		nn.ZeroGrads(m)
		c.Release(mark)
	}
	fmt.Printf("%.3f\n", torch.Values[float32](w.Tensor())[0])
	// Output: 3.000
}
