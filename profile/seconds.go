package profile

import (
	"time"

	"penstock/torch"
)

// seconds times the layer, forward and backward: the lower quartile of the timed runs. Gradients of parameters are added up from run to run, as from micro-batch to micro-batch.
func (m *measurement) seconds() (forward, backward float64, err error) {
	defer m.c.SetGrad(m.c.SetGrad(true))
	var there, back timed
	for k := range m.Warmup + m.Repeats {
		if err := m.ctx.Err(); err != nil {
			return 0, 0, err
		}
		f, b := m.once(overwrites(m.layers[m.at]))
		if k >= m.Warmup {
			there, back = append(there, f), append(back, b)
		}
	}
	m.times = append(m.times, there, back)
	return there.typical().Seconds(), back.typical().Seconds(), nil
}

// once is one run forward and backward.
func (m *measurement) once(copied bool) (forward, backward time.Duration) {
	c := m.c
	mark := c.Mark()
	defer func() { c.Release(mark) }()
	out, stashed, forward := m.run(func(f flow) *torch.Tensor {
		x := c.Detach(f.t)
		if f.grad {
			x = c.Gate(c.Mailbox(), x)
		}
		if copied {
			x = c.Clone(x)
		}
		return x
	})
	var roots, grads []*torch.Tensor
	for _, y := range append(out, stashed...) {
		if y != nil && y.RequiresGrad() {
			roots, grads = append(roots, y), append(grads, c.OnesLike(y))
		}
	}
	if len(roots) == 0 {
		return forward, 0
	}
	start := m.now()
	c.Backward(roots, grads, false)
	return forward, m.now() - start
}

// copies are the transfers timed so far.
type copies struct {
	bytes   int64
	seconds float64
}

// transfers times copies of what crosses a border to the other device.
func (m *measurement) transfers(flows []flow) {
	for _, f := range flows {
		if f.bytes == 0 {
			continue
		}
		var times timed
		for k := range m.Warmup + m.Repeats {
			start := m.now()
			m.peer.CopyHere(f.t)
			if took := m.now() - start; k >= m.Warmup {
				times = append(times, took)
			}
			m.peer.Close()
		}
		m.copies.bytes += f.bytes
		m.copies.seconds += times.typical().Seconds()
	}
}

// perByte is the mean over all bytes, so that large transfers, which are the ones that matter, count as they should.
func (c copies) perByte() float64 {
	if c.bytes == 0 {
		return 0
	}
	return c.seconds / float64(c.bytes)
}
