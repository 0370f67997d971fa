// Command rotor is rotor's tutorial, step by step, with a small network on images like MNIST's.
//
//  1. It trains the network plainly.
//  2. It trains it under a limit of bytes.
//  3. It measures, plans and runs in separate calls.
//  4. It shows which structure a plan can cut and which it cannot.
//
// It prints the predicted and the measured peak of each step.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"

	"penstock.example/autoremat"
	"penstock.example/data"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/planner"
	"penstock.example/remat"
	"penstock.example/torch"
)

func main() {
	batch := flag.Int("batch", 2048, "images in a batch")
	steps := flag.Int("steps", 20, "steps of each training")
	flag.Parse()
	log.SetFlags(0)
	if err := tutorial(os.Stdout, *batch, *steps); err != nil {
		log.Fatal(err)
	}
}

// tutorial runs all parts.
func tutorial(out io.Writer, batch, steps int) error {
	set, err := images(out)
	if err != nil {
		return err
	}
	s := &setup{out: out, set: set, batch: batch, steps: steps}
	for _, part := range []func() error{s.plainly, s.limited, s.byHand, s.structured} {
		if err := part(); err != nil {
			return err
		}
	}
	return nil
}

// images returns Fashion-MNIST from its usual place, or synthetic images where it is not installed.
func images(out io.Writer) (data.Dataset, error) {
	set, _, err := data.Open("fashion-mnist", "", data.Options{})
	if errors.Is(err, os.ErrNotExist) {
		fmt.Fprintln(out, "fashion-mnist is not installed (Debian's dataset-fashion-mnist): images are made up")
		set, _, err = data.Open("synthetic", "", data.Options{Synthetic: data.Synthetic{Train: 4096}})
	}
	return set, err
}

// network returns the tutorial's model, from pixels to logarithms of probabilities. It has more
// layers than the task needs, so that a plan has choices.
func network() *nn.Sequential {
	m := nn.NewSequential(nn.NewFlatten(1, -1), nn.NewLinear(28*28, 256), nn.NewReLU())
	for i := range 8 {
		m.Add(fmt.Sprint("hidden", i), nn.NewLinear(256, 256))
		m.Add(fmt.Sprint("relu", i), nn.NewReLU())
	}
	return m.Add("head", nn.NewLinear(256, 10)).Add("likely", nn.NewLogSoftmax(1))
}

// likelihood is the negative log-likelihood. Cross-entropy applies log-softmax to its input, which
// leaves logarithms of probabilities as they are.
var likelihood = nn.CrossEntropy()

// setup is what all parts train with.
type setup struct {
	out          io.Writer
	set          data.Dataset
	batch, steps int

	plainPeak int64 // peak of plain training, bytes
}

func (s *setup) say(format string, args ...any) { fmt.Fprintf(s.out, format+"\n", args...) }

// training is a model and its optimizer on a context.
type training struct {
	*setup
	c     *torch.Ctx
	model *nn.Sequential
	adam  optim.Optimizer
}

// with calls f with a training of a model, and frees everything when f returns.
func (s *setup) with(model *nn.Sequential, f func(t *training) error) error {
	c := torch.NewCtx(torch.Options{Seed: 1, Threads: 2})
	defer c.Close()
	nn.Materialise(c, nn.State(model), 1)
	defer nn.Free(model)
	adam, err := optim.Adam(optim.Config{LR: 1e-3})
	if err != nil {
		return err
	}
	defer adam.Close()
	return f(&training{s, c, model, adam})
}

// batches returns a loader of the training batches, from the first on.
func (s *setup) batches() (*data.Loader, error) {
	return data.NewLoader(s.set, data.LoaderConfig{BatchSize: s.batch, Seed: 1, Shuffle: true, DropLast: true})
}

// next returns the next batch; the context owns it.
func (t *training) next(loader *data.Loader) (x, y *torch.Tensor, err error) {
	b, err := loader.Next(context.Background())
	if err == io.EOF {
		b, err = loader.Next(context.Background()) // of the next epoch
	}
	if err != nil {
		return nil, nil, err
	}
	return torch.From(t.c, b.Input.Float32, b.Input.Shape...), torch.From(t.c, b.Target.Int64, b.Target.Shape...), nil
}

// train is the training loop. It is the same for a model and a module. It returns the last loss and
// the peak of the steps in bytes, without the first step.
func (t *training) train(net nn.Layer) (loss float64, peak int64, err error) {
	c := t.c
	defer c.Close()
	loader, err := t.batches()
	if err != nil {
		return 0, 0, err
	}
	defer loader.Close()
	for step := range t.steps {
		x, y, err := t.next(loader)
		if err != nil {
			return 0, 0, err
		}
		c.Device().ResetPeak()
		n := nn.NewCtx(c, nn.Config{Training: true, Seed: uint64(step)})
		err = torch.Try(func() {
			c.SetGrad(true)
			lost := likelihood.Forward(n, net.Forward(n, x), y)
			c.SetGrad(false)
			c.Backward([]*torch.Tensor{lost}, []*torch.Tensor{nil}, false)
			t.adam.Step(c, nn.Params(t.model))
			loss = float64(torch.Item[float32](lost))
		})
		if err != nil {
			return 0, 0, err
		}
		if step > 0 {
			peak = max(peak, c.Device().Memory().Peak)
		}
		nn.ZeroGrads(t.model)
		c.Close() // frees what the step has made; the context can be used again
	}
	return loss, peak, nil
}

// plainly trains the model as it is.
func (s *setup) plainly() error {
	return s.with(network(), func(t *training) error {
		loss, peak, err := t.train(t.model)
		s.plainPeak = peak
		s.say("1. plain training:         loss %.4f, peak %d bytes", loss, peak)
		return err
	})
}

// limited trains a module of the model, with the same loop and the same loss to the last bit.
func (s *setup) limited() error {
	return s.with(network(), func(t *training) error {
		// A limit that is too low says which one would do.
		low, err := autoremat.New(t.model, autoremat.Config{Limit: 1 << 20, Optimizer: t.adam})
		if err != nil {
			return err
		}
		_, _, err = t.train(low)
		low.Close()
		var refused *planner.MemoryError
		if !errors.As(err, &refused) {
			return fmt.Errorf("a limit of 1 MiB: %w", err)
		}
		s.say("2. %v", err)

		limit := refused.Least() + max(0, s.plainPeak-refused.Least())/4
		m, err := autoremat.New(t.model, autoremat.Config{
			Limit: limit, Optimizer: t.adam,
			Report: func(r autoremat.Report) { s.say("   %v", r) },
		})
		if err != nil {
			return err
		}
		defer m.Close()
		loss, peak, err := t.train(m)
		s.say("   under %d bytes: loss %.4f, peak %d bytes, predicted %d", limit, loss, peak, m.Predicted())
		return err
	})
}

// byHand measures, solves and runs in three calls, and sets baseline plans that no solver made.
func (s *setup) byHand() error {
	return s.with(network(), func(t *training) error {
		m, err := autoremat.New(t.model, autoremat.Config{Limit: 1 << 40, Optimizer: t.adam, Loss: likelihood})
		if err != nil {
			return err
		}
		defer m.Close()
		loader, err := t.batches()
		if err != nil {
			return err
		}
		defer loader.Close()
		x, y, err := t.next(loader)
		if err != nil {
			return err
		}
		t.c.SetGrad(true)
		n := nn.NewCtx(t.c, nn.Config{Training: true})
		sample := autoremat.Sample{Input: []*torch.Tensor{x}, Target: []*torch.Tensor{y}}
		if err := m.Measure(context.Background(), n, sample); err != nil {
			return err
		}
		chain, err := m.Chain()
		if err != nil {
			return err
		}
		s.say("3. measured: %d units of %d layers", len(chain.Layers), len(t.model.Layers()))
		sequential, err := remat.Sequential(len(chain.Layers), 2)
		if err != nil {
			return err
		}
		for _, known := range []struct {
			name string
			ops  []remat.Op
		}{
			{"saving everything", remat.None(len(chain.Layers))},
			{"computing everything again", remat.All(len(chain.Layers))},
			{"checkpoints of two segments", sequential},
		} {
			if err := m.SetPlan(remat.Plan{Ops: known.ops}); err != nil {
				return err
			}
			p, err := m.Plan()
			if err != nil {
				return err
			}
			s.say("   %s: %s", known.name, remat.FormatOps(p.Ops))
		}
		// The least limit is in the error of one that is too low.
		var refused *planner.MemoryError
		if _, err := m.Solve(context.Background(), 1); !errors.As(err, &refused) {
			return fmt.Errorf("a limit of one byte: %w", err)
		}
		if _, err := m.SetLimit(context.Background(), refused.Least()); err != nil {
			return err
		}
		t.c.SetGrad(false)
		t.c.Close()
		loss, peak, err := t.train(m)
		s.say("   solved for the least limit, %d bytes: loss %.4f, peak %d bytes, predicted %d",
			refused.Least(), loss, peak, m.Predicted())
		s.say("%v", m)
		return err
	})
}

// structured trains nested Sequentials, which are flattened, one that must not be cut, and layers
// that work in place, which join the unit before them.
func (s *setup) structured() error {
	model := nn.NewSequential(
		nn.NewFlatten(1, -1),
		nn.NewSequential(nn.NewLinear(28*28, 256), nn.NewReLUInPlace()),
		autoremat.Atomic(nn.NewSequential(nn.NewLinear(256, 256), nn.NewReLU(), nn.NewLinear(256, 256), nn.NewReLU())),
		nn.NewSequential(nn.NewLinear(256, 10), nn.NewLogSoftmax(1)),
	)
	return s.with(model, func(t *training) error {
		m, err := autoremat.New(model, autoremat.Config{Limit: 1 << 40, Optimizer: t.adam})
		if err != nil {
			return err
		}
		defer m.Close()
		loss, peak, err := t.train(m)
		if err != nil {
			return err
		}
		chain, err := m.Chain()
		if err != nil {
			return err
		}
		s.say("4. nested: units of %v layers, loss %.4f, peak %d bytes, predicted %d", chain.Units, loss, peak, m.Predicted())
		for _, j := range chain.Merged {
			s.say("   %q is in one unit with the layer before it: %s", j.Layer, j.Reason)
		}
		return nil
	})
}
