package nn_test

import (
	"runtime"
	"sync"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/torch"
)

// halting counts its runs in a buffer, and ends as it is told to.
type halting struct {
	nn.Base
	runs *nn.Param
	end  func(c *nn.Ctx)
}

func newHalting() *halting {
	l := &halting{}
	l.runs = l.Buffer("runs", torch.Int64, nn.Zeros)
	return l
}

func (l *halting) Forward(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
	c.NoGrad(func() { c.AddInt_(l.runs.Tensor(), 1) })
	if l.end != nil {
		l.end(c)
	}
	return c.Tanh(x)
}

func buffersOf(m nn.Module) map[string]string {
	out := map[string]string{}
	for _, b := range nn.Buffers(m) {
		out[b.Name] = string(torch.Bytes(b.Tensor()))
	}
	return out
}

// However f ends, other than by returning, all buffers are as before; of a Checkpointed layer also
// without OrRestore, in both of its runs.
func TestBuffersAfterAFailure(t *testing.T) {
	for how, end := range map[string]func(){"panic": func() { panic("broken") }, "Goexit": runtime.Goexit} {
		for _, checkpointed := range []bool{false, true} {
			for _, recomputing := range []bool{false, true} {
				c := torchtest.New(t, torch.Options{Grad: true})
				l := newHalting()
				inner := nn.NewSequential(nn.NewLinear(3, 3), nn.NewBatchNorm1d(3, nn.BatchNormConfig{}), l)
				var model nn.Layer = inner
				if checkpointed {
					model = nn.Checkpointed(inner)
				} else if recomputing {
					continue
				}
				nn.Materialise(c, nn.State(model), 1)
				forward := func() *torch.Tensor {
					return model.Forward(nn.NewCtx(c, nn.Config{Training: true}), c.Normal_(c.Empty(torch.Float32, 5, 3), 0, 1))
				}
				start := buffersOf(model)
				y := forward()
				before := buffersOf(model)
				if before["1.running_mean"] == start["1.running_mean"] || before["2.runs"] == start["2.runs"] {
					t.Fatal("nothing moves")
				}
				l.end = func(c *nn.Ctx) {
					if c.Recomputing == recomputing {
						end()
					}
				}
				ended := false
				var all sync.WaitGroup
				all.Go(func() {
					defer func() { recover() }()
					switch {
					case recomputing:
						c.Backward([]*torch.Tensor{c.Sum(y)}, []*torch.Tensor{nil}, false)
					case checkpointed:
						forward()
					default:
						nn.OrRestore(model, func() { forward() })
					}
					ended = true
				})
				all.Wait()
				if ended {
					t.Errorf("%s, checkpointed %v, recomputing %v: no failure", how, checkpointed, recomputing)
				}
				for name, value := range buffersOf(model) {
					if value != before[name] {
						t.Errorf("%s, checkpointed %v, recomputing %v: %s has changed", how, checkpointed, recomputing, name)
					}
				}
				l.end = nil
				nn.OrRestore(model, func() { forward() })
				if after := buffersOf(model); after["2.runs"] == before["2.runs"] {
					t.Error("a run that succeeds is undone")
				}
				nn.ZeroGrads(model)
				c.Close()
				nn.Free(model)
			}
		}
	}
}

// A copy follows what is copied: other buffers, other sizes, buffers that do not exist; and no
// account counts it.
func TestBufferCopy(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	small, large, none := nn.NewBatchNorm1d(2, nn.BatchNormConfig{}), nn.NewBatchNorm1d(50, nn.BatchNormConfig{}), nn.NewBatchNorm1d(7, nn.BatchNormConfig{})
	for _, m := range []nn.Module{small, large} {
		nn.Materialise(c, nn.State(m), 1)
		defer nn.Free(m)
	}
	var b nn.BufferCopy
	b.Restore() // of nothing
	for _, m := range []nn.Module{large, small, none, large} {
		live := c.Device().Memory().Live
		b.Take(nn.Buffers(m))
		if got := c.Device().Memory().Live; got != live {
			t.Errorf("a copy takes %d bytes of the device", got-live)
		}
		if m == nn.Module(none) {
			b.Restore()
			continue
		}
		before := buffersOf(m)
		for _, p := range nn.Buffers(m) {
			if p.DType().IsFloat() {
				c.Fill_(p.Tensor(), 7)
			} else {
				c.AddInt_(p.Tensor(), 7)
			}
		}
		b.Restore()
		for name, value := range buffersOf(m) {
			if value != before[name] {
				t.Errorf("%s is not put back", name)
			}
		}
	}
}
