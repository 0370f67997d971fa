package remat

import "slices"

// Part returns the chain of the layers from first up to but not including last, as a stage of a pipeline
// has it: with its own input and its output's gradient. The loss belongs to the last layer. first must
// be less than last.
func (c Chain) Part(first, last int) Chain {
	out := Chain{Layers: slices.Clone(c.Layers[first:last]), Input: c.inputAt(first),
		InputGradient: c.madeGradient(first)}
	if last == len(c.Layers) {
		out.Loss = c.Loss
	}
	out.Layers[last-first-1].Gradient = c.gradientAt(last)
	part := func(carries []Carry) (list []Carry) {
		for _, k := range carries {
			if from, to := max(k.From, first-1), min(k.To, last); from < to {
				list = append(list, Carry{From: from - first, To: to - first, Bytes: k.Bytes})
			}
		}
		return list
	}
	if c.Deferred != nil {
		out.Deferred = slices.Clone(c.Deferred[first:last])
	}
	out.Carries, out.GradientCarries = part(c.Carries), part(c.GradientCarries)
	return out
}

// inputAt is the bytes of x(i).
func (c Chain) inputAt(i int) int64 {
	bytes := c.made(i - 1)
	for _, k := range c.Carries {
		if k.From+1 < i && i <= k.To {
			bytes += k.Bytes
		}
	}
	return bytes
}
