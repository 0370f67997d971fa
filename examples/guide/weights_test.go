package guide_test

import (
	"fmt"
	"os"
	"path/filepath"

	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/torch"
)

func Example_weights() {
	folder, err := os.MkdirTemp("", "guide")
	check(err)
	defer os.RemoveAll(folder)
	path := filepath.Join(folder, "model.safetensors")

	trained := classifier()
	p, err := pipe.New(trained, pipe.Config{Balance: []int{1, 4}, Seed: 7})
	check(err)
	check(nn.Save(path, trained))
	check(p.Close())
	nn.Free(trained)

	again := classifier()
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	check(nn.Load(c, path, again))
	p, err = pipe.New(again, pipe.Config{Balance: []int{2, 2, 1}}) // another cut
	check(err)
	fmt.Println(len(p.Stages()), "stages;", nn.Params(again)[0].Tensor())
	check(p.Close())
	nn.Free(again)
	// Output:
	// 3 stages; float32[256,64]
}

func Example_otherWeights() {
	folder, err := os.MkdirTemp("", "guide")
	check(err)
	defer os.RemoveAll(folder)
	path := filepath.Join(folder, "model.safetensors")
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	trained := classifier()
	nn.Materialise(c, nn.State(trained), 7)
	check(nn.Save(path, trained))
	nn.Free(trained)

	fewer := nn.NewSequential(
		nn.NewLinear(64, 256), nn.NewReLU(),
		nn.NewLinear(256, 256), nn.NewReLU(),
		nn.NewLinear(256, 5))
	report, err := nn.LoadWeights(c, path, fewer, nn.WeightsConfig{Skip: []string{"4.*"}})
	check(err)
	fmt.Println(report)
	nn.Free(fewer)
	// Output:
	// loaded 4 of 6; skipped: 4.weight, 4.bias
}
