package optim

import (
	"penstock/nn"
	"penstock/torch"
)

// Workspace is the most bytes that one Step of such an optimizer takes beside parameters, gradients and its state, however many parameters there are: as they are updated one after the other, those of the largest.
// It is measured, with a parameter of that size, on a CPU device that nobody else uses meanwhile. Its errors are those of New, and want of memory (*torch.Error).
func Workspace(name string, o Config, params []nn.NamedParam, device torch.Device) (bytes int64, err error) {
	optimizer, err := New(name, o)
	if err != nil {
		return 0, err
	}
	defer optimizer.Close()
	largest := int64(0)
	for _, p := range params {
		if p.Trainable() {
			largest = max(largest, p.Numel()*p.DType().Size())
		}
	}
	if largest == 0 {
		return 0, nil
	}
	err = torch.Try(func() {
		c := torch.NewCtx(torch.Options{Device: device, Threads: 1})
		defer c.Close()
		var all holder
		all.Param("largest", nn.Zeros, largest/torch.Float32.Size())
		list := nn.Params(&all)
		nn.Materialise(c, list, 0)
		defer nn.Free(&all)
		t := list[0].Tensor()
		t.SetGradOf(c.Zero_(c.EmptyLike(t)))
		optimizer.Step(c, list) // makes the state
		before := device.Memory().Live
		device.ResetPeak()
		optimizer.Step(c, list)
		bytes = device.Memory().Peak - before
	})
	return bytes, err
}

// holder is a module of parameters.
type holder struct{ nn.Base }
