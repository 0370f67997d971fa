package plan_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"penstock.example/plan"
)

// measuredChain draws measured layers and skips. Seconds and bytes are small whole numbers, so that sums
// are exact and ties are common.
func measuredChain(t *rapid.T) ([]plan.Layer, []plan.LayerSkip) {
	largest := rapid.SampledFrom([]int{1, 4, 30}).Draw(t, "largest")
	number := func(what string) int64 { return int64(rapid.IntRange(0, largest).Draw(t, what)) }
	layers := make([]plan.Layer, rapid.IntRange(1, 9).Draw(t, "layers"))
	for i := range layers {
		parameters := number("parameters")
		layers[i] = plan.Layer{
			Forward: float64(2 * number("forward")), Backward: float64(number("backward")),
			Output: number("output"), Gradient: number("gradient"), Saved: number("saved"), Enter: number("enter"),
			Parameters: parameters, Trainable: min(parameters,
				number("trainable")), Buffers: number("buffers"),
		}
	}
	skips := []plan.LayerSkip{}
	if len(layers) > 1 {
		for range rapid.IntRange(0, 4).Draw(t, "skips") {
			from := rapid.IntRange(0, len(layers)-2).Draw(t, "from")
			to := rapid.SliceOfNDistinct(rapid.IntRange(from+1, len(layers)-1), 1, 5, rapid.ID[int]).Draw(t,
				"to")
			slices.Sort(to)
			skips = append(skips, plan.LayerSkip{From: from, To: to, Bytes: number("bytes"),
				Gradient: number("skip gradient"), Enter: number("skip enter"), Leave: number("skip leave")})
		}
	}
	return layers, skips
}

// ties draws uses of shared parameters.
func ties(t *rapid.T, layers int) []plan.LayerTie {
	ties := []plan.LayerTie{}
	if layers > 1 {
		for range rapid.IntRange(0, 3).Draw(t, "ties") {
			from := rapid.IntRange(0, layers-2).Draw(t, "tie from")
			to := rapid.SliceOfNDistinct(rapid.IntRange(from+1, layers-1), 1, 4, rapid.ID[int]).Draw(t,
				"tie to")
			slices.Sort(to)
			ties = append(ties, plan.LayerTie{
				From: from, To: to,
				Bytes: int64(rapid.IntRange(0, 9).Draw(t, "tie bytes")), Gradient: int64(rapid.IntRange(0,
					9).Draw(t, "tie gradient")),
			})
		}
	}
	return ties
}

// drawn is one setting for all stages, or one for each.
func drawn[T any](t *rapid.T, n int, of *rapid.Generator[T]) []T {
	if rapid.Bool().Draw(t, "alike") {
		n = 1
	}
	return rapid.SliceOfN(of, n, n).Draw(t, "settings")
}

// partitions calls visit with every partition, the lexicographically greatest counts first.
func partitions(layers, n int, visit func(counts []int)) {
	var extend func(prefix []int, left int)
	extend = func(prefix []int, left int) {
		more := n - len(prefix)
		switch {
		case more == 0 && left == 0:
			visit(prefix)
		case more > 0:
			for count := left; count >= 1; count-- {
				extend(append(slices.Clip(prefix), count), left-count)
			}
		}
	}
	extend(nil, layers)
}

// best is the first of the partitions with the least bottleneck and, of those, the least sum of
// squares.
func best(layers, n int, costs func(counts []int) []float64) []int {
	var best []int
	var bottleneck, squares float64
	partitions(layers, n, func(counts []int) {
		most, sum := 0.0, 0.0
		for _, cost := range costs(counts) {
			most = max(most, cost)
			sum += cost * cost
		}
		if best == nil || most < bottleneck || most == bottleneck && sum < squares {
			best, bottleneck, squares = counts, most, sum
		}
	})
	return best
}

// stageOf is the stage of each layer.
func stageOf(counts []int) []int {
	var of []int
	for stage, count := range counts {
		of = append(of, slices.Repeat([]int{stage}, count)...)
	}
	return of
}

// destinations lists the stages, other than its own, that a skip goes to.
func destinations(s plan.LayerSkip, of []int) []int {
	var stages []int
	for _, to := range s.To {
		if of[to] != of[s.From] {
			stages = append(stages, of[to])
		}
	}
	return slices.Compact(stages)
}

// times follows every transfer to the stage that pays for it: its receiver, or the sender of a
// skip's gradient.
func times(layers []plan.Layer, counts []int, c plan.TimeConfig) []float64 {
	of, costs := stageOf(counts), make([]float64, len(counts))
	for i, l := range layers {
		costs[of[i]] += (1+perStage(c.Recomputed, of[i]))*l.Forward + l.Backward
		if i+1 < len(layers) && of[i] != of[i+1] {
			costs[of[i+1]] += c.SecondsPerByte * float64(l.Output)
			costs[of[i]] += c.SecondsPerByte * float64(l.Gradient)
		}
	}
	for _, s := range c.Skips {
		for _, stage := range destinations(s, of) {
			costs[stage] += c.SecondsPerByte * float64(s.Bytes+s.Gradient)
		}
	}
	for _, t := range c.Ties {
		users := append([]int{of[t.From]}, destinations(plan.LayerSkip{From: t.From, To: t.To}, of)...)
		for _, stage := range users[:len(users)-1] { // each receives from the next
			costs[stage] += c.SecondsPerByte * float64(t.Gradient)
		}
	}
	return costs
}

// sizes follows every tensor to where it is held.
func sizes(layers []plan.Layer, counts []int, c plan.SizeConfig) []float64 {
	of, costs := stageOf(counts), make([]float64, len(counts))
	graphs := func(stage int) float64 { return float64(perStage(c.Held, stage).Graphs) }
	inputs := func(stage int) float64 { return float64(perStage(c.Held, stage).Inputs) }
	costs[0] = (graphs(0) + inputs(0)) * float64(c.Input)
	for i, l := range layers {
		costs[of[i]] += float64(l.Parameters+l.Trainable+l.Buffers) + c.State*float64(l.Trainable) +
			graphs(of[i])*float64(l.Saved)
		if i == 0 || of[i] != of[i-1] {
			costs[of[i]] += graphs(of[i]) * float64(l.Enter)
		}
		if i+1 < len(layers) && of[i] != of[i+1] {
			costs[of[i+1]] += inputs(of[i+1]) * float64(l.Output)
		}
	}
	for _, t := range c.Ties {
		for _, stage := range destinations(plan.LayerSkip{From: t.From, To: t.To}, of) {
			costs[stage] += float64(t.Bytes)
		}
	}
	for _, s := range c.Skips {
		stages := destinations(s, of)
		for _, stage := range stages {
			costs[stage] += inputs(stage)*float64(s.Bytes) + graphs(stage)*float64(s.Enter)
		}
		if len(stages) > 0 {
			costs[of[s.From]] += graphs(of[s.From]) * float64(s.Leave)
		}
	}
	return costs
}

// perStage is the setting of a stage, of one for each or one for all.
func perStage[T any](settings []T, stage int) T {
	if len(settings) == 1 {
		return settings[0]
	}
	return settings[stage]
}

// TestByTimeIsBest compares with the best of all partitions, whose costs are told transfer by
// transfer.
func TestByTimeIsBest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		layers, skips := measuredChain(t)
		n := rapid.IntRange(1, len(layers)).Draw(t, "n")
		config := plan.TimeConfig{
			Recomputed:     drawn(t, n, rapid.SampledFrom([]float64{0, 0.5, 1})),
			SecondsPerByte: rapid.SampledFrom([]float64{0, 0.25, 1, 8}).Draw(t, "seconds per byte"),
			Skips:          skips,
			Ties:           ties(t, len(layers)),
		}
		counts, got, err := plan.ByTime(layers, n, config)
		if err != nil {
			t.Fatal(err)
		}
		want := best(len(layers), n, func(counts []int) []float64 { return times(layers, counts, config) })
		if !slices.Equal(counts, want) {
			t.Fatalf("got %v, which costs %v, want %v, which costs %v", counts,
				times(layers, counts, config), want, times(layers, want, config))
		}
		for stage, cost := range times(layers, counts, config) {
			if got[stage].Total() != cost {
				t.Fatalf("stage %d of %v costs %v, it is said to cost %v (%+v)", stage, counts, cost,
					got[stage].Total(), got[stage])
			}
		}
	})
}

func TestBySizeIsBest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		layers, skips := measuredChain(t)
		n := rapid.IntRange(1, len(layers)).Draw(t, "n")
		config := plan.SizeConfig{
			Held: drawn(t, n, rapid.Custom(func(t *rapid.T) plan.Held {
				return plan.Held{Graphs: rapid.IntRange(1, 3).Draw(t, "graphs"),
					Inputs: rapid.IntRange(0, 3).Draw(t, "inputs")}
			})),
			State: rapid.SampledFrom([]float64{0, 1, 2}).Draw(t, "state"),
			Input: int64(rapid.IntRange(0, 9).Draw(t, "input")), Skips: skips, Ties: ties(t, len(layers)),
		}
		counts, got, err := plan.BySize(layers, n, config)
		if err != nil {
			t.Fatal(err)
		}
		want := best(len(layers), n, func(counts []int) []float64 { return sizes(layers, counts, config) })
		if !slices.Equal(counts, want) {
			t.Fatalf("got %v, which holds %v, want %v, which holds %v", counts,
				sizes(layers, counts, config), want, sizes(layers, want, config))
		}
		for stage, size := range sizes(layers, counts, config) {
			if float64(got[stage].Total()) != size {
				t.Fatalf("stage %d of %v: %+v, want %v in all", stage, counts, got[stage], size)
			}
		}
	})
}

// TestManyPops: a skip that many layers pop, and several such at once.
func TestManyPops(t *testing.T) {
	layers := make([]plan.Layer, 12)
	for i := range layers {
		layers[i] = plan.Layer{Forward: 1, Backward: float64(1 + i%3)}
	}
	skips := []plan.LayerSkip{
		{From: 0, To: []int{2, 4, 5, 7, 9, 11}, Bytes: 1, Gradient: 3},
		{From: 1, To: []int{3, 5, 8, 10}, Bytes: 2, Gradient: 2},
		{From: 3, To: []int{4, 6, 7, 8}, Bytes: 1, Gradient: 5},
	}
	for n := 1; n <= len(layers); n++ {
		config := plan.TimeConfig{Recomputed: []float64{0.5}, SecondsPerByte: 1, Skips: skips}
		got, _, err := plan.ByTime(layers, n, config)
		if err != nil {
			t.Fatal(err)
		}
		if want := best(len(layers), n, func(counts []int) []float64 {
			return times(layers, counts, config)
		}); !slices.Equal(got, want) {
			t.Errorf("%d stages: got %v at %v, want %v at %v", n, got, times(layers, got, config), want,
				times(layers, want, config))
		}
	}
}

// Layers whose parameters grow while their activations shrink: where they are cut is decided by
// what is held of each, and the optimizer's state turns it over.
func TestBySizeWeighsParametersAgainstActivations(t *testing.T) {
	var layers []plan.Layer
	for i := range int64(6) {
		layers = append(layers, plan.Layer{Parameters: 1 + i, Trainable: 1 + i, Saved: 10 * (6 - i)})
	}
	for _, test := range []struct {
		reason string
		config plan.SizeConfig
		want   []int
	}{
		{"activations weigh more", plan.SizeConfig{}, []int{2, 4}},
		{"with an optimizer of much state parameters do", plan.SizeConfig{State: 100}, []int{4, 2}},
	} {
		got, sizes, err := plan.BySize(layers, 2, test.config)
		if err != nil || !slices.Equal(got, test.want) {
			t.Errorf("%s: %v, %v, %v, want %v", test.reason, got, sizes, err, test.want)
		}
	}
}
