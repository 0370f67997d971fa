package optim_test

import (
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/torch"
)

// What an update needs is what the account sees, of parameters that do not exist yet as well; the
// state that is there already is not needed again.
func TestNeed(t *testing.T) {
	for _, row := range rules {
		for double := range 3 { // parameters of float64
			c := torchtest.New(t, torch.Options{Threads: 1})
			o := newOptimizer(t, row.name, row.config)
			model := nn.NewLinear(300, 200)
			params := nn.Params(model)
			nn.Convert(c, params[:double], torch.Float64)
			before := o.Need(params)
			nn.Materialise(c, params, 1)
			if n := o.Need(params); n != before {
				t.Errorf("%s: %+v when parameters exist, %+v before", row.title, n, before)
			}
			for _, p := range params {
				c.NoGrad(func() { p.Tensor().SetGradOf(c.OnesLike(p.Tensor())) })
			}
			for _, part := range [][]nn.NamedParam{params[1:], params, params[:1]} {
				need, norm := o.Need(part), optim.NormNeed(c.Device(), part)
				if got := most(c, func() { optim.SquaredNorms(c, part) }); got != norm {
					t.Errorf("%s, %d of float64: squared norms take %d bytes, and were to need %d", row.title, double, got, norm)
				}
				live := c.Device().Memory().Live
				if got := most(c, func() { o.Step(c, part) }); got != need.State+need.Scratch {
					t.Errorf("%s, %d of float64: a step takes %d bytes, and was to need %+v", row.title, double, got, need)
				}
				if got := c.Device().Memory().Live - live; got != need.State {
					t.Errorf("%s, %d of float64: a step leaves %d bytes, and was to leave %+v", row.title, double, got, need)
				}
			}
			nn.Free(model)
		}
	}
}

// most is the bytes that f takes at most, beside what is live.
func most(c *torch.Ctx, f func()) int64 {
	before := c.Device().Memory().Live
	c.Device().ResetPeak()
	f()
	return c.Device().Memory().Peak - before
}
