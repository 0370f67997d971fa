package pipe_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/schedule"
	"penstock.example/torch"
)

// What New refuses of a model.
func TestNewSaysWhatToDo(t *testing.T) {
	torchtest.Check(t)
	pass := func(_ *nn.Ctx, x *torch.Tensor) *torch.Tensor { return x }
	for _, row := range []struct {
		reason string
		model  *nn.Sequential
		cfg    pipe.Config
		want   []string
	}{
		{"no model", nil, pipe.Config{}, []string{"the model is nil", "want an nn.Sequential"}},
		{"no layers", nn.NewSequential(nn.NewSequential()), pipe.Config{}, []string{"the model has no layers", "Add"}},
		{"skips", nn.NewSequential(stashing(pass, "a")), pipe.Config{},
			[]string{"skip connections do not match", `"0" stashes "a", which no layer pops`}},
	} {
		p, err := pipe.New(row.model, row.cfg)
		if err == nil {
			p.Close()
			nn.Free(row.model)
			t.Errorf("%s: it was taken", row.reason)
			continue
		}
		for _, want := range append(row.want, "pipe: ") {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %q is not in: %v", row.reason, want, err)
			}
		}
	}
}

// What Step, Forward and Infer refuse of a batch, before anything runs.
func TestBatchSaysWhatToDo(t *testing.T) {
	torchtest.Check(t)
	p := started(t, small(), pipe.Config{Balance: []int{2, 2}, Chunks: 2})
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	x, y, ctx := normal(4, 4)(c, 0), normal(4, 3)(c, 1), context.Background()
	freed := normal(4, 4)(c, 0)
	freed.Free()
	number := torch.Scalar(c, float32(1))
	three := normal(3, 4)(c, 0)
	for _, row := range []struct {
		reason string
		b      pipe.Batch
		want   []string
	}{
		{"no input", pipe.Batch{}, []string{"no input", "set Input to pipe.Rows(x)"}},
		{"an empty tuple", pipe.Batch{Input: []pipe.Value{}}, []string{"no input", "set Input to pipe.Rows(x)"}},
		{"nil in a tuple", pipe.Batch{Input: pipe.Rows(x, nil)}, []string{"input 1 is nil", "want a tensor"}},
		{"nil to be whole", pipe.Batch{Input: append(pipe.Rows(x), pipe.NoChunk(nil)...)},
			[]string{"input 1 is nil", "want a tensor"}},
		{"nothing in a tuple", pipe.Batch{Input: []pipe.Value{{}}}, []string{"input 0 is nil", "want a tensor"}},
		{"a number", pipe.Batch{Input: pipe.Rows(number)},
			[]string{"input 0 is float32[]", "no rows to split into micro-batches", "give it as pipe.NoChunk"}},
		{"a number in a tuple", pipe.Batch{Input: pipe.Rows(x, number)},
			[]string{"input 1 is float32[]", "no rows to split into micro-batches"}},
		{"nothing to split", pipe.Batch{Input: pipe.NoChunk(x, y)},
			[]string{"no input has rows", "at least one must be given as pipe.Rows"}},
		{"different rows", pipe.Batch{Input: append(pipe.NoChunk(x), pipe.Rows(x, three)...)},
			[]string{"input 1 has 4 rows and input 2 has 3", "except what is given as pipe.NoChunk"}},
		{"freed", pipe.Batch{Input: pipe.Rows(freed)}, []string{"input 0 was freed", "until the call returns"}},
		{"on another kind of device", pipe.Batch{Input: pipe.Rows(x, meta(c, 4, 4))},
			[]string{"input 1 is on meta", "the first stage on cpu:0", "make it there"}},
	} {
		row.b.Target = pipe.Rows(y)
		check := func(what string, err error) {
			t.Helper()
			for _, want := range append(row.want, "pipe: ") {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%s, %s: got %v, want %q", row.reason, what, err, want)
				}
			}
		}
		_, err := p.Step(ctx, row.b, squares{})
		check("Step", err)
		_, err = p.Forward(ctx, row.b)
		check("Forward", err)
		_, err = p.Infer(ctx, row.b)
		check("Infer", err)
	}
	for _, row := range []struct {
		reason string
		b      pipe.Batch
		loss   nn.Loss
		want   []string
	}{
		{"no loss", pipe.Batch{Input: pipe.Rows(x), Target: pipe.Rows(y)}, nil,
			[]string{"Step needs a loss", "Forward and Backward do without"}},
		{"no target", pipe.Batch{Input: pipe.Rows(x)}, squares{}, []string{"no target", "set Target to pipe.Rows(y)"}},
		{"nil", pipe.Batch{Input: pipe.Rows(x), Target: pipe.Rows(y, nil)}, squares{},
			[]string{"target 1 is nil", "want a tensor"}},
		{"freed", pipe.Batch{Input: pipe.Rows(x), Target: pipe.Rows(freed)}, squares{},
			[]string{"target 0 was freed", "until the call returns"}},
		{"other rows", pipe.Batch{Input: pipe.Rows(x), Target: pipe.Rows(three)}, squares{},
			[]string{"the input has 4 rows, the target 3", "both must have the same"}},
		{"rows that differ", pipe.Batch{Input: pipe.Rows(x), Target: pipe.Rows(y, three)}, squares{},
			[]string{"target 0 has 4 rows and target 1 has 3"}},
		{"on another kind of device", pipe.Batch{Input: pipe.Rows(x), Target: pipe.Rows(meta(c, 4, 3))}, squares{},
			[]string{"target 0 is on meta", "the last stage on cpu:1", "make it there"}},
	} {
		_, err := p.Step(ctx, row.b, row.loss)
		for _, want := range append(row.want, "pipe: ") {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: got %v, want %q", row.reason, err, want)
			}
		}
	}
	if _, err := p.Step(ctx, pipe.Batch{Input: pipe.Rows(x), Target: pipe.Rows(y)}, squares{}); err != nil {
		t.Errorf("after all that: %v", err)
	}
	nn.ZeroGrads(p.Model())
}

// What goes wrong between layers: the error has the coordinates of the layer, what it was given,
// and what would do.
func TestLayersSayWhatToDo(t *testing.T) {
	torchtest.Check(t)
	pair := func() nn.Layer {
		return tuples(func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor { return []*torch.Tensor{xs[0], c.Tanh(xs[0])} })
	}
	gives := func(f func(c *nn.Ctx, x *torch.Tensor) []*torch.Tensor) nn.Layer {
		return tuples(func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor { return f(c, xs[0]) })
	}
	tensors := func(xs ...*torch.Tensor) []*torch.Tensor { return xs }
	for _, row := range []struct {
		reason string
		layers []nn.Layer // the second is on stage 1
		loss   nn.Loss
		layer  string
		stage  int
		want   []string
	}{
		{"the model is given another type", []nn.Layer{nn.NewEmbedding(3, 4, nn.EmbeddingConfig{}), nn.NewTanh()},
			squares{}, "0", 0, []string{"aten::embedding(float32[3,4], float32[2,4])"}},
		{"another shape", []nn.Layer{nn.NewTanh(), nn.NewLinear(3, 4)}, squares{}, "1", 1,
			[]string{"float32[2,4], float32[4,3]", "cannot be multiplied"}},
		{"a tuple for a layer of one", []nn.Layer{pair(), nn.NewLinear(4, 4)}, squares{}, "1", 1,
			[]string{"Forward(float32[2,4], float32[2,4])", "takes one tensor and was given a tuple of 2",
				"make it with nn.Tuple"}},
		{"no tensor", []nn.Layer{nn.NewTanh(), gives(func(*nn.Ctx, *torch.Tensor) []*torch.Tensor { return nil })},
			squares{}, "1", 1, []string{"must return tensors that exist", "it returned an empty tuple"}},
		{"nil in a tuple", []nn.Layer{gives(func(_ *nn.Ctx, x *torch.Tensor) []*torch.Tensor { return tensors(x, nil) }), pair()}, squares{}, "0", 0, []string{"must return tensors that exist", "it returned float32[2,4], none"}},
		{"freed", []nn.Layer{nn.NewTanh(), gives(func(c *nn.Ctx, x *torch.Tensor) []*torch.Tensor { y := c.Tanh(x); y.Free(); return tensors(y) })}, squares{}, "1", 1, []string{"must return tensors that exist", "it returned freed"}},
		{"a child that is not declared", []nn.Layer{nn.NewTanh(),
			layer(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.Run(x, nn.NewDropout(0.5)) })}, squares{}, "1", 1,
			[]string{`*nn.Dropout is no declared child of *pipe_test.call, layer "1", which runs it`,
				`call Child("dropout", the *nn.Dropout) of the *pipe_test.call where it is made`}},
		{"a loss with layers that is no module", []nn.Layer{nn.NewTanh(), nn.NewTanh()}, layerLoss{}, "loss", 1,
			[]string{"*nn.Linear is run by the loss pipe_test.layerLoss, which is no module",
				"embed nn.Base in the loss", `call Child("linear", the *nn.Linear) of the loss`}},
		{"a tuple for a loss of one", []nn.Layer{nn.NewTanh(), pair()}, squares{}, "loss", 1,
			[]string{"loss(float32[2,4], float32[2,4], float32[2,4])", "the model gives a tuple of 2",
				"a tuple of 1 targets", "nn.TupleLoss"}},
		{"a loss that is no number", []nn.Layer{nn.NewTanh(), nn.NewTanh()}, rowLoss{}, "loss", 1,
			[]string{"a loss must be a number", "it is float32[2]"}},
		{"a loss that is nothing", []nn.Layer{nn.NewTanh(), nn.NewTanh()}, noLoss{}, "loss", 1,
			[]string{"a loss must be a number", "it is none"}},
	} {
		p := started(t, nn.NewSequential(row.layers...), pipe.Config{Balance: []int{1, 1}, Chunks: 2})
		c := torch.NewCtx(torch.Options{})
		_, err := p.Step(context.Background(),
			pipe.Batch{Input: pipe.Rows(normal(4, 4)(c, 0)), Target: pipe.Rows(normal(4, 4)(c, 1))}, row.loss)
		var e *pipe.Error
		var op *torch.Error
		if !errors.As(err, &e) || e.Layer != row.layer || e.Stage != row.stage || e.MicroBatch != 0 || e.Direction != schedule.Forward || !errors.As(err, &op) {
			t.Errorf("%s: got %v, want an operator's failure in layer %q on stage %d", row.reason, err, row.layer, row.stage)
		}
		for _, want := range row.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %q is not in: %v", row.reason, want, err)
			}
		}
		c.Close()
	}
}

// rowLoss gives each row its loss, noLoss none.
type rowLoss struct{ squares }

func (rowLoss) Forward(c *nn.Ctx, y, _ *torch.Tensor) *torch.Tensor {
	return c.SumDim(y, []int64{1}, false)
}

// layerLoss compares what a layer makes of the output.
type layerLoss struct{ squares }

func (l layerLoss) Forward(c *nn.Ctx, y, t *torch.Tensor) *torch.Tensor {
	return l.squares.Forward(c, c.Run(y, nn.NewLinear(4, 4)), t)
}

type noLoss struct{ squares }

func (noLoss) Forward(*nn.Ctx, *torch.Tensor, *torch.Tensor) *torch.Tensor { return nil }
