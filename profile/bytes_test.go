package profile_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"penstock.example/internal/must"
	"penstock.example/internal/torchtest"
	"penstock.example/models"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/plan"

	"penstock.example/profile"
	"penstock.example/torch"
)

// known are the networks that people use, small.
var known = []struct {
	name    string
	options models.Options
}{
	{"mlp", models.Options{}}, {"resnet20", models.Options{Width: 4}},
	{"resnet18", models.Options{Classes: 5}}, {"resnet50", models.Options{Classes: 5}},
	{"gpt2", models.Options{Width: 16, Heads: 2, Context: 5, Depth: 2, Classes: 200}},
	{"vit_b_16", models.Options{Width: 16, Heads: 2, Depth: 2, Size: 32, Dropout: 0.2}},
	{"gpt", models.Options{Width: 16, Heads: 2, Context: 5, Depth: 2, Dropout: 0.2}},
	{"resnet1001", models.Options{Width: 4, Depth: 2}}, {"vgg11_bn", models.Options{Width: 16, Classes: 5}},
	{"densenet121", models.Options{Width: 8, Classes: 5}},
	{"unet", models.Options{Convolutions: 2, Width: 4, Depth: 2, Size: 32}},
	{"amoebanetd", models.Options{Depth: 3, Width: 16, Size: 32}},
}

func build(t *testing.T, name string, o models.Options) *nn.Sequential {
	t.Helper()
	return must.Get(models.New(name, o))(t)
}

// inputOf makes four samples for a known network.
func inputOf(t *testing.T, c *torch.Ctx, name string) *torch.Tensor {
	t.Helper()
	info := must.Get(models.Describe(name))(t)
	if info.Kind == models.Text {
		return torch.From(c, []int64{1, 2, 3, 4, 5, 6, 7, 8, 9, 8, 7, 6, 5, 4, 3, 2, 1, 2, 3, 4}, 4, 5)
	}
	size := min(info.Input[1], 32)
	return c.Normal_(c.Empty(torch.Float32, 4, info.Input[0], size, size), 0, 1)
}

// TestModels: the layers of known networks hold what the devices of a pipe hold, to the byte.
func TestModels(t *testing.T) {
	for _, m := range known {
		t.Run(m.name, func(t *testing.T) {
			torchtest.Check(t)
			c := torch.NewCtx(torch.Options{Device: torch.CPU(3), Seed: 1})
			defer c.Close()
			x, model := inputOf(t, c, m.name), build(t, m.name, m.options)
			p := measured(t, model, profile.Config{BytesOnly: true}, c.Narrow(x, 0, 0, 2))
			layers := len(p.Layers)
			for i, cut := range []int{max(layers/5, 1), layers / 2, layers - 1} {
				stagesHold(t, p, build(t, m.name, m.options), x, cut, 2,
					[]pipe.Checkpoint{pipe.Never, pipe.ExceptLast}[i%2])
			}
		})
	}
}

// TestStagesHoldWhatIsPredicted: between forward and backward each device of a pipe holds what
// BySize counts, to the byte, wherever the model is cut and whatever is recomputed.
func TestStagesHoldWhatIsPredicted(t *testing.T) {
	const chunks = 3
	for _, network := range networks {
		layers := len(network.build().Layers())
		for cut := 1; cut < layers; cut++ {
			for _, policy := range []pipe.Checkpoint{pipe.Never, pipe.Always, pipe.ExceptLast} {
				t.Run(fmt.Sprint(network.name, " ", policy, " ", cut), func(t *testing.T) {
					torchtest.Check(t)
					// the batch is not charged to a stage
					c := torch.NewCtx(torch.Options{Device: torch.CPU(3)})
					defer c.Close()
					x, model := network.input(c), network.build()
					p := measured(t, model, profile.Config{BytesOnly: true}, c.Narrow(x, 0, 0, x.Size(0)/chunks))
					stagesHold(t, p, model, x, cut, chunks, policy)
				})
			}
		}
	}
}

// stagesHold compares what two stages hold after a forward with what BySize counts.
func stagesHold(t *testing.T, p profile.Profile, model *nn.Sequential, x *torch.Tensor, cut, chunks int,
	policy pipe.Checkpoint) {
	t.Helper()
	graphs, inputs := plan.Policy(policy).Held(chunks)
	if policy == pipe.Always { // no graph yet
		inputs = chunks
	}
	counts := []int{cut, len(p.Layers) - cut}
	layers, config := joined(p, cut)
	config.Held = []plan.Held{{Graphs: graphs, Inputs: inputs}}
	_, sizes, err := plan.BySize(layers, 2, config)
	must.Do(t, err)
	got := held(t, model, counts, policy, chunks, x)
	for stage, s := range sizes {
		want := s.Parameters + s.Buffers + s.Inputs
		if policy != pipe.Always {
			want += s.Saved
		}
		if got[stage] != want {
			t.Errorf("%v, cut at %d: stage %d holds %d bytes, want %d: %+v", policy, cut, stage, got[stage],
				want, s)
		}
	}
}

// joined is a model of two layers, which are the stages of a cut.
func joined(p profile.Profile, cut int) (layers []plan.Layer, c plan.SizeConfig) {
	for _, stage := range [][]plan.Layer{p.Layers[:cut], p.Layers[cut:]} {
		sum := plan.Layer{Enter: stage[0].Enter, Output: stage[len(stage)-1].Output}
		for _, l := range stage {
			sum.Parameters, sum.Trainable = sum.Parameters+l.Parameters, sum.Trainable+l.Trainable
			sum.Buffers, sum.Saved = sum.Buffers+l.Buffers, sum.Saved+l.Saved
		}
		layers = append(layers, sum)
	}
	crosses := func(from int, to []int) bool { return from < cut && slices.Max(to) >= cut }
	for _, s := range p.Skips {
		if crosses(s.From, s.To) {
			s.From, s.To = 0, []int{1}
			c.Skips = append(c.Skips, s)
		}
	}
	for _, tie := range p.Ties {
		if crosses(tie.From, tie.To) {
			tie.From, tie.To = 0, []int{1}
			c.Ties = append(c.Ties, tie)
		}
	}
	return layers, c
}

// held is what the devices of a pipe hold after its forward, without the output that was gathered
// from the micro-batches.
func held(t *testing.T, model *nn.Sequential, counts []int, policy pipe.Checkpoint, chunks int,
	x *torch.Tensor) [2]int64 {
	t.Helper()
	before := [2]int64{torch.CPU(0).Memory().Live, torch.CPU(1).Memory().Live}
	p, err := pipe.New(model, pipe.Config{Balance: counts, Chunks: chunks, Checkpoint: policy, Seed: 1})
	must.Do(t, err)
	defer nn.Free(model)
	defer p.Close()
	run := must.Get(p.Forward(context.Background(), pipe.Batch{Input: pipe.Rows(x)}))(t)
	defer run.Close()
	_, gathered := run.Output()[0].Storage()
	return [2]int64{torch.CPU(0).Memory().Live - before[0], torch.CPU(1).Memory().Live - before[1] - gathered}
}

func TestBorders(t *testing.T) {
	c := deviceCtx(t)
	model := nn.NewSequential(
		nn.NewEmbedding(11, 8, nn.EmbeddingConfig{}), stasher("a"), nn.NewLinear(8,
			4), stasher("b"), popper("a", cat), popper("b", cat), nn.NewLinear(16, 2),
		one(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.Argmax(x, -1) }),
	)
	p := measured(t, model, profile.Config{Device: c.Device(), BytesOnly: true}, tokens(c))
	const rows = 6 * 5
	if p.Input != rows*8 {
		t.Errorf("an input of %d bytes, want %d", p.Input, rows*8)
	}
	for i, want := range []struct{ output, gradient, parameters int64 }{
		{rows * 8 * 4, rows * 8 * 4, 11 * 8 * 4}, {rows * 8 * 4, rows * 8 * 4, 0},
		{rows * 4 * 4, rows * 4 * 4, (8*4 + 4) * 4}, {rows * 4 * 4, rows * 4 * 4, 0},
		{rows * 12 * 4, rows * 12 * 4, 0}, {rows * 16 * 4, rows * 16 * 4, 0},
		{rows * 2 * 4, rows * 2 * 4, (16*2 + 2) * 4},
		{rows * 8, 0, 0}, // indices have no gradient
	} {
		if l := p.Layers[i]; l.Output != want.output || l.Gradient != want.gradient ||
			l.Parameters != want.parameters || l.Trainable != want.parameters {
			t.Errorf("layer %d: %+v, want %+v", i, l, want)
		}
	}
	if len(p.Skips) != 2 {
		t.Fatalf("skips %+v", p.Skips)
	}
	for i, want := range []plan.LayerSkip{{From: 1, To: []int{4}, Bytes: rows * 8 * 4},
		{From: 3, To: []int{5}, Bytes: rows * 4 * 4}} {
		if s := p.Skips[i]; s.From != want.From || !slices.Equal(s.To, want.To) || s.Bytes != want.Bytes ||
			s.Gradient != want.Bytes {
			t.Errorf("skip %d: %+v, want %+v", i, s, want)
		}
	}
}

// TestTies: a shared parameter is its first layer's.
func TestTies(t *testing.T) {
	c := deviceCtx(t)
	build := func() (*nn.Sequential, *nn.Embedding) {
		e := nn.NewEmbedding(11, 8, nn.EmbeddingConfig{})
		return nn.NewSequential(e, nn.NewTanh(), nn.NewLinearShared(e.Weight, true), nn.NewLinear(11, 8),
			nn.NewLinearShared(e.Weight, false)), e
	}
	model, e := build()
	p := measured(t, model, profile.Config{Device: c.Device(), BytesOnly: true}, tokens(c))
	if e.Weight.Exists() {
		t.Error("the shared parameter was left after")
	}
	const weight = 11 * 8 * 4
	if len(p.Ties) != 1 || p.Ties[0].From != 0 || !slices.Equal(p.Ties[0].To, []int{2, 4}) ||
		p.Ties[0].Bytes != weight || p.Ties[0].Gradient != weight {
		t.Errorf("ties %+v", p.Ties)
	}
	var all int64
	for _, l := range p.Layers {
		all += l.Parameters
	}
	if all != 4*nn.Count(model) || p.Layers[0].Parameters != weight || p.Layers[2].Parameters != 11*4 ||
		p.Layers[4].Parameters != 0 {
		t.Errorf("parameters: %+v", p.Layers)
	}
}

// TestAutocast: what crosses a boundary after a product is half as wide.
func TestAutocast(t *testing.T) {
	c := deviceCtx(t)
	for autocast, width := range map[torch.Autocast]int64{torch.AutocastOff: 4, torch.AutocastBFloat16: 2} {
		p := measured(t, nn.NewSequential(nn.NewLinear(16, 4), nn.NewReLU()),
			profile.Config{Device: c.Device(), Autocast: autocast, Repeats: 1}, vectors(c))
		if l := p.Layers[1]; p.Input != 6*16*4 || l.Output != 6*4*width || l.Gradient != 6*4*width {
			t.Errorf("autocast %v: %+v", autocast, p)
		}
	}
	if c.Autocast() != torch.AutocastOff {
		t.Error("autocast was left on")
	}
}

// TestFrozen: a frozen parameter has no gradient, and after frozen layers there is none either.
func TestFrozen(t *testing.T) {
	c := deviceCtx(t)
	first := nn.NewLinear(16, 4)
	first.Weight.SetTrainable(false)
	first.Bias.SetTrainable(false)
	p := measured(t, nn.NewSequential(first, nn.NewBatchNorm1d(4, nn.BatchNormConfig{}), nn.NewTanh()),
		profile.Config{Device: c.Device(), BytesOnly: true}, vectors(c))
	// batch norm saves its output
	if l := p.Layers[0]; l.Parameters != (16*4+4)*4 || l.Trainable != 0 || l.Gradient != 0 || l.Saved != 0 {
		t.Errorf("%+v", l)
	}
	if l := p.Layers[1]; l.Trainable != 2*4*4 || l.Buffers != 2*4*4+8 || l.Gradient != 6*4*4 {
		t.Errorf("%+v", l)
	}
}
