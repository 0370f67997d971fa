package train_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"penstock.example/data"
	"penstock.example/group"
	"penstock.example/internal/must"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/torch"
	"penstock.example/train"
)

// trainedIn saves a run of four steps.
func trainedIn(t testing.TB, g *group.Group, balance []int, dir string) {
	t.Helper()
	s, closer := newRig(t, setup{balance: balance, group: g})
	defer closer()
	s.Steps = 4
	s.run(t)
	save(t, train.Store{Dir: dir, Group: g}, s)
}

// evaluating is a pipe over the network, with the weights of a checkpoint and no optimizer.
func evaluating(t testing.TB, c *train.Checkpoint, balance []int) (*pipe.Pipe, *nn.Sequential) {
	t.Helper()
	model := network()
	p := must.Get(pipe.New(model, pipe.Config{Balance: balance, Chunks: 3, Seed: 99}))(t)
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		nn.Free(model)
	})
	must.Do(t, c.RestoreModel(p))
	return p, model
}

// ignoring has no label for the second half of another set.
type ignoring struct{ data.Dataset }

func (s ignoring) Fill(b *data.Batch, indices []int) error {
	err := s.Dataset.Fill(b, indices)
	for i, sample := range indices {
		if sample >= s.Len()/2 {
			b.Target.Int64[i] = -100
		}
	}
	return err
}

// direct is the loss and the accuracy of a model on the whole set at once, without a pipe.
func direct(t testing.TB, model *nn.Sequential, set data.Dataset) (loss, accuracy float64) {
	t.Helper()
	indices := make([]int, set.Len())
	for i := range indices {
		indices[i] = i
	}
	var b data.Batch
	must.Do(t, set.Fill(&b, indices))
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	n := nn.NewCtx(c, nn.Config{})
	y := model.Forward(n, torch.From(c, b.Input.Float32, b.Input.Shape...))
	target := torch.From(c, b.Target.Int64, b.Target.Shape...)
	right := torch.Item[int64](c.Sum(c.Op("aten::eq.Tensor", c.Argmax(y, 1), target)))
	return float64(torch.Item[float32](nn.CrossEntropy().Forward(n, y, target))),
		float64(right) / float64(torch.Item[int64](c.Sum(c.Op("aten::ge.Scalar", target, 0))))
}

// Evaluate has the bits of the training run whatever the stages, from a checkpoint of any number of
// processes, and is what the model gives without a pipe for all labels at once; the optimizer's files
// need not be there.
func TestEvaluate(t *testing.T) {
	check(t)
	_, labelled := dataset(t)
	testing := ignoring{labelled}
	var want train.Evaluation
	for _, processes := range []int{1, 3} {
		dir := t.TempDir()
		inAll(t, processes, func(g *group.Group) error { trainedIn(t, g, []int{2, 3, 3}, dir); return nil })
		step := filepath.Join(dir, "step-000004")
		files, err := filepath.Glob(filepath.Join(step, "optimizer*"))
		if err != nil || len(files) != processes {
			t.Fatal(files, err)
		}
		for _, f := range files {
			must.Do(t, os.Remove(f))
		}
		c := must.Get(train.OpenCheckpoint(step))(t)
		for _, balance := range [][]int{nil, {8}, {3, 5}, {1, 2, 5}} {
			p, model := evaluating(t, c, balance)
			told := ""
			got := must.Get(train.Evaluate(context.Background(), p, testing,
				train.EvaluateConfig{Batch: 7, Loss: nn.CrossEntropy(),
					OnBatch: func(done, all int) { told += fmt.Sprintf("%d/%d ", done, all) }}))(t)
			if told != "7/20 14/20 20/20 " {
				t.Errorf("told %q", told)
			}
			if want.Loss == nil {
				want = got
				loss, accuracy := direct(t, model, testing)
				if math.Abs(*got.Loss-loss) > 1e-6 || *got.Accuracy != accuracy || got.MSE != nil ||
					got.Samples != 20 {
					t.Errorf("loss %v, accuracy %v; want %v, %v", *got.Loss, *got.Accuracy, loss, accuracy)
				}
			}
			if *got.Loss != *want.Loss || *got.Accuracy != *want.Accuracy {
				t.Errorf("%d processes, %v: loss %v, accuracy %v; want %v, %v", processes, balance,
					*got.Loss, *got.Accuracy, *want.Loss, *want.Accuracy)
			}
		}
	}
}

// Regression has a mean squared error, and a loss that is a sum is one.
func TestEvaluateRegression(t *testing.T) {
	check(t)
	set := must.Get(data.FromSlices([]float32{1, 2, 3}, []int64{1}, []float32{2, 2, 5}))(t)
	model := nn.NewSequential(nn.NewReLU(), nn.NewIdentity())
	p := must.Get(pipe.New(model, pipe.Config{Balance: []int{1, 1}, Chunks: 2}))(t)
	defer p.Close()
	e, err := train.Evaluate(context.Background(), p, set,
		train.EvaluateConfig{Batch: 2, Loss: nn.MSE(nn.LossConfig{Sum: true})})
	if err != nil || e.Accuracy != nil || *e.MSE != 5.0/3 || *e.Loss != 5 {
		t.Errorf("%+v, %v", e, err)
	}
	var values []float32
	err = train.Predict(context.Background(), p, set, train.EvaluateConfig{Batch: 2},
		func(i int, out []float32) error {
			values = append(values, float32(i))
			values = append(values, out...)
			return nil
		})
	if err != nil || !reflect.DeepEqual(values, []float32{0, 1, 1, 2, 2, 3}) {
		t.Errorf("%v, %v", values, err)
	}
}

// What is predicted are the probabilities of classes, in the order of the samples; what the function
// says ends it.
func TestPredict(t *testing.T) {
	check(t)
	dir := t.TempDir()
	trainedIn(t, nil, nil, dir)
	_, testing := dataset(t)
	p, _ := evaluating(t, latest(t, train.Store{Dir: dir}), []int{4, 4})
	var b data.Batch
	right, samples, loss := 0, 0, 0.0
	err := train.Predict(context.Background(), p, testing, train.EvaluateConfig{Batch: 7},
		func(i int, out []float32) error {
			if err := testing.Fill(&b, []int{i}); err != nil {
				return err
			}
			sum := 0.0
			for _, x := range out {
				sum += float64(x)
			}
			if i != samples || len(out) != 3 || math.Abs(sum-1) > 1e-6 {
				t.Errorf("sample %d: %v", i, out)
			}
			if train.Likely(out, 1)[0] == int(b.Target.Int64[0]) {
				right++
			}
			loss -= math.Log(float64(out[b.Target.Int64[0]])) / 20
			samples++
			return nil
		})
	e, err2 := train.Evaluate(context.Background(), p, testing,
		train.EvaluateConfig{Batch: 7, Loss: nn.CrossEntropy()})
	if cmp.Or(err, err2) != nil || float64(right)/20 != *e.Accuracy || math.Abs(loss-*e.Loss) > 1e-6 {
		t.Errorf("%d of %d right, loss %v; want %v, %v: %v, %v", right, samples, loss, *e.Accuracy, *e.Loss,
			err, err2)
	}
	enough := errors.New("enough")
	if err := train.Predict(context.Background(), p, testing, train.EvaluateConfig{Batch: 7},
		func(int, []float32) error { return enough }); !errors.Is(err, enough) {
		t.Error(err)
	}
	if got := train.Likely([]float32{0.2, 0.5, 0.2, 0.1}, 3); !reflect.DeepEqual(got, []int{1, 0, 2}) {
		t.Error(got)
	}
}

// Of a text the token after the last one that is there is predicted: what follows in the sample is not
// seen.
func TestPredictTokens(t *testing.T) {
	check(t)
	dir := t.TempDir()
	short, whole := filepath.Join(dir, "short"), filepath.Join(dir, "whole")
	write(t, short, "ab")
	write(t, whole, "xab")
	window := data.Spec{Kind: data.Int64, Shape: []int64{3}}
	set := must.Get(data.NewInputs(data.Info{Name: "text", Classes: 256, Source: data.Uint8, Input: window,
		Target: window}, nil, []string{short, whole}))(t)
	// a token sees itself alone
	model := nn.NewSequential(nn.NewEmbedding(256, 256, nn.EmbeddingConfig{}), &classesFirst{})
	p := must.Get(pipe.New(model, pipe.Config{Seed: 3}))(t)
	defer nn.Free(model)
	defer p.Close()
	var all [][]float32
	err := train.Predict(context.Background(), p, set, train.EvaluateConfig{Batch: 2},
		func(_ int, out []float32) error { all = append(all, out); return nil })
	if err != nil || len(all) != 2 || len(all[0]) != 256 || !reflect.DeepEqual(all[0], all[1]) {
		t.Errorf("%v, %v", all, err)
	}
}

// classesFirst makes [n, classes, positions] of [n, positions, classes].
type classesFirst struct{ nn.Base }

func (*classesFirst) Forward(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.Transpose(x, 1, 2) }

// A checkpoint of which a file is damaged is refused, and so is another model's.
func TestRestoreModelRefuses(t *testing.T) {
	check(t)
	dir := t.TempDir()
	trainedIn(t, nil, nil, dir)
	step := filepath.Join(dir, "step-000004")
	open := func(model *nn.Sequential) error {
		c := must.Get(train.OpenCheckpoint(step))(t)
		p := must.Get(pipe.New(model, pipe.Config{}))(t)
		defer nn.Free(model)
		defer p.Close()
		return c.RestoreModel(p)
	}
	var mismatch *train.MismatchError
	if err := open(nn.NewSequential(nn.NewFlatten(1, -1), nn.NewLinear(16, 13))); !errors.As(err,
		&mismatch) || mismatch.Field != `tensor "1.bias"` {
		t.Error(err)
	}
	file := filepath.Join(step, "model.safetensors")
	content := must.Get(os.ReadFile(file))(t)
	content[len(content)-1] ^= 1
	write(t, file, string(content))
	var damaged *train.DamagedError
	if err := open(network()); !errors.As(err, &damaged) || !strings.Contains(err.Error(), "hash") {
		t.Error(err)
	}
}
