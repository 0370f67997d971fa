package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"math"
	"runtime"

	"penstock.example/models"
	"penstock.example/nn"
	"penstock.example/profile"
	"penstock.example/remat"
	"penstock.example/remat/solver"
	"penstock.example/segment"
	"penstock.example/torch"
)

// stepper takes training steps with a network, by the operations of plans: forward, cross entropy,
// backward; no optimizer. Everything is on one device, whose account is read, with one thread,
// whose processor time counts. It belongs to the goroutine that made it, which is locked to its
// thread until close.
type stepper struct {
	network
	model  *nn.Sequential
	device torch.Device
	c      *torch.Ctx // nothing stays in it between operations
	data   *torch.Ctx // owns input and target
	loss   nn.Loss

	input, target *torch.Tensor

	chain   profile.Chain // what the device holds between steps, such as the input, is not counted in it
	segment *segment.Segment
	base    int64 // bytes that the device holds between steps: parameters, buffers, the batch
}

// stepSeed is of weights, batch and dropout.
const stepSeed = 7

// newStepper makes the network and measures it.
func newStepper(ctx context.Context, n network, device torch.Device, repeats int) (s *stepper, err error) {
	runtime.LockOSThread()
	s = &stepper{network: n, device: device, loss: nn.CrossEntropy()}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if s.model, err = models.New(n.Model, n.Options); err != nil {
		return s, err
	}
	s.c, s.data = torch.NewCtx(torch.Options{Device: device, Threads: 1}), torch.NewCtx(torch.Options{Device: device, Seed: stepSeed})
	if err = torch.Try(func() {
		nn.Materialise(s.c, nn.State(s.model), stepSeed)
		s.input, s.target, err = n.batch(s.data)
	}); err != nil {
		return s, err
	}
	layers := s.model.Layers()
	measured, err := profile.Measure(ctx, s.model, profile.Config{
		Device: device, Threads: 1, MicroBatches: 1, Repeats: repeats, Seed: stepSeed, Balance: []int{len(layers)}, Loss: s.loss, Target: []*torch.Tensor{s.target},
	}, s.input)
	if err != nil {
		return s, err
	}
	s.chain = measured.Chains[0]
	if s.chain.Prologue == 0 { // otherwise the chain begins with something that is made in the step
		s.chain.Chain = s.chain.Chain.WithoutInput()
	}
	routes, err := s.model.SkipRoutes()
	if err != nil {
		return s, err
	}
	s.segment, err = segment.New(segment.Config{Layers: layers, Routes: routes, Last: len(layers), Units: s.chain.Units})
	s.base = device.Memory().Live
	return s, err
}

func (s *stepper) close() {
	if s.c != nil {
		nn.ZeroGrads(s.model)
		nn.Free(s.model)
		s.c.Close()
		s.data.Close()
		s.device.SetLimit(0)
		s.device.Trim()
	}
	runtime.UnlockOSThread()
}

// predicted is what a plan holds at most, and how many milliseconds it takes, by the chain.
func (s *stepper) predicted(ops []remat.Op) (peak int64, ms float64, err error) {
	report, err := remat.Check(s.chain.Chain, ops)
	if err != nil {
		return 0, 0, err
	}
	return s.base + max(report.Peak, s.chain.ProloguePeak), report.Time / 1e3, nil
}

// solve finds the best plan that holds at most so many bytes, all of the device counted.
func (s *stepper) solve(ctx context.Context, limit int64) (remat.Plan, error) {
	p, err := solver.Solve(ctx, s.chain.Chain, limit-s.base, solver.Options{})
	if err == nil && !p.Feasible {
		err = fmt.Errorf("there is no plan under %d bytes, it says, beside %d that are taken; at least %d are needed", limit-s.base, s.base, p.Peak)
	}
	return p, err
}

// taken is a step that was taken.
type taken struct {
	ms   float64 // of the processor
	peak int64
	loss float32
}

// step takes a step. The gradients of the parameters, which it begins without, are there when it
// returns.
func (s *stepper) step(ops []remat.Op) (t taken, err error) {
	nn.ZeroGrads(s.model)
	s.device.ResetPeak()
	err = torch.Try(func() {
		start := torch.ThreadTime()
		var e segment.Execution
		e.Begin(s.segment, s.context)
		defer e.Free()
		e.Send(0, segment.Arrival{Tensors: []*torch.Tensor{s.c.Keep(s.c.Share(s.input))}, Wants: []bool{false}})
		for i := range s.chain.Prologue {
			e.Do(s.c, remat.Op{Kind: remat.Forward, Layer: i})
		}
		for _, op := range ops {
			e.Do(s.c, remat.Op{Kind: op.Kind, Layer: op.Layer + s.chain.Prologue})
			if op.Kind == remat.LossStep {
				t.loss = s.lossStep(&e)
			}
			s.c.Release(0)
		}
		t.ms = (torch.ThreadTime() - start).Seconds() * 1e3
	})
	s.c.Close()
	t.peak = s.device.Memory().Peak
	return t, err
}

// lossStep computes the loss and the gradient of the network's output.
func (s *stepper) lossStep(e *segment.Execution) float32 {
	c := s.c
	xs, _, saved := e.Output()
	if !saved {
		xs, _ = e.Take(s.segment.Units())
		for _, x := range xs {
			c.Adopt(x)
		}
	}
	defer c.SetGrad(c.SetGrad(true))
	box := c.Mailbox()
	loss := nn.RunLoss(nn.NewCtx(c, nn.Config{Training: true, Seed: stepSeed}), s.loss, []*torch.Tensor{c.Gate(box, c.Detach(xs[0]))}, []*torch.Tensor{s.target})
	c.Backward([]*torch.Tensor{loss}, []*torch.Tensor{nil}, false)
	e.GiveGrads(s.segment.Units(), []*torch.Tensor{c.Keep(c.GradOf(box))}, nil)
	return torch.Item[float32](loss)
}

// digest is of the loss and of all gradients of the last step, to the bit.
func (s *stepper) digest(t taken) (sum [sha256.Size]byte) {
	h := sha256.New()
	fmt.Fprintln(h, math.Float32bits(t.loss))
	for _, p := range nn.Params(s.model) {
		if g := s.c.GradOf(p.Tensor()); g != nil {
			h.Write(torch.Bytes(g))
		}
	}
	s.c.Close()
	return [sha256.Size]byte(h.Sum(nil))
}

// context is that of training, as the chain was measured.
func (s *stepper) context(c *torch.Ctx, run segment.Run) *nn.Ctx {
	return nn.NewCtx(c, nn.Config{Training: true, Checkpointing: run.More, Recomputing: run.Again, Seed: stepSeed, Spans: run.Graph, Skips: run.Skips})
}
