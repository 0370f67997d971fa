package nn_test

import (
	"runtime"
	"slices"
	"strings"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/torch"
)

// tiedHead is a language model whose head is its embedding.
func tiedHead(words, dim int64, bias bool) *nn.Sequential {
	embedding := nn.NewEmbedding(words, dim, nn.EmbeddingConfig{})
	return nn.NewSequential().Add("embedding", embedding).Add("body", nn.NewLinear(dim, dim)).Add("tanh", nn.NewTanh()).Add("head", nn.NewLinearShared(embedding.Weight, bias))
}

func head(model *nn.Sequential) *nn.Linear { return model.Layers()[3].Layer.(*nn.Linear) }

// backward runs the model on words and leaves its gradients.
func backward(c *torch.Ctx, model *nn.Sequential) {
	y := model.Forward(nn.NewCtx(c, nn.Config{Training: true}), torch.From(c, []int64{3, 0, 6, 3}))
	c.Backward([]*torch.Tensor{y}, []*torch.Tensor{c.OnesLike(y)}, false)
}

func TestASharedParameterIsThereOnce(t *testing.T) {
	a := newAccount(t, true)
	model := tiedHead(7, 4, true)
	for _, row := range []struct{ what, got, want string }{
		{"state", names(nn.State(model)), "embedding.weight body.weight body.bias head.bias"},
		{"parameters", names(nn.Params(model)), "embedding.weight body.weight body.bias head.bias"},
		{"shared", names(nn.Shared(model)), "embedding.weight head.weight"},
		{"of the head alone", names(model.Layers()[3].State()), "head.weight head.bias"},
	} {
		if row.got != row.want {
			t.Errorf("%s: got %s, want %s", row.what, row.got, row.want)
		}
	}
	const count = 7*4 + 4*4 + 4 + 7
	if n := nn.Count(model); n != count {
		t.Errorf("%d parameters, want %d", n, count)
	}
	a.start()
	nn.Materialise(a.Ctx, nn.State(model), 1)
	if a.used() != 4*count {
		t.Errorf("they take %d bytes, want %d", a.used(), 4*count)
	}
	backward(a.Ctx, model)
	a.Close()
	if a.used() != 2*4*count {
		t.Errorf("with gradients they take %d bytes, want %d", a.used(), 2*4*count)
	}
	nn.ZeroGrads(model)
	if a.used() != 4*count {
		t.Errorf("without gradients again they take %d bytes, want %d", a.used(), 4*count)
	}
	nn.Free(model)
	if a.used() != 0 || head(model).Weight.Exists() {
		t.Errorf("%d bytes are left, the head's weight exists: %v", a.used(), head(model).Weight.Exists())
	}
}

// The values are those of the name that comes first, whichever module declared the parameter and
// whichever handle it is set through.
func TestHandlesStandForOneParameter(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	shared := nn.NewEmbedding(7, 4, nn.EmbeddingConfig{})
	lone, tied := nn.NewSequential().Add("first", nn.NewEmbedding(7, 4, nn.EmbeddingConfig{})), nn.NewSequential().Add("first", nn.NewLinearShared(shared.Weight, false)).Add("second", shared)
	for _, m := range []*nn.Sequential{lone, tied} {
		nn.Materialise(c, nn.State(m), 1)
		defer nn.Free(m)
	}
	if got := names(nn.State(tied)); got != "first.weight" {
		t.Errorf("the state is %s", got)
	}
	if !slices.Equal(torch.Bytes(nn.State(lone)[0].Tensor()), torch.Bytes(shared.Weight.Tensor())) {
		t.Error("a parameter that is declared last and listed first has not the values of its first name")
	}
	handle := nn.State(tied)[0].Param
	mine := c.Keep(c.Ones(torch.Float32, 7, 4))
	handle.SetTensor(mine)
	if handle.Tensor() != mine || shared.Weight.Tensor() != mine || !mine.RequiresGrad() {
		t.Error("a value set through a handle is not the parameter's")
	}
	if handle == shared.Weight || handle.Owner() != shared.Weight || shared.Weight.Owner() != shared.Weight || handle.DType() != torch.Float32 || handle.Numel() != 28 {
		t.Error("the handle is another parameter")
	}
}

func TestAHandleIsSharedAgain(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	first := nn.NewLinear(4, 4)
	second := nn.NewLinearShared(first.Weight, true)
	third := nn.NewLinearShared(second.Weight, false)
	third.Bias = third.Share("bias", second.Bias)
	model := nn.NewSequential(first, second, third)
	for _, row := range []struct{ what, got, want string }{
		{"state", names(nn.State(model)), "0.weight 0.bias 1.bias"},
		{"shared", names(nn.Shared(model)), "0.weight 1.weight 1.bias 2.weight 2.bias"},
	} {
		if row.got != row.want {
			t.Errorf("%s: got %s, want %s", row.what, row.got, row.want)
		}
	}
	nn.Materialise(c, nn.State(model), 1)
	defer nn.Free(model)
	if third.Weight.Owner() != first.Weight || third.Weight.Tensor() != first.Weight.Tensor() || third.Bias.Tensor() != second.Bias.Tensor() || first.Bias.Shared() {
		t.Error("a handle on a handle stands for something else")
	}
}

func TestWhatIsDoneThroughAHandleIsDoneToTheParameter(t *testing.T) {
	for _, row := range []struct {
		reason string
		do     func(handle *nn.Param)
		check  func(c *torch.Ctx, model *nn.Sequential) bool
	}{
		{"freezing", (*nn.Param).Freeze, func(c *torch.Ctx, model *nn.Sequential) bool {
			return names(nn.Params(model)) == "body.weight body.bias" && !nn.State(model)[0].Tensor().RequiresGrad() && c.GradOf(nn.State(model)[0].Tensor()) == nil &&
				c.GradOf(nn.State(model)[1].Tensor()) != nil
		}},
		{"another initialiser", func(handle *nn.Param) { handle.SetInit(nn.Ones) }, func(c *torch.Ctx, model *nn.Sequential) bool {
			values := torch.Values[float32](nn.State(model)[0].Tensor())
			return slices.Min(values) == 1 && slices.Max(values) == 1
		}},
	} {
		t.Run(row.reason, func(t *testing.T) {
			c := torchtest.New(t, torch.Options{Grad: true})
			model := tiedHead(7, 4, false)
			defer nn.Free(model)
			row.do(head(model).Weight)
			nn.Materialise(c, nn.State(model), 1)
			backward(c, model)
			if !row.check(c, model) {
				t.Error("it had no effect on the parameter")
			}
		})
	}
}

func TestSharedBuffersAreBuffers(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	norm, user := nn.NewBatchNorm1d(2, nn.BatchNormConfig{}), doing(nil)
	handle := user.Share("mean", norm.RunningMean)
	model := nn.NewSequential(norm, user)
	nn.Materialise(c, nn.State(model), 1)
	defer nn.Free(model)
	if !handle.IsBuffer() || handle.Trainable() || names(nn.Buffers(model)) != "0.running_mean 0.running_var 0.num_batches_tracked" {
		t.Errorf("buffers are %s", names(nn.Buffers(model)))
	}
	norm.Forward(nn.NewCtx(c, nn.Config{Training: true}), torch.From(c, []float32{1, 2, 3, 4}, 2, 2))
	if got := torch.Values[float32](handle.Tensor()); !slices.Equal(got, torch.Values[float32](norm.RunningMean.Tensor())) || got[0] == 0 {
		t.Errorf("through the handle the mean is %v", got)
	}
}

// gradient is a leaf's, which it loses.
func gradient(c *torch.Ctx, leaf *torch.Tensor) []float32 {
	g := torch.Values[float32](c.GradOf(leaf))
	leaf.SetGradOf(nil)
	return g
}

func sum(a, b []float32) []float32 {
	out := make([]float32, len(a))
	for i := range a {
		out[i] = a[i] + b[i]
	}
	return out
}

// The uses of one backward are summed before they are added to what is there: so they would be if
// each use had its own tensor, on a stage of its own.
func TestGradientsOfASharedParameterAccumulateBackwardByBackward(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	c := torchtest.New(t, torch.Options{Grad: true})
	first := nn.NewLinearNoBias(4, 4)
	model := nn.NewSequential(first, nn.NewLinearShared(first.Weight, false), nn.NewLinearShared(first.Weight, false))
	nn.Materialise(c, nn.State(model), 1)
	defer nn.Free(model)
	run := func(seed uint64) {
		c.SetSeed(seed)
		y := model.Forward(nn.NewCtx(c, nn.Config{Training: true}), c.Normal_(c.Empty(torch.Float32, 5, 4), 0, 1))
		c.Backward([]*torch.Tensor{y}, []*torch.Tensor{c.OnesLike(y)}, false)
	}
	run(1)
	one := gradient(c, first.Weight.Tensor())
	run(2)
	two := gradient(c, first.Weight.Tensor())
	run(1)
	run(2)
	if got, want := gradient(c, first.Weight.Tensor()), sum(one, two); !slices.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

// A replica takes the gradient of its handle alone; the parts add up to the whole.
func TestReplicas(t *testing.T) {
	c := torchtest.New(t, torch.Options{Grad: true})
	model := tiedHead(7, 4, false)
	nn.Materialise(c, nn.State(model), 1)
	defer nn.Free(model)
	embedding, handle := nn.State(model)[0].Param, head(model).Weight
	whole := embedding.Tensor()
	backward(c, model)
	want := gradient(c, whole)

	for _, row := range []struct {
		reason       string
		replica, own *nn.Param // which of the two has a replica, and which not
	}{{"of a handle", handle, embedding}, {"of the parameter itself", embedding, handle}} {
		replica := c.Clone(c.Detach(whole)).SetRequiresGrad(true)
		row.replica.Replicate(replica)
		if row.replica.Tensor() != replica || row.replica.Replica() != replica || row.own.Tensor() != whole || row.own.Replica() != nil {
			t.Errorf("%s: it is not used", row.reason)
		}
		nn.ZeroGrads(model)
		backward(c, model)
		apart := gradient(c, replica)
		if slices.Equal(apart, want) || !slices.Equal(sum(apart, gradient(c, whole)), want) {
			t.Errorf("%s: the gradients do not add up", row.reason)
		}
		backward(c, model)
		if nn.ZeroGrads(model); whole.HasGrad() || !replica.HasGrad() {
			t.Errorf("%s: ZeroGrads is for the value's gradient: it is there: %v, the replica's: %v", row.reason, whole.HasGrad(), replica.HasGrad())
		}
		replica.SetGradOf(nil)
		row.replica.Replicate(nil)
		if row.replica.Tensor() != whole || row.replica.Replica() != nil || replica.Freed() {
			t.Errorf("%s: taken away, it is still used, or freed", row.reason)
		}
	}
}

func TestSharingRefuses(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	first := nn.NewLinearNoBias(4, 3)
	second := nn.NewLinearShared(first.Weight, true)
	for _, row := range []struct {
		reason, want string
		f            func()
	}{
		{"nothing to share", "nn: Share: the parameter is nil; a layer made without it has none to share", func() { second.Share("more", first.Bias) }},
		{"a vector as a weight", "nn: Linear: the shared weight's shape is [3]; it must be [out, in]", func() { nn.NewLinearShared(second.Bias, false) }},
		{"a name twice", `"weight" is declared twice`, func() { second.Share("weight", first.Weight) }},
		{"a replica of another shape", "nn: a parameter of float32[3 4] cannot hold float32[4,3]", func() { second.Weight.Replicate(c.Ones(torch.Float32, 4, 3)) }},
		{"a replica of another type", "nn: a parameter of float32[3 4] cannot hold float64[3,4]", func() { first.Weight.Replicate(c.Ones(torch.Float64, 3, 4)) }},
		{"a value of another shape, through a handle", "nn: a parameter of float32[3 4] cannot hold float32[12]", func() { second.Weight.SetTensor(c.Ones(torch.Float32, 12)) }},
		{"use before it exists", "nn: a parameter is used before it exists; call nn.Materialise or pipe.New first", func() { second.Weight.Tensor() }},
	} {
		if got := recovered(row.f); !strings.Contains(got, row.want) {
			t.Errorf("%s: got %q, want %q in it", row.reason, got, row.want)
		}
	}
}
