package nn_test

import (
	"bytes"
	"slices"
	"strings"
	"sync"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/torch"
)

// sight is what a layer may ask of the run that it is in.
type sight struct {
	Training, Checkpointing, Recomputing, grad bool
	MicroBatch, MicroBatches, extra            int
	path                                       string
}

func TestWhatACheckpointedLayerSees(t *testing.T) {
	extra := nn.NewExtra[int]("extra")
	first, second := sight{Checkpointing: true}, sight{Recomputing: true, grad: true}
	once := []sight{{}}
	for _, row := range []struct {
		reason string
		wrap   wrapper
		grad   bool
		cfg    nn.Config
		want   []sight
		plain  bool // the input wants no gradient
	}{
		{"not wrapped", bare, true, nn.Config{}, []sight{{grad: true}}, false},
		{"wrapped", nn.Checkpointed, true, nn.Config{}, []sight{first, second}, false},
		{"wrapped twice", twice, true, nn.Config{}, []sight{first, {Checkpointing: true, Recomputing: true}, second}, false},
		{"nothing wants a gradient", twice, true, nn.Config{}, []sight{{grad: true}}, true},
		{"without a graph", twice, false, nn.Config{}, once, false},
		{"in the first forward of a stage that recomputes", twice, false, nn.Config{Checkpointing: true}, []sight{first}, false},
		{"in the second", nn.Checkpointed, true, nn.Config{Recomputing: true}, []sight{{Checkpointing: true, Recomputing: true}, second}, false},
	} {
		t.Run(row.reason, func(t *testing.T) {
			c := torchtest.New(t, torch.Options{Grad: row.grad})
			var seen []sight
			model := nn.NewSequential(nn.NewSequential().Add("named", row.wrap(chain(nn.NewTanh(), doing(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
				seen = append(seen, sight{c.Training, c.Checkpointing, c.Recomputing, c.Grad(), c.MicroBatch, c.MicroBatches, extra.In(c), c.Path()})
				return c.Tanh(x)
			})))))
			cfg := row.cfg
			cfg.Training, cfg.MicroBatch, cfg.MicroBatches, cfg.Extras = true, 2, 5, []nn.Extra{extra.With(7)}
			ctx := nn.NewCtx(c, cfg)
			x := c.Ones(torch.Float32, 2).SetRequiresGrad(!row.plain)
			y := model.Forward(ctx, x)
			if wants := row.grad && !row.plain; y.RequiresGrad() != wants {
				t.Errorf("the output wants a gradient: %v, want %v", !wants, wants)
			}
			if ctx.Checkpointing != cfg.Checkpointing || ctx.Recomputing != cfg.Recomputing || ctx.Path() != "" {
				t.Errorf("after forward the context has %v, %v, %q", ctx.Checkpointing, ctx.Recomputing, ctx.Path())
			}
			if y.RequiresGrad() {
				c.Backward(list{y}, list{c.OnesLike(y)}, false)
				x.SetGradOf(nil)
			}
			want := slices.Clone(row.want)
			for i := range want {
				want[i].Training, want[i].MicroBatch, want[i].MicroBatches, want[i].extra, want[i].path = true, 2, 5, 7, "0.named.1"
			}
			if !slices.Equal(seen, want) {
				t.Errorf("got  %+v\nwant %+v", seen, want)
			}
		})
	}
}

func TestCheckpointedHasTheNamesOfTheLayer(t *testing.T) {
	build := func(wrap wrapper) *nn.Sequential {
		return nn.NewSequential().Add("stem", wrap(nn.NewLinear(2, 2))).Add("body", nn.NewSequential(wrap(nn.NewSequential().Add("norm", nn.NewBatchNorm1d(2, nn.BatchNormConfig{})).Add("skip", stashing("a"))))).Add("head", wrap(popping("a")))
	}
	want, got := build(bare), build(nn.Checkpointed)
	for what, of := range map[string]func(nn.Module) []nn.NamedParam{"state": nn.State, "parameters": nn.Params, "buffers": nn.Buffers} {
		if names(of(got)) != names(of(want)) || len(of(got)) == 0 {
			t.Errorf("%s: got %q, want %q", what, names(of(got)), names(of(want)))
		}
	}
	var layers []string
	for _, l := range got.Layers() {
		layers = append(layers, l.Name)
	}
	if s := strings.Join(layers, " "); s != "stem body.0 head" {
		t.Errorf("the layers are %s", s)
	}
	if s := names(got.Layers()[1].State()); s != "body.0.norm.weight body.0.norm.bias body.0.norm.running_mean body.0.norm.running_var body.0.norm.num_batches_tracked" {
		t.Errorf("the state of the second is %s", s)
	}
	routes, err := got.SkipRoutes()
	if err != nil || len(routes) != 1 || routes[0].Stash != 1 || !slices.Equal(routes[0].Pops, []int{2}) {
		t.Errorf("routes %v, %v", routes, err)
	}
	if err := nn.VerifySkips(nn.NewSequential(nn.Checkpointed(chain(stashing("a"))))); err == nil || !strings.Contains(err.Error(), `"0.0" stashes "a", which no layer pops`) {
		t.Errorf("a skip that is never popped: %v", err)
	}
	if f, ok := nn.Checkpointed(nn.NewReLUInPlace()).(nn.InPlace); !ok || f.OverwritesInput() {
		t.Error("a wrapped layer says that it overwrites its input")
	}
	shared := nn.NewTanh()
	nn.NewSequential().Add("taken", nn.Checkpointed(shared))
	if got := recovered(func() { nn.NewSequential(shared) }); !strings.Contains(got, `module "taken" is already part of another module`) {
		t.Errorf("in two places: %q", got)
	}
}

// A graph that is kept goes back as often as one likes, each time the same; one that is not, once.
func TestCheckpointedGoesBackTwice(t *testing.T) {
	c := torchtest.New(t, torch.Options{Grad: true})
	model := nn.NewSequential(nn.Checkpointed(chain(nn.NewLinear(4, 4), nn.NewBatchNorm1d(4, nn.BatchNormConfig{}), nn.NewDropout(0.5), nn.Checkpointed(nn.NewTanh()))))
	nn.Materialise(c, nn.State(model), 1)
	defer nn.Free(model)
	weight, tracked := nn.Params(model)[0].Tensor(), nn.Buffers(model)[2].Tensor()
	y := model.Forward(nn.NewCtx(c, nn.Config{Training: true}), c.Normal_(c.Empty(torch.Float32, 5, 4), 0, 1))
	grad := c.Normal_(c.EmptyLike(y), 0, 1)
	back := func(keep bool) []byte {
		nn.ZeroGrads(model)
		c.Backward(list{y}, list{grad}, keep)
		return torch.Bytes(c.GradOf(weight))
	}
	first := back(true)
	for _, keep := range []bool{true, false} {
		if !bytes.Equal(back(keep), first) {
			t.Error("the gradient is another")
		}
	}
	if n := torch.Item[int64](tracked); n != 1 {
		t.Errorf("the running statistics moved %d times", n)
	}
	if err := torch.Try(func() { back(false) }); err == nil || !strings.Contains(err.Error(), "CheckpointBackward: Trying to backward through the graph a second time") {
		t.Errorf("without its graph: %v", err)
	}
	nn.ZeroGrads(model)
}

// A wrapped layer holds nothing of a run: goroutines with contexts of their own, on one model,
// compute what one does.
func TestCheckpointedRunsInSeveralGoroutines(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	model := nn.NewSequential(nn.Checkpointed(nn.NewTransformerBlock(8, 2, nn.TransformerConfig{Dropout: 0.5})), stashing("a"), nn.Checkpointed(chain(nn.NewDropout(0.5), popping("a"))))
	for _, p := range nn.Params(model) {
		p.Freeze() // gradients of one parameter must not be added by several goroutines
	}
	nn.Materialise(c, nn.State(model), 1)
	defer nn.Free(model)
	run := func(microBatch int) []byte {
		own := torch.NewCtx(torch.Options{Device: c.Device(), Grad: true, Threads: 1, Seed: 3})
		defer own.Close()
		x := own.Normal_(own.Empty(torch.Float32, 2, 5, 8), 0, 1).SetRequiresGrad(true)
		defer x.SetGradOf(nil)
		y := model.Forward(nn.NewCtx(own, nn.Config{Training: true, Seed: 1, MicroBatch: microBatch}), x)
		own.Backward(list{y}, list{own.OnesLike(y)}, false)
		return slices.Concat(torch.Bytes(y), torch.Bytes(own.GradOf(x)))
	}
	var want, got [8][]byte
	for i := range want {
		want[i] = run(i)
	}
	if bytes.Equal(want[0], want[1]) {
		t.Error("two micro-batches are the same")
	}
	var wg sync.WaitGroup
	for i := range got {
		wg.Go(func() { got[i] = run(i) })
	}
	wg.Wait()
	for i := range want {
		if !bytes.Equal(got[i], want[i]) {
			t.Errorf("micro-batch %d differs", i)
		}
	}
}

// A parameter that is used inside of a wrapper and outside too has the same gradient but for
// rounding: its shares are grouped otherwise.
func TestCheckpointedWithASharedParameter(t *testing.T) {
	c := torchtest.New(t, torch.Options{Grad: true})
	run := func(wrap wrapper) map[string][]float32 {
		first := nn.NewLinear(4, 4)
		model := nn.NewSequential(first, nn.NewTanh(), wrap(chain(nn.NewLinearShared(first.Weight, true), nn.NewTanh())), nn.NewLinearShared(first.Weight, false))
		nn.Materialise(c, nn.State(model), 1)
		defer nn.Free(model)
		return results(c, model, model.Forward)
	}
	if d := differs(run(nn.Checkpointed), run(bare), 1e-6); d != "" {
		t.Error(d)
	}
}
