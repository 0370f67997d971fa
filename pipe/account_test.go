package pipe_test

import (
	"context"
	"testing"

	"penstock.example/internal/shim"
	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// requested is what libtorch's allocator of a GPU says that it was asked for, and 0 for a CPU.
func requested(d torch.Device) int64 {
	if d.Kind == torch.KindCPU {
		return 0
	}
	return shim.GetAccount(shim.GPUAccount + d.Index).Requested
}

// Before each action of each step the account of a device is what its allocator was asked for since
// the second step, to the byte, and 200 steps with updates leave no byte more than the first ones.
func TestTwoHundredStepsLeaveNothing(t *testing.T) {
	torchtest.Check(t)
	d := torchtest.Device(6)
	model := nn.NewSequential(nn.NewConv2d(3, 8, nn.Square(3), nn.Conv2dConfig{}), nn.NewBatchNorm2d(8, nn.BatchNormConfig{}), nn.NewReLUInPlace(),
		nn.NewBasicBlock(8, 8, 1), nn.NewDropout(0.1), nn.NewAdaptiveAvgPool2d(nn.Square(1)), nn.NewFlatten(1, -1), nn.NewLinear(8, 5))
	p := started(t, model, pipe.Config{Balance: []int{4, 4}, Devices: []torch.Device{d, d}, Chunks: 3, Checkpoint: pipe.ExceptLast})
	o, err := optim.New("adam", optim.Config{LR: 0.01})
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	c := torch.NewCtx(torch.Options{Device: aside, Threads: 1})
	defer c.Close()
	q := problem{input: normal(7, 3, 8, 8), target: classes(7, 5)}
	var after torch.Memory
	var elsewhere int64 // of the allocator, and on no account
	for step := range 200 {
		b := q.batch(c, p.Stages(), step%3)
		elsewhere = requested(d) - d.Memory().Live
		if d.Kind != torch.KindCPU && step > 1 {
			p.Hold(func(_, action int) {
				if now := requested(d) - d.Memory().Live; now != elsewhere {
					t.Errorf("step %d, before action %d: the allocator was asked for %+d bytes more than the account has", step, action, now-elsewhere)
				}
			})
		}
		if _, err := p.Step(context.Background(), b, nn.CrossEntropy()); err != nil {
			t.Fatal(err)
		}
		if err := p.Update(context.Background(), o); err != nil {
			t.Fatal(err)
		}
		nn.ZeroGrads(model)
		c.Close()
		switch now := d.Memory(); {
		case step < 5:
			after = now
		case now.Live != after.Live || now.Peak != after.Peak || now.Taken > after.Taken:
			t.Fatalf("after step %d the account has %+v, after the fifth %+v", step+1, now, after)
		}
	}
}
