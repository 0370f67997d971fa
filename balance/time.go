package balance

import (
	"cmp"
	"fmt"

	"penstock.example/internal/arg"
)

// TimeConfig says what a stage's time is made of. The zero value is no recomputation, and transfers
// that take no time.
type TimeConfig struct {
	// Recomputed is the share of micro-batches, 0 to 1, that are recomputed, and so run forward
	// twice: by stage, or one for all. None is 0.
	Recomputed []float64
	// SecondsPerByte is the time of a transfer between two stages.
	SecondsPerByte float64
	// Skips are the model's skip connections, Ties its shared parameters.
	Skips []Skip
	Ties  []Tie
}

// StageTime is how long a stage's worker is busy with one micro-batch, in seconds.
type StageTime struct {
	Forward, Backward float64
	Recomputation     float64 // Forward times the share of micro-batches that are recomputed
	Activations       float64 // receiving the stage's input and the skips that it pops
	Gradients         float64 // receiving the gradients of its output and of its skips
}

// Total returns the stage's cost, in seconds.
func (t StageTime) Total() float64 {
	return t.Forward + t.Backward + t.Recomputation + t.Activations + t.Gradients
}

// ByTime returns how many layers each of n stages takes so that the slowest stage is fastest, and
// what each stage takes for a micro-batch. It is exact, with the order of [Partition] among equals.
// What crosses a border counts: a transfer is the receiving stage's work. A stage receives
//
//   - the activation before it, and once each skip from an earlier stage that one of its layers
//     pops,
//   - the gradient of its output, the gradient of each of its skips from every later stage that
//     pops it, and that of each parameter that it shares with a later stage, from the next stage
//     that uses it.
//
// Times are rounded as Partition's costs are, with the number of terms (layers, borders, skips) in
// place of the number of layers.
//
// It returns an error where Partition does, and for a skip that does not go forward within the
// model. For L layers, and w layers in the longest stage that could be as cheap as the answer, it
// takes O(n·L·w) time at worst, and O(n·L) memory. Skips that are popped more than once add to it:
// how often a gradient comes back depends on every later cut, so partitions that differ in it are
// kept apart.
//
// The values of shared parameters cross once for each batch, not for each micro-batch, and do not
// count.
func ByTime(layers []Layer, n int, config TimeConfig) ([]int, []StageTime, error) {
	if err := config.check(layers, n); err != nil {
		return nil, nil, err
	}
	shares, of := byStage(config.Recomputed)
	p := problem{of: of, skips: config.routes()}
	for _, share := range shares {
		p.terms = append(p.terms, config.terms(layers, share))
	}
	counts, err := p.solve(n)
	if err != nil {
		return nil, nil, err
	}
	times, err := Times(layers, counts, config)
	return counts, times, err
}

// terms returns the terms of a stage that recomputes a share of its micro-batches.
func (c TimeConfig) terms(layers []Layer, share float64) terms {
	t := newTerms(len(layers))
	for i, l := range layers {
		t.layer[i] = l.Forward + l.Backward + share*l.Forward
		if i+1 < len(layers) {
			t.enter[i+1] = c.SecondsPerByte * float64(l.Output)
			t.leave[i] = c.SecondsPerByte * float64(l.Gradient)
		}
	}
	for _, s := range c.Skips {
		t.skips = append(t.skips, skipTerms{in: c.SecondsPerByte * float64(s.Bytes), out: c.SecondsPerByte * float64(s.Gradient)})
	}
	for _, tie := range c.Ties {
		for range tie.To {
			t.skips = append(t.skips, skipTerms{out: c.SecondsPerByte * float64(tie.Gradient)})
		}
	}
	return t
}

// routes returns the routes in the order of the terms. A tie's gradient goes from each use to the
// one before, and crosses a border where these two are on different stages.
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

// Times returns what each stage of a balance takes for a micro-batch; see [ByTime]. It returns an
// error if the counts do not add up to the layers, or where ByTime would.
func Times(layers []Layer, counts []int, config TimeConfig) ([]StageTime, error) {
	if err := arg.Balance("balance", counts, len(layers)); err != nil {
		return nil, err
	}
	if err := config.check(layers, len(counts)); err != nil {
		return nil, err
	}
	times := make([]StageTime, len(counts))
	start := 0
	for stage, count := range counts {
		t, end := &times[stage], start+count
		for _, l := range layers[start:end] {
			t.Forward += l.Forward
			t.Backward += l.Backward
		}
		t.Recomputation = setting(config.Recomputed, stage) * t.Forward
		var in, out float64 // bytes
		if start > 0 {
			in = float64(layers[start-1].Output)
		}
		if end < len(layers) {
			out = float64(layers[end-1].Gradient)
		}
		for _, s := range config.Skips {
			enters, leaves := crosses(s.From, s.To, counts, start, end)
			if enters {
				in += float64(s.Bytes)
			}
			out += float64(s.Gradient) * float64(leaves)
		}
		for _, t := range config.Ties {
			if t.lastsBeyond(start, end) {
				out += float64(t.Gradient)
			}
		}
		t.Activations, t.Gradients = config.SecondsPerByte*in, config.SecondsPerByte*out
		start = end
	}
	return times, nil
}

func (c TimeConfig) check(layers []Layer, n int) error {
	for i, share := range c.Recomputed {
		if !(share >= 0 && share <= 1) {
			return &ConfigError{Of: "balance", Field: "Recomputed", Value: c.Recomputed,
				Problem: fmt.Sprintf("stage %d has %v", i, share), Remedy: "want shares of the micro-batches, 0 to 1"}
		}
	}
	return cmp.Or(arg.Finite("balance", "SecondsPerByte", c.SecondsPerByte), check(layers, n),
		checkSettings("Recomputed", c.Recomputed, n), checkSkips(c.Skips, len(layers)), checkTies(c.Ties, len(layers)))
}
