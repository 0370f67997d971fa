package nn_test

import (
	"fmt"

	"penstock.example/nn"
	"penstock.example/torch"
)

// Scale multiplies each feature by a learned number.
type Scale struct {
	nn.Base
	weight *nn.Param
}

func NewScale(n int64) *Scale {
	s := &Scale{}
	s.weight = s.Param("weight", nn.Ones, n)
	return s
}

func (s *Scale) Forward(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
	return c.Mul(x, s.weight.Tensor())
}

// A layer of one's own is used as any other.
func Example() {
	model := nn.NewSequential().Add("scale", NewScale(3)).Add("relu", nn.NewReLU())
	for _, p := range nn.Params(model) {
		fmt.Println(p.Name, p.Shape())
	}

	c := torch.NewCtx(torch.Options{Grad: true})
	defer c.Close()
	nn.Materialise(c, nn.State(model), 1)
	defer nn.Free(model)

	y := model.Forward(nn.NewCtx(c, nn.Config{Training: true}), torch.From(c, []float32{-1, 2, 3}, 1, 3))
	c.Backward([]*torch.Tensor{c.Sum(y)}, []*torch.Tensor{nil}, false)
	fmt.Println(torch.Values[float32](y))
	fmt.Println(torch.Values[float32](c.GradOf(nn.Params(model)[0].Tensor())))
	// Output:
	// scale.weight [3]
	// [0 2 3]
	// [0 2 3]
}
