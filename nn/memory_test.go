package nn_test

import (
	"slices"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/torch"
)

// account is a context on a device of its own and what it uses, in bytes.
type account struct {
	*torch.Ctx
	live int64
}

func newAccount(t *testing.T, grad bool) *account {
	torchtest.Check(t)
	c := torch.NewCtx(torch.Options{Device: torch.CPU(6), Grad: grad, Threads: 1})
	t.Cleanup(c.Close)
	return &account{Ctx: c}
}

// start counts from here.
func (a *account) start() {
	a.Device().ResetPeak()
	a.live = a.Device().Memory().Live
}

func (a *account) used() int64 { return a.Device().Memory().Live - a.live }
func (a *account) peak() int64 { return a.Device().Memory().Peak - a.live }

func TestForwardWithoutGraphHoldsTwoActivations(t *testing.T) {
	const activation = 4 * 1000
	layers := func() []nn.Layer {
		return []nn.Layer{nn.NewTanh(), nn.NewSigmoid(), nn.NewDropout(0.5), nn.NewIdentity(), nn.NewReLU(), nn.NewTanh()}
	}
	nested := nn.NewSequential()
	for _, name := range []string{"a", "b", "c", "d"} {
		nested.Add(name, nn.NewSequential(layers()...))
	}
	for _, row := range []struct {
		reason string
		s      *nn.Sequential
		peak   int64
	}{
		{"each layer's input goes when its output is there", nn.NewSequential(slices.Concat(layers(), layers(), layers())...), 2 * activation},
		{"a nested Sequential's input goes when all of it has run", nested, 3 * activation},
	} {
		a := newAccount(t, false)
		x := a.Ones(torch.Float32, 10, 100)
		a.start()
		y := row.s.Forward(nn.NewCtx(a.Ctx, nn.Config{}), x)
		if a.peak() != row.peak || a.used() != activation {
			t.Errorf("%s: %d bytes are live and %d were, want %d and %d", row.reason, a.used(), a.peak(), activation, row.peak)
		}
		y.Free()
		if a.used() != 0 {
			t.Errorf("%s: %d bytes are left", row.reason, a.used())
		}
	}
}

// A composite layer leaves its output and nothing else, also when nobody cleans up after it.
func TestCompositesLeaveTheirOutputAlone(t *testing.T) {
	for _, row := range []struct {
		name  string
		layer nn.Layer
		shape []int64
		bytes int64 // of the output
	}{
		{"attention", nn.NewCausalSelfAttention(8, 2), []int64{2, 5, 8}, 320},
		{"transformer block", nn.NewTransformerBlock(8, 2, nn.TransformerConfig{Dropout: 0.5}), []int64{2, 5, 8}, 320},
		{"basic block", nn.NewBasicBlock(4, 8, 2), []int64{2, 4, 6, 6}, 576},
		{"bottleneck", nn.NewBottleneck(4, 2, 1), []int64{2, 4, 6, 6}, 2304},
	} {
		t.Run(row.name, func(t *testing.T) {
			a := newAccount(t, false)
			nn.Materialise(a.Ctx, nn.State(row.layer), 1)
			defer nn.Free(row.layer)
			x := a.Ones(torch.Float32, row.shape...)
			a.start()
			y := row.layer.Forward(nn.NewCtx(a.Ctx, nn.Config{Training: true}), x)
			if a.used() != row.bytes || y.Numel()*4 != row.bytes {
				t.Errorf("%v is live with %d bytes, want %d", y, a.used(), row.bytes)
			}
		})
	}
}

// The scores are the only thing in a transformer that grows with the square of the length.
func TestAttentionKeepsItsScoresOnce(t *testing.T) {
	const tokens, scores, mask = 256, 256 * 256 * 4, 256 * 256
	for _, row := range []struct {
		reason     string
		grad       bool
		kept, peak int64
	}{
		{"without a graph", false, 0, 2 * scores},
		{"with one: the weights, and which scores were masked", true, scores + mask, 2*scores + mask},
	} {
		a := newAccount(t, row.grad)
		l := nn.NewCausalSelfAttention(2, 1)
		nn.Materialise(a.Ctx, nn.State(l), 1)
		x := a.Ones(torch.Float32, 1, tokens, 2)
		a.start()
		l.Forward(nn.NewCtx(a.Ctx, nn.Config{}), x)
		const small = 16 * tokens * 2 * 4 // what grows with the length only
		if a.used() > row.kept+small || a.peak() > row.peak+small {
			t.Errorf("%s: %d bytes are kept and %d were live, want at most %d and %d", row.reason, a.used(), a.peak(), row.kept+small, row.peak+small)
		}
		nn.Free(l)
		a.Close()
	}
}

// conv, bn, relu, conv, bn, add, relu: the graph keeps the input of each BatchNorm and the output
// of each ReLU, of which the first is the second convolution's input.
func TestResidualBlockKeepsFourActivations(t *testing.T) {
	a := newAccount(t, true)
	l := nn.NewBasicBlock(4, 4, 1)
	nn.Materialise(a.Ctx, nn.State(l), 1)
	defer nn.Free(l)
	x := a.Ones(torch.Float32, 2, 4, 8, 8)
	a.start()
	l.Forward(nn.NewCtx(a.Ctx, nn.Config{Training: true}), x)
	const activation = 2 * 4 * 8 * 8 * 4
	const statistics = 2 * 2 * 4 * 4 // mean and deviation of each channel, for two BatchNorms
	if want := int64(4*activation + statistics); a.used() != want {
		t.Errorf("%d bytes are kept, want 4 activations and the statistics, %d", a.used(), want)
	}
}

func TestReLUInPlaceTakesNoMemory(t *testing.T) {
	a := newAccount(t, false)
	x := a.Ones(torch.Float32, 100)
	a.start()
	nn.NewReLUInPlace().Forward(nn.NewCtx(a.Ctx, nn.Config{}), x)
	if a.peak() != 0 {
		t.Errorf("%d bytes were live", a.peak())
	}
}
