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
	var times timed
	for k := range p.Warmup + max(p.Repeats, 1) {
		if err := p.ctx.Err(); err != nil {
			return err
		}
		tmp, took := p.lossOnce()
		chain.Loss.Tmp = tmp
		if k >= p.Warmup && !p.BytesOnly {
			times = append(times, took)
		}
	}
	chain.Loss.Backward = 1e6 * times.typical().Seconds()
	chain.Later.Loss = chain.Loss
	return nil
}

// lossOnce runs the loss and its backward. tmp is the most bytes beside those before and the gradients of the output.
func (p *prober) lossOnce() (tmp int64, took time.Duration) {
	c := p.c
	mark := c.Mark()
	defer c.Release(mark)
	defer c.SetGrad(c.SetGrad(true))
	before := p.Device.Memory().Live
	p.Device.ResetPeak()
	start := p.now()
	boxes, xs := make([]*torch.Tensor, len(p.xs)), slices.Clone(p.xs)
	for i, x := range p.xs {
		if x.DType().IsFloat() {
			boxes[i] = c.Mailbox()
			xs[i] = c.Gate(boxes[i], x)
		}
	}
	n := nn.NewCtx(c, nn.Config{Training: true, Seed: p.Seed, Extras: p.Extras, Loss: p.Loss, Targets: p.Targets})
	ys := n.RunNamed(nn.LossLayer(), xs)
	if ys[0].RequiresGrad() {
		c.Backward(ys, []*torch.Tensor{nil}, false)
	}
	took = p.now() - start
	var grads []*torch.Tensor
	for _, box := range boxes {
		if box != nil {
			grads = append(grads, c.GradOf(box))
		}
	}
	return p.Device.Memory().Peak - before - sizeOf(grads), took
}
