// Command rotor is rotor's tutorial, step by step: a small network on images like MNIST's, trained plainly, then under a limit of bytes, then with measuring, planning and running called one by one, and at last
// with the structure that a plan can and cannot cut. It prints what each step's peak was to be and what it was.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"

	"penstock/autoremat"
	"penstock/data"
	"penstock/nn"
	"penstock/optim"
	"penstock/remat"
	"penstock/remat/baselines"
	"penstock/torch"
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
	s := &school{out: out, set: set, batch: batch, steps: steps}
	for _, part := range []func() error{s.plainly, s.limited, s.byHand, s.structured} {
		if err := part(); err != nil {
			return err
		}
	}
	return nil
}

// images is Fashion-MNIST from its usual place, or made-up images where it is not installed.
func images(out io.Writer) (data.Dataset, error) {
	set, _, err := data.Open("fashion-mnist", "", data.Options{})
	if errors.Is(err, os.ErrNotExist) {
		fmt.Fprintln(out, "fashion-mnist is not installed (Debian's dataset-fashion-mnist): images are made up")
		set, _, err = data.Open("synthetic", "", data.Options{Synthetic: data.Synthetic{Train: 4096}})
	}
	return set, err
}

// network is the tutorial's model, pixels in and logarithms of probabilities out, with more layers between, so that there is something to choose.
func network() *nn.Sequential {
	m := nn.NewSequential(nn.NewFlatten(1, -1), nn.NewLinear(28*28, 256), nn.NewReLU())
	for i := range 8 {
		m.Add(fmt.Sprint("hidden", i), nn.NewLinear(256, 256))
		m.Add(fmt.Sprint("relu", i), nn.NewReLU())
	}
	return m.Add("head", nn.NewLinear(256, 10)).Add("likely", nn.NewLogSoftmax(1))
}

// likelihood is the negative log-likelihood: cross-entropy takes the logarithm of the softmax of what it is given, which of such logarithms are themselves.
var likelihood = nn.CrossEntropy()

// school is what all parts train with.
type school struct {
	out          io.Writer
	set          data.Dataset
	batch, steps int

	plainPeak int64 // of plain training
}

func (s *school) say(format string, args ...any) { fmt.Fprintf(s.out, format+"\n", args...) }

// lesson is a model, its optimizer, and a context that they live in.
type lesson struct {
	*school
	c     *torch.Ctx
	model *nn.Sequential
	adam  optim.Optimizer
}

// with makes a lesson of a model and frees everything when f is done.
func (s *school) with(model *nn.Sequential, f func(l *lesson) error) error {
	c := torch.NewCtx(torch.Options{Seed: 1, Threads: 2})
	defer c.Close()
	nn.Materialise(c, nn.State(model), 1)
	defer nn.Free(model)
	adam, err := optim.Adam(optim.Config{LR: 1e-3})
	if err != nil {
		return err
	}
	defer adam.Close()
	return f(&lesson{s, c, model, adam})
}

// batches are the training's, from the first on.
func (s *school) batches() (*data.Loader, error) {
	return data.NewLoader(s.set, data.LoaderConfig{BatchSize: s.batch, Seed: 1, Shuffle: true, DropLast: true})
}

// next is a batch; the context's.
func (l *lesson) next(loader *data.Loader) (x, y *torch.Tensor, err error) {
	b, err := loader.Next(context.Background())
	if err == io.EOF {
		b, err = loader.Next(context.Background()) // of the next epoch
	}
	if err != nil {
		return nil, nil, err
	}
	return torch.From(l.c, b.Input.Float32, b.Input.Shape...), torch.From(l.c, b.Target.Int64, b.Target.Shape...), nil
}

// train is the training loop: it does not care whether net is a model or a module. It returns the last loss and the most bytes of a step, the first one left out.
func (l *lesson) train(net nn.Layer) (loss float64, peak int64, err error) {
	c := l.c
	defer c.Close()
	loader, err := l.batches()
	if err != nil {
		return 0, 0, err
	}
	defer loader.Close()
	for step := range l.steps {
		x, y, err := l.next(loader)
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
			l.adam.Step(c, nn.Params(l.model))
			loss = float64(torch.Item[float32](lost))
		})
		if err != nil {
			return 0, 0, err
		}
		if step > 0 {
			peak = max(peak, c.Device().Memory().Peak)
		}
		nn.ZeroGrads(l.model)
		c.Close() // frees what the step has made; the context goes on
	}
	return loss, peak, nil
}

// plainly trains the model as it is.
func (s *school) plainly() error {
	return s.with(network(), func(l *lesson) error {
		loss, peak, err := l.train(l.model)
		s.plainPeak = peak
		s.say("1. plain training:         loss %.4f, peak %d bytes", loss, peak)
		return err
	})
}

// limited trains a module of the model: the same loop, and the same loss to the last bit.
func (s *school) limited() error {
	return s.with(network(), func(l *lesson) error {
		// A limit that is too low says which one would do.
		greedy, err := autoremat.New(l.model, autoremat.Config{Limit: 1 << 20, Optimizer: l.adam})
		if err != nil {
			return err
		}
		_, _, err = l.train(greedy)
		greedy.Close()
		var refused *autoremat.LimitError
		if !errors.As(err, &refused) {
			return fmt.Errorf("a limit of 1 MiB: %w", err)
		}
		s.say("2. %v", refused)

		limit := refused.Least + max(0, s.plainPeak-refused.Least)/4
		m, err := autoremat.New(l.model, autoremat.Config{Limit: limit, Optimizer: l.adam, Report: func(r autoremat.Report) { s.say("   %v", r) }})
		if err != nil {
			return err
		}
		defer m.Close()
		loss, peak, err := l.train(m)
		s.say("   under %d bytes: loss %.4f, peak %d bytes, predicted %d", limit, loss, peak, m.Predicted())
		return err
	})
}

// byHand measures, solves and runs in three calls, and tries plans that nobody would have found by solving.
func (s *school) byHand() error {
	return s.with(network(), func(l *lesson) error {
		m, err := autoremat.New(l.model, autoremat.Config{Limit: 1 << 40, Optimizer: l.adam, Loss: likelihood})
		if err != nil {
			return err
		}
		defer m.Close()
		loader, err := l.batches()
		if err != nil {
			return err
		}
		defer loader.Close()
		x, y, err := l.next(loader)
		if err != nil {
			return err
		}
		l.c.SetGrad(true)
		n := nn.NewCtx(l.c, nn.Config{Training: true})
		if err := m.Measure(context.Background(), n, autoremat.Sample{Input: []*torch.Tensor{x}, Target: []*torch.Tensor{y}}); err != nil {
			return err
		}
		chain, err := m.Chain()
		if err != nil {
			return err
		}
		s.say("3. measured: %d units of %d layers", len(chain.Layers), len(l.model.Layers()))
		sequential, err := baselines.Sequential(len(chain.Layers), 2)
		if err != nil {
			return err
		}
		for _, known := range []struct {
			name string
			ops  []remat.Op
		}{{"saving everything", baselines.None(len(chain.Layers))}, {"computing everything again", baselines.All(len(chain.Layers))}, {"checkpoints of two segments", sequential}} {
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
		var refused *autoremat.LimitError
		if _, err := m.Solve(context.Background(), 1); !errors.As(err, &refused) {
			return fmt.Errorf("a limit of one byte: %w", err)
		}
		if _, err := m.SetLimit(context.Background(), refused.Least); err != nil {
			return err
		}
		l.c.SetGrad(false)
		l.c.Close()
		loss, peak, err := l.train(m)
		s.say("   solved for the least limit, %d bytes: loss %.4f, peak %d bytes, predicted %d", refused.Least, loss, peak, m.Predicted())
		s.say("%v", m)
		return err
	})
}

// structured has Sequentials in Sequentials, which are flattened, one that is not to be cut, and layers that work in place, which go with the one before.
func (s *school) structured() error {
	model := nn.NewSequential(
		nn.NewFlatten(1, -1),
		nn.NewSequential(nn.NewLinear(28*28, 256), nn.NewReLUInPlace()),
		autoremat.Atomic(nn.NewSequential(nn.NewLinear(256, 256), nn.NewReLU(), nn.NewLinear(256, 256), nn.NewReLU())),
		nn.NewSequential(nn.NewLinear(256, 10), nn.NewLogSoftmax(1)),
	)
	return s.with(model, func(l *lesson) error {
		m, err := autoremat.New(model, autoremat.Config{Limit: 1 << 40, Optimizer: l.adam})
		if err != nil {
			return err
		}
		defer m.Close()
		loss, peak, err := l.train(m)
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
