package plan

import (
	"cmp"
)

// TimeConfig says how a stage's time adds up. The zero value is no recomputation, and transfers
// that take no time.
type TimeConfig struct {
	// Recomputed is the share of micro-batches, 0 to 1, that are recomputed, and so run forward
	// twice: by stage, or one for all. None is 0.
	Recomputed []float64
	// SecondsPerByte is the time of a transfer between two stages.
	SecondsPerByte float64
	// Skips are the model's skip connections, Ties its shared parameters.
	Skips []LayerSkip
	Ties  []LayerTie
}

// StageTime is how long a stage's worker is busy with one micro-batch, in seconds.
type StageTime struct {
	Forward, Backward float64
	Recomputation     float64 // Forward times the share of micro-batches that are recomputed
	Activations       float64 // receiving the stage's input and the skips that it pops
	Gradients         float64 // receiving its output's, and sending those of the skips that it pops
}

// Total returns the stage's cost, in seconds.
func (t StageTime) Total() float64 {
	return t.Forward + t.Backward + t.Recomputation + t.Activations + t.Gradients
}

// ByTime returns how many layers each of n stages takes so that the slowest stage is fastest, and
// the time of each stage for a micro-batch. It is exact, with the order of [Partition] among equals.
// Transfers count:
//
//   - a stage receives the activation before it, the gradient of its output, and once each skip from
//     an earlier stage that one of its layers pops,
//   - it sends the gradient of each such skip back,
//   - it receives the gradient of each parameter that it shares with a later stage, from the next
//     stage that uses it.
//
// Times are rounded as Partition's costs are, with the number of terms (layers, boundaries, skips)
// in place of the number of layers.
//
// It returns an error where Partition does, and for a skip that does not go forward within the
// model. For L layers, and w layers in the longest stage that could be as cheap as the answer, it
// takes O(n·L·w) time at worst, and O(n·L) memory.
//
// The values of shared parameters cross once for each batch, not for each micro-batch, and do not
// count.
func ByTime(layers []Layer, n int, config TimeConfig) ([]int, []StageTime, error) {
	if err := config.check(layers, n); err != nil {
		return nil, nil, err
	}
	shares, of := distinctSettings(config.Recomputed)
	p := cutProblem{of: of, skips: config.routes()}
	for _, share := range shares {
		p.terms = append(p.terms, config.terms(layers, share))
	}
	counts, costs, err := p.solve(n)
	if err != nil {
		return nil, nil, err
	}
	times := make([]StageTime, n)
	for s, c := range costs {
		times[s] = StageTime{c[0], c[1], c[2], c[3], c[4]}
	}
	return counts, times, nil
}

// terms returns the terms of a stage that recomputes a share of its micro-batches.
func (c TimeConfig) terms(layers []Layer, share float64) stageTerms {
	t := newTerms(len(layers))
	for i, l := range layers {
		t.layer[i] = amounts{l.Forward, l.Backward, share * l.Forward}
		if i+1 < len(layers) {
			t.enter[i+1] = amounts{3: c.SecondsPerByte * float64(l.Output)}
			t.leave[i] = amounts{4: c.SecondsPerByte * float64(l.Gradient)}
		}
	}
	for _, s := range c.Skips {
		in := amounts{3: c.SecondsPerByte * float64(s.Bytes), 4: c.SecondsPerByte * float64(s.Gradient)}
		t.skips = append(t.skips, skipTerms{in: in})
	}
	for _, tie := range c.Ties {
		for range tie.To {
			t.skips = append(t.skips, skipTerms{out: amounts{4: c.SecondsPerByte * float64(tie.Gradient)}})
		}
	}
	return t
}

// routes returns the routes in the order of the terms. A tie's gradient goes from each use to the
// one before, and crosses a boundary where these two are on different stages.
func (c TimeConfig) routes() []route {
	var all []route
	for _, s := range c.Skips {
		all = append(all, route{s.From, s.To})
	}
	for _, t := range c.Ties {
		from := t.From
		for _, to := range t.To {
			all = append(all, route{from, []int{to}})
			from = to
		}
	}
	return all
}

func (c TimeConfig) check(layers []Layer, n int) error {
	return cmp.Or(checkStages(n, len(layers)), checkSettings("Recomputed", c.Recomputed, n))
}
