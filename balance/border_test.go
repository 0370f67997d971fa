package balance_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"penstock/balance"
)

// chain draws measured layers and skips. Seconds and bytes are small whole numbers, so that sums are exact and ties are common.
func chain(t *rapid.T) ([]balance.Layer, []balance.Skip) {
	largest := rapid.SampledFrom([]int{1, 4, 30}).Draw(t, "largest")
	number := func(what string) int64 { return int64(rapid.IntRange(0, largest).Draw(t, what)) }
	layers := make([]balance.Layer, rapid.IntRange(1, 9).Draw(t, "layers"))
	for i := range layers {
		parameters := number("parameters")
		layers[i] = balance.Layer{
			Forward: float64(2 * number("forward")), Backward: float64(number("backward")),
			Output: number("output"), Gradient: number("gradient"), Saved: number("saved"), Enter: number("enter"), Leave: number("leave"),
			Parameters: parameters, Trainable: min(parameters, number("trainable")), Buffers: number("buffers"),
		}
	}
	skips := []balance.Skip{}
	if len(layers) > 1 {
		for range rapid.IntRange(0, 4).Draw(t, "skips") {
			from := rapid.IntRange(0, len(layers)-2).Draw(t, "from")
			to := rapid.SliceOfNDistinct(rapid.IntRange(from+1, len(layers)-1), 1, 5, rapid.ID[int]).Draw(t, "to")
			slices.Sort(to)
			skips = append(skips, balance.Skip{From: from, To: to, Bytes: number("bytes"), Gradient: number("skip gradient"), Enter: number("skip enter"), Leave: number("skip leave")})
		}
	}
	return layers, skips
}

// ties draws uses of shared parameters.
func ties(t *rapid.T, layers int) []balance.Tie {
	ties := []balance.Tie{}
	if layers > 1 {
		for range rapid.IntRange(0, 3).Draw(t, "ties") {
			from := rapid.IntRange(0, layers-2).Draw(t, "tie from")
			ties = append(ties, balance.Tie{
				From: from, To: rapid.IntRange(from+1, layers-1).Draw(t, "tie to"),
				Bytes: int64(rapid.IntRange(0, 9).Draw(t, "tie bytes")), Gradient: int64(rapid.IntRange(0, 9).Draw(t, "tie gradient")),
			})
		}
	}
	return ties
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

// best is the first of the partitions with the least bottleneck and, of those, the least sum of squares.
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
func destinations(s balance.Skip, of []int) []int {
	var stages []int
	for _, to := range s.To {
		if of[to] != of[s.From] {
			stages = append(stages, of[to])
		}
	}
	return slices.Compact(stages)
}

// times follows every transfer to whoever receives it.
func times(layers []balance.Layer, counts []int, c balance.TimeConfig) []float64 {
	of, costs := stageOf(counts), make([]float64, len(counts))
	for i, l := range layers {
		costs[of[i]] += (1+c.Recomputed)*l.Forward + l.Backward
		if i+1 < len(layers) && of[i] != of[i+1] {
			costs[of[i+1]] += c.SecondsPerByte * float64(l.Output)
			costs[of[i]] += c.SecondsPerByte * float64(l.Gradient)
		}
	}
	for _, s := range c.Skips {
		for _, stage := range destinations(s, of) {
			costs[stage] += c.SecondsPerByte * float64(s.Bytes)
			costs[of[s.From]] += c.SecondsPerByte * float64(s.Gradient)
		}
	}
	for _, t := range c.Ties {
		if of[t.From] != of[t.To] {
			costs[of[t.From]] += c.SecondsPerByte * float64(t.Gradient)
		}
	}
	return costs
}

// sizes follows every tensor to where it is held.
func sizes(layers []balance.Layer, counts []int, c balance.SizeConfig) []float64 {
	of, costs := stageOf(counts), make([]float64, len(counts))
	graphs, inputs := float64(c.Graphs), float64(c.Inputs)
	costs[0] = (graphs + inputs) * float64(c.Input)
	for i, l := range layers {
		costs[of[i]] += float64(l.Parameters+l.Trainable+l.Buffers) + c.State*float64(l.Trainable) + graphs*float64(l.Saved)
		if i == 0 || of[i] != of[i-1] {
			costs[of[i]] += graphs * float64(l.Enter)
		}
		if i+1 == len(layers) || of[i] != of[i+1] {
			costs[of[i]] += graphs * float64(l.Leave)
		}
		if i+1 < len(layers) && of[i] != of[i+1] {
			costs[of[i+1]] += inputs * float64(l.Output)
		}
	}
	for _, t := range c.Ties {
		if of[t.From] != of[t.To] {
			costs[of[t.To]] += float64(t.Bytes)
		}
	}
	for _, s := range c.Skips {
		stages := destinations(s, of)
		for _, stage := range stages {
			costs[stage] += inputs*float64(s.Bytes) + graphs*float64(s.Enter)
		}
		if len(stages) > 0 {
			costs[of[s.From]] += graphs * float64(s.Leave)
		}
	}
	return costs
}

// TestByTimeIsBest compares with the best of all partitions, whose costs are told transfer by transfer.
func TestByTimeIsBest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		layers, skips := chain(t)
		n := rapid.IntRange(1, len(layers)).Draw(t, "n")
		config := balance.TimeConfig{
			Recomputed:     rapid.SampledFrom([]float64{0, 0.5, 1}).Draw(t, "recomputed"),
			SecondsPerByte: rapid.SampledFrom([]float64{0, 0.25, 1, 8}).Draw(t, "seconds per byte"),
			Skips:          skips,
			Ties:           ties(t, len(layers)),
		}
		counts, got, err := balance.ByTime(layers, n, config)
		if err != nil {
			t.Fatal(err)
		}
		want := best(len(layers), n, func(counts []int) []float64 { return times(layers, counts, config) })
		if !slices.Equal(counts, want) {
			t.Fatalf("got %v, which costs %v, want %v, which costs %v", counts, times(layers, counts, config), want, times(layers, want, config))
		}
		for stage, cost := range times(layers, counts, config) {
			if got[stage].Total() != cost {
				t.Fatalf("stage %d of %v costs %v, it is said to cost %v (%+v)", stage, counts, cost, got[stage].Total(), got[stage])
			}
		}
	})
}

func TestBySizeIsBest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		layers, skips := chain(t)
		n := rapid.IntRange(1, len(layers)).Draw(t, "n")
		config := balance.SizeConfig{
			Graphs: rapid.IntRange(1, 3).Draw(t, "graphs"), State: rapid.SampledFrom([]float64{0, 1, 2}).Draw(t, "state"),
			Input: int64(rapid.IntRange(0, 9).Draw(t, "input")), Skips: skips, Ties: ties(t, len(layers)),
			Inputs: rapid.IntRange(0, 3).Draw(t, "inputs"),
		}
		counts, got, err := balance.BySize(layers, n, config)
		if err != nil {
			t.Fatal(err)
		}
		want := best(len(layers), n, func(counts []int) []float64 { return sizes(layers, counts, config) })
		if !slices.Equal(counts, want) {
			t.Fatalf("got %v, which holds %v, want %v, which holds %v", counts, sizes(layers, counts, config), want, sizes(layers, want, config))
		}
		for stage, size := range sizes(layers, counts, config) {
			if float64(got[stage].Total()) != size {
				t.Fatalf("stage %d of %v holds %v, it is said to hold %v (%+v)", stage, counts, size, got[stage].Total(), got[stage])
			}
		}
	})
}

// TestByTimeIsPartition: without transfers and recomputation a stage costs the sum of its layers.
func TestByTimeIsPartition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		costs := rapid.SliceOfN(rapid.Map(rapid.IntRange(0, 1000), func(i int) float64 { return float64(i) / 8 }), 1, 300).Draw(t, "costs")
		n := rapid.IntRange(1, len(costs)).Draw(t, "n")
		want, err := balance.Partition(costs, n)
		if err != nil {
			t.Fatal(err)
		}
		layers := make([]balance.Layer, len(costs))
		for i, cost := range costs {
			layers[i].Backward = cost
		}
		got, _, err := balance.ByTime(layers, n, balance.TimeConfig{})
		if err != nil || !slices.Equal(got, want) {
			t.Fatalf("ByTime gives %v, %v, Partition %v", got, err, want)
		}
	})
}

func TestByTime(t *testing.T) {
	layer := balance.Layer{Forward: 1, Backward: 1}
	heavy := balance.Layer{Forward: 1, Backward: 1, Output: 8, Gradient: 8}
	dear := balance.Layer{Forward: 5, Backward: 5}
	tests := []struct {
		reason string
		layers []balance.Layer
		n      int
		config balance.TimeConfig
		want   []int
	}{
		{"a cut behind a heavy output is avoided", []balance.Layer{layer, layer, heavy, layer}, 2, balance.TimeConfig{SecondsPerByte: 1}, []int{2, 2}},
		{"where transfers are free it is not", []balance.Layer{layer, heavy, layer, layer}, 2, balance.TimeConfig{}, []int{2, 2}},
		{"recomputation counts forward twice", []balance.Layer{{Forward: 4}, {Backward: 3}, {Backward: 3}}, 2, balance.TimeConfig{Recomputed: 1}, []int{1, 2}},
		{"without it the two are cut elsewhere", []balance.Layer{{Forward: 4}, {Backward: 3}, {Backward: 4}}, 2, balance.TimeConfig{}, []int{2, 1}},
		{"a skip from end to end is paid by whoever has its ends", []balance.Layer{layer, layer, layer, layer}, 3,
			balance.TimeConfig{SecondsPerByte: 1, Skips: []balance.Skip{{From: 0, To: []int{3}, Bytes: 2, Gradient: 2}}}, []int{1, 2, 1}},
		{"equals are ordered behind a skip that is popped twice", []balance.Layer{dear, layer, layer, layer}, 3,
			balance.TimeConfig{SecondsPerByte: 1, Skips: []balance.Skip{{From: 0, To: []int{1, 2}}}}, []int{1, 2, 1}},
	}
	for _, test := range tests {
		t.Run(test.reason, func(t *testing.T) {
			got, costs, err := balance.ByTime(test.layers, test.n, test.config)
			if err != nil || !slices.Equal(got, test.want) {
				t.Errorf("got %v, %v, %v, want %v", got, costs, err, test.want)
			}
		})
	}
}

// TestManyPops: a skip that many layers pop, and several such at once, where the gradients that come back depend on all cuts behind.
func TestManyPops(t *testing.T) {
	layers := make([]balance.Layer, 12)
	for i := range layers {
		layers[i] = balance.Layer{Forward: 1, Backward: float64(1 + i%3)}
	}
	skips := []balance.Skip{
		{From: 0, To: []int{2, 4, 5, 7, 9, 11}, Bytes: 1, Gradient: 3},
		{From: 1, To: []int{3, 5, 8, 10}, Bytes: 2, Gradient: 2},
		{From: 3, To: []int{4, 6, 7, 8}, Bytes: 1, Gradient: 5},
	}
	for n := 1; n <= len(layers); n++ {
		config := balance.TimeConfig{SecondsPerByte: 1, Skips: skips}
		got, _, err := balance.ByTime(layers, n, config)
		if err != nil {
			t.Fatal(err)
		}
		if want := best(len(layers), n, func(counts []int) []float64 { return times(layers, counts, config) }); !slices.Equal(got, want) {
			t.Errorf("%d stages: got %v at %v, want %v at %v", n, got, times(layers, got, config), want, times(layers, want, config))
		}
	}
}

func TestBordersRefuse(t *testing.T) {
	layers := []balance.Layer{{Name: "a"}, {Name: "b"}, {Name: "c"}}
	with := func(change func(l *balance.Layer)) []balance.Layer {
		changed := slices.Clone(layers)
		change(&changed[1])
		return changed
	}
	skip := func(from int, to ...int) []balance.Skip { return []balance.Skip{{From: from, To: to}} }
	tests := []struct {
		reason string
		layers []balance.Layer
		n      int
		time   balance.TimeConfig
		want   string
	}{
		{"no stage", layers, 0, balance.TimeConfig{}, "0 stages: there must be at least one"},
		{"more stages than layers", layers, 4, balance.TimeConfig{}, "4 stages for 3 layers: a stage needs at least one layer, ask for at most 3"},
		{"no layers", nil, 1, balance.TimeConfig{}, "1 stages for 0 layers"},
		{"not a number", with(func(l *balance.Layer) { l.Forward = math.NaN() }), 2, balance.TimeConfig{}, "layer 1 (b) takes NaN s in forward"},
		{"infinite", with(func(l *balance.Layer) { l.Backward = math.Inf(1) }), 2, balance.TimeConfig{}, "layer 1 (b) takes +Inf s in backward"},
		{"negative time", with(func(l *balance.Layer) { l.Name, l.Forward = "", -1 }), 2, balance.TimeConfig{}, "layer 1 takes -1 s in forward"},
		{"negative bytes", with(func(l *balance.Layer) { l.Saved = -8 }), 2, balance.TimeConfig{}, "layer 1 (b) has -8 bytes of saved activations"},
		{"more trained than there is", with(func(l *balance.Layer) { l.Trainable = 4 }), 2, balance.TimeConfig{}, "0 bytes of parameters and 4 of trainable"},
		{"a sum beyond float64", with(func(l *balance.Layer) { l.Forward, l.Backward = math.MaxFloat64, math.MaxFloat64 }), 2, balance.TimeConfig{}, "cost of layer 1 is more than a float64 holds"},
		{"share", layers, 1, balance.TimeConfig{Recomputed: 1.5}, "share of 1.5"},
		{"share is no number", layers, 1, balance.TimeConfig{Recomputed: math.NaN()}, "share of NaN"},
		{"transfer", layers, 1, balance.TimeConfig{SecondsPerByte: math.Inf(1)}, "+Inf seconds per byte"},
		{"skip from nowhere", layers, 1, balance.TimeConfig{Skips: skip(3, 4)}, "skip 0 comes from layer 3: want one of 0 to 2"},
		{"skip to nowhere", layers, 1, balance.TimeConfig{Skips: skip(0)}, "skip 0, from layer 0, goes nowhere"},
		{"skip beyond the end", layers, 1, balance.TimeConfig{Skips: skip(0, 3)}, "from layer 0 to layers [3]"},
		{"skip to itself", layers, 1, balance.TimeConfig{Skips: skip(1, 1)}, "behind 1"},
		{"skip backwards", layers, 1, balance.TimeConfig{Skips: skip(2, 0)}, "behind 2"},
		{"pops in disorder", layers, 1, balance.TimeConfig{Skips: skip(0, 2, 1)}, "[2 1]: want them ascending"},
		{"skip of negative size", layers, 1, balance.TimeConfig{Skips: []balance.Skip{{From: 0, To: []int{1}, Gradient: -4}}}, "-4 of gradient"},
	}
	for _, test := range tests {
		t.Run(test.reason, func(t *testing.T) {
			counts, costs, err := balance.ByTime(test.layers, test.n, test.time)
			if err == nil || !strings.Contains(err.Error(), test.want) || counts != nil || costs != nil {
				t.Errorf("got %v, %v, %v, want an error with %q", counts, costs, err, test.want)
			}
		})
	}
	for _, test := range []struct {
		config balance.SizeConfig
		want   string
	}{
		{balance.SizeConfig{Graphs: -1}, "-1 graphs"},
		{balance.SizeConfig{Graphs: 4, Inputs: -2}, "4 graphs and -2 inputs"},
		{balance.SizeConfig{State: math.NaN()}, "keeps NaN times"},
		{balance.SizeConfig{State: -1}, "keeps -1 times"},
		{balance.SizeConfig{Input: -1}, "input of -1 bytes"},
		{balance.SizeConfig{Input: math.MaxInt64, Graphs: 2}, "there is no such device"},
		{balance.SizeConfig{Skips: skip(2, 0)}, "skip 0 goes from layer 2 to layers [0]"},
		{balance.SizeConfig{Ties: []balance.Tie{{From: 2, To: 0}}}, "tie 0 goes from layer 2 to layers [0]"},
		{balance.SizeConfig{Ties: []balance.Tie{{From: 1, To: 2, Gradient: -8}}}, "tie 0, from layer 1, has 0 bytes and -8 of gradient"},
	} {
		if counts, sizes, err := balance.BySize(layers, 2, test.config); err == nil || !strings.Contains(err.Error(), test.want) || counts != nil || sizes != nil {
			t.Errorf("%+v: got %v, %v, %v, want an error with %q", test.config, counts, sizes, err, test.want)
		}
	}
	for _, counts := range [][]int{{2}, {2, 2}, {3, 0}, {4, -1}, nil} {
		if times, err := balance.Times(layers, counts, balance.TimeConfig{}); err == nil || times != nil {
			t.Errorf("Times of %v: %v, %v", counts, times, err)
		}
		if sizes, err := balance.Sizes(layers, counts, balance.SizeConfig{}); err == nil || sizes != nil {
			t.Errorf("Sizes of %v: %v, %v", counts, sizes, err)
		}
	}
}

// BenchmarkByTime is a chain with transfers as dear as an eighth of a layer and a skip from every tenth layer.
func BenchmarkByTime(b *testing.B) {
	layers, skips := make([]balance.Layer, 10_000), []balance.Skip{}
	for i, cost := range hashed(len(layers)) {
		layers[i] = balance.Layer{Forward: cost / 3, Backward: 2 * cost / 3, Output: int64(1 + i%7), Gradient: int64(1 + i%7)}
		if i%10 == 0 && i+25 < len(layers) {
			skips = append(skips, balance.Skip{From: i, To: []int{i + 25}, Bytes: 3, Gradient: 3})
		}
	}
	for b.Loop() {
		if _, _, err := balance.ByTime(layers, 64, balance.TimeConfig{Recomputed: 0.875, SecondsPerByte: 1.0 / 32, Skips: skips}); err != nil {
			b.Fatal(err)
		}
	}
}
