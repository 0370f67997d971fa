package guide_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"penstock/nn"
	"penstock/pipe"
	"penstock/safetensors"
	"penstock/torch"
)

// save writes a model's parameters and buffers, all of float32.
func save(path string, model nn.Module) error {
	var tensors []safetensors.Tensor
	for _, p := range nn.State(model) {
		tensors = append(tensors, safetensors.Tensor{Name: p.Name, DType: safetensors.F32, Shape: p.Shape(), Data: torch.Bytes(p.Tensor())})
	}
	return safetensors.WriteFile(path, tensors, nil)
}

// load gives them to a model that is not cut yet.
func load(path string, model nn.Module) error {
	file, err := safetensors.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	for _, p := range nn.State(model) {
		t, err := file.Read(p.Name)
		if err != nil {
			return err
		}
		if t.DType != safetensors.F32 || !slices.Equal(t.Shape, p.Shape()) {
			return fmt.Errorf("%s: %s is %s %v in the file, the model wants F32 %v", path, p.Name, t.DType, t.Shape, p.Shape())
		}
		p.SetTensor(c.Keep(torch.FromBytes(c, t.Data, torch.Float32, t.Shape)))
	}
	return nil
}

func Example_weights() {
	folder, err := os.MkdirTemp("", "guide")
	check(err)
	defer os.RemoveAll(folder)
	path := filepath.Join(folder, "model.safetensors")

	trained := classifier()
	p, err := pipe.New(trained, pipe.Config{Balance: []int{1, 4}, Seed: 7})
	check(err)
	check(save(path, trained))
	check(p.Close())
	nn.Free(trained)

	again := classifier()
	check(load(path, again))
	p, err = pipe.New(again, pipe.Config{Balance: []int{2, 2, 1}}) // another cut
	check(err)
	fmt.Println(len(p.Stages()), "stages;", nn.Params(again)[0].Tensor())
	check(p.Close())
	nn.Free(again)
	// Output:
	// 3 stages; float32[256,64]
}
