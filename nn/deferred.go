package nn

import (
	"penstock.example/torch"
)

// Deferred is deferred batch normalisation (Huang et al. 2019, "GPipe", section 2.3). It gathers
// the statistics of the micro-batches, so that the running statistics of every BatchNorm move once
// for each mini-batch, by the mean and the unbiased variance of all rows. Outputs do not change:
// each micro-batch is normalised by itself. Models are not converted and get no new state.
//
// Set one Deferred in the Config of all micro-batches of a mini-batch and run them in order. Then
// call Commit, or Free if the mini-batch failed. A Deferred belongs to one goroutine at a time. The
// zero value is ready.
type Deferred struct {
	layers map[*BatchNorm]*moments
}

// moments has statistics of the rows so far. The tensors are float64 [channels], and kept.
type moments struct {
	count   float64       // of the values of a channel
	mean    *torch.Tensor // of these values
	squares *torch.Tensor // sum of the squared distances from the mean
}

// observe adds a micro-batch [N, channels, ...] by the pairwise update of Chan, Golub and LeVeque,
// "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979. The squared
// distances of a micro-batch are summed within each row and between the rows' means. observe
// allocates a float64 copy of x.
func (d *Deferred) observe(c *Ctx, b *BatchNorm, x *torch.Tensor) {
	channels := x.Size(1)
	if x.Numel() == 0 {
		return
	}
	c.NoGrad(func() {
		mark := c.Mark()
		defer func() { c.Release(mark) }()
		rows := x.Size(0)
		values := x.Numel() / (rows * channels) // in a channel of a row
		variances, means := varMean(c, c.To(c.Reshape(x, rows, channels, values), torch.Float64), 2)
		between, mean := varMean(c, means, 0)
		count := float64(rows * values)
		within := c.Op("aten::sum.dim_IntList", variances, []int64{0})
		squares := c.Add_(c.MulScalar(between, count), within, float64(values))
		m := d.layers[b]
		if m == nil {
			if d.layers == nil {
				d.layers = map[*BatchNorm]*moments{}
			}
			d.layers[b] = &moments{count, c.Keep(mean), c.Keep(squares)}
			return
		}
		total := m.count + count
		delta := c.Sub(mean, m.mean)
		c.Add_(squares, c.Mul(delta, delta), m.count*count/total)
		c.Add_(m.mean, delta, count/total)
		c.Add_(m.squares, squares, 1)
		m.count = total
	})
}

// varMean returns the biased variance and the mean over one dimension.
func varMean(c *Ctx, x *torch.Tensor, dim int64) (variance, mean *torch.Tensor) {
	out := c.Call("aten::var_mean.dim", x, []int64{dim}, false)
	return out[0].(*torch.Tensor), out[1].(*torch.Tensor)
}

// Commit moves the running statistics of all layers that have run, and forgets the gathered
// moments. If memory runs out it moves none.
func (d *Deferred) Commit(c *Ctx) {
	c.NoGrad(func() {
		mark := c.Mark()
		defer func() { c.Release(mark) }()
		var from, to []*torch.Tensor // copied at the end, which needs no memory
		move := func(p *Param, t *torch.Tensor) {
			from, to = append(from, t), append(to, p.Tensor())
		}
		for b, m := range d.layers {
			variance := c.MulScalar(m.squares, 1/(m.count-1))
			move(b.NumBatchesTracked, c.AddInt_(c.Clone(b.NumBatchesTracked.Tensor()), 1))
			move(b.RunningMean, b.RunningMean.movedTowards(c, m.mean, b.o.Momentum))
			move(b.RunningVar, b.RunningVar.movedTowards(c, variance, b.o.Momentum))
		}
		for i := range from {
			c.Copy_(to[i], from[i])
		}
	})
	d.Free()
}

// movedTowards returns (1-share) p + share value.
func (p *Param) movedTowards(c *Ctx, value *torch.Tensor, share float64) *torch.Tensor {
	return c.Add_(c.MulScalar(p.Tensor(), 1-share), c.To(value, p.DType()), share)
}

// Free forgets the gathered moments.
func (d *Deferred) Free() {
	for _, m := range d.layers {
		m.mean.Free()
		m.squares.Free()
	}
	clear(d.layers)
}
