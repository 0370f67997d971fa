package nn

import "penstock/torch"

// Deferred gathers the statistics of a mini-batch over its micro-batches, so that the running statistics of every BatchNorm move once for each mini-batch, by the mean and the
// unbiased variance of all its rows, as they would without micro-batches (deferred batch normalisation: Huang et al. 2019, "GPipe", section 2.3). What the layers compute does not
// change: a micro-batch is still normalised by itself. It is a mode of the run: models are not converted, and nothing is added to their state.
//
// Give one to the nn.Config of every micro-batch of a mini-batch, in order, then Commit. It belongs to one goroutine at a time.
type Deferred struct {
	layers []*BatchNorm
	of     map[*BatchNorm]*moments
}

// moments are those of the rows seen so far, float64 [channels], kept.
type moments struct {
	count     float64       // values for each channel
	mean, sum *torch.Tensor // sum is of the squared distances from the mean
}

// NewDeferred makes an empty one.
func NewDeferred() *Deferred { return &Deferred{of: map[*BatchNorm]*moments{}} }

// observe adds a micro-batch [N, channels, ...]: the pairwise update of Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979.
func (d *Deferred) observe(c *Ctx, b *BatchNorm, x *torch.Tensor) {
	c.NoGrad(func() {
		mark := c.Mark()
		defer func() { c.Release(mark) }()
		channels := x.Size(1)
		count := float64(x.Numel() / channels)
		rows := c.Reshape(c.Transpose(x, 0, 1), channels, -1)
		variance, mean := c.VarMean(c.To(rows, torch.Float64), 1)
		sum := c.MulScalar(variance, count)
		m := d.of[b]
		if m == nil {
			d.layers = append(d.layers, b)
			d.of[b] = &moments{count, c.Keep(mean), c.Keep(sum)}
			return
		}
		total := m.count + count
		delta := c.Sub(mean, m.mean)
		c.Add_(m.mean, delta, count/total)
		c.Add_(m.sum, sum, 1)
		c.Add_(m.sum, c.Mul(delta, delta), m.count*count/total)
		m.count = total
	})
}

// Commit moves the running statistics of all layers that were run, and forgets what was gathered.
func (d *Deferred) Commit(c *Ctx) {
	c.NoGrad(func() {
		mark := c.Mark()
		for _, b := range d.layers {
			m := d.of[b]
			share := b.track(c)
			b.RunningMean.move(c, m.mean, share)
			b.RunningVar.move(c, c.MulScalar(m.sum, 1/(m.count-1)), share)
			c.Release(mark)
		}
	})
	d.Free()
}

// move makes p (1-share) p + share value.
func (p *Param) move(c *Ctx, value *torch.Tensor, share float64) {
	c.MulScalar_(p.Tensor(), 1-share)
	c.Add_(p.Tensor(), c.To(value, p.DType()), share)
}

// Free forgets what was gathered.
func (d *Deferred) Free() {
	for _, m := range d.of {
		m.mean.Free()
		m.sum.Free()
	}
	d.layers = nil
	clear(d.of)
}
