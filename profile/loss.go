package profile

import (
	"slices"
	"time"

	"penstock/nn"
	"penstock/torch"
)

// lossOp measures the loss behind the last layer, forward and backward at once.
func (p *prober) lossOp(chain *Chain) error {
	defer p.c.Close()
	var took []float64
	for k := range p.Warmup + max(p.Repeats, 1) {
		if err := p.ctx.Err(); err != nil {
			return err
		}
		tmp, seconds := p.lossOnce()
		chain.Loss.Tmp = tmp
		if k >= p.Warmup && !p.BytesOnly {
			took = append(took, seconds)
		}
	}
	if len(took) > 0 {
		slices.Sort(took)
		chain.Loss.Backward = 1e6 * took[len(took)/2]
	}
	chain.Later.Loss = chain.Loss
	return nil
}

// lossOnce runs the loss and its backward. tmp is the most bytes beside those before and the gradients of the output.
func (p *prober) lossOnce() (tmp int64, seconds float64) {
	c := p.c
	mark := c.Mark()
	defer c.Release(mark)
	defer c.SetGrad(c.SetGrad(true))
	before := p.Device.Memory().Live
	p.Device.ResetPeak()
	start := time.Now()
	boxes, xs := make([]*torch.Tensor, len(p.xs)), slices.Clone(p.xs)
	for i, x := range p.xs {
		if x.DType().IsFloat() {
			boxes[i] = c.Mailbox()
			xs[i] = c.Gate(boxes[i], x)
		}
	}
	n := nn.NewCtx(c, nn.Config{Training: true, Seed: p.Seed, Extras: p.Extras})
	ys := n.RunNamed(nn.LossLayer(p.Loss, p.Targets), xs)
	if ys[0].RequiresGrad() {
		c.Backward(ys, []*torch.Tensor{nil}, false)
	}
	seconds = time.Since(start).Seconds()
	made, seen := int64(0), []uintptr(nil)
	for _, box := range boxes {
		if box == nil {
			continue
		}
		if g := c.GradOf(box); g != nil {
			if id, bytes := g.Storage(); !slices.Contains(seen, id) {
				seen, made = append(seen, id), made+bytes
			}
		}
	}
	return p.Device.Memory().Peak - before - made, seconds
}
