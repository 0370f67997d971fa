package guide_test

import (
	"errors"
	"flag"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"penstock.example/data"
	"penstock.example/models"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/pipe"
	"penstock.example/safetensors"
	"penstock.example/tokenizer"
	"penstock.example/torch"
	"penstock.example/train"
)

// The weights are random and small (scripts/fixtures/finetune.py), with the names of torchvision's
// and of Hugging Face's.
const pretrained = "testdata/finetune"

// writePictures makes a folder of dark pictures and one of bright pictures.
func writePictures(folder string) {
	for part, count := range map[string]int{"train": 12, "val": 4} {
		for class, name := range []string{"dark", "bright"} {
			directory := filepath.Join(folder, part, name)
			check(os.MkdirAll(directory, 0o777))
			for i := range count {
				picture := image.NewRGBA(image.Rect(0, 0, 40, 36))
				for y := range 36 {
					for x := range 40 {
						v := uint8(130*class + (x*7+y*5+i*11)%80)
						picture.Set(x, y, color.RGBA{v, v / 2, 255 - v, 255})
					}
				}
				file, err := os.Create(filepath.Join(directory, fmt.Sprintf("%02d.png", i)))
				check(err)
				check(png.Encode(file, picture))
				check(file.Close())
			}
		}
	}
}

// fineTunePictures trains a new head on pictures. It returns the model, which exists.
func fineTunePictures(folder, out string) *nn.Sequential {
	model, err := models.New("vit_b_16", models.Options{Size: 32, Width: 16, Depth: 1, Heads: 2, Classes: 10})
	check(err)
	model.Replace("heads.head", nn.NewLinear(16, 2))
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	weights := pretrained + "/vit.safetensors"
	report, err := nn.LoadWeights(c, weights, model, nn.WeightsConfig{Skip: []string{"heads.*"}})
	check(err) // lists every tensor that does not fit
	fmt.Println(report)

	body := model.Slice(0, model.Len()-1)
	nn.Freeze(body) // no gradients, no optimizer state, no activations kept for backward
	nn.Eval(body)   // no dropout; batch norms keep their statistics

	training, testing, err := data.Open("images", folder, data.Options{Size: 32})
	check(err)
	loader, err := data.NewLoader(training, data.LoaderConfig{BatchSize: 8, Seed: 1, Shuffle: true,
		Augment: data.Augment{Crop: 4, Flip: true}})
	check(err)
	defer loader.Close()
	for i := range 2 {
		torch.CPU(i).SetLimit(224 << 10)
		defer torch.CPU(i).SetLimit(0)
	}
	p, err := pipe.New(model, pipe.Config{Balance: []int{9, 11}, Chunks: 4, Checkpoint: pipe.Optimal, Seed: 1})
	check(err)
	sgd, err := optim.SGD(optim.Config{LR: 0.1, Momentum: 0.9})
	check(err)
	defer sgd.Close()
	loop := train.Loop{Pipe: p, Optimizer: sgd, Loss: nn.CrossEntropy(), Loader: loader, Epochs: 5}
	_, err = loop.Run(ctx)
	check(err)
	e, err := train.Evaluate(ctx, p, testing, train.EvaluateConfig{Batch: 8})
	check(err)
	fmt.Printf("accuracy %.2f on %d pictures\n", *e.Accuracy, e.Samples)
	check(p.Close())
	check(nn.Save(out, model)) // for PyTorch, too
	return model
}

func Example_fineTuning() {
	folder, err := os.MkdirTemp("", "guide")
	check(err)
	defer os.RemoveAll(folder)
	writePictures(folder)
	nn.Free(fineTunePictures(folder, filepath.Join(folder, "tuned.safetensors")))
	// Output:
	// loaded 18 of 20; skipped: heads.head.weight, heads.head.bias
	// accuracy 1.00 on 8 pictures
}

// fineTuneText trains all but the embeddings on a text. It returns the model, which exists.
func fineTuneText(out string) *nn.Sequential {
	t, err := tokenizer.Open("../../tokenizer/testdata")
	check(err)
	model, err := models.New("gpt2", models.Options{Depth: 1, Width: 16, Heads: 2, Context: 16, Classes: t.Len(), NoDropout: true})
	check(err)
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	_, err = nn.LoadWeights(c, pretrained+"/gpt2.safetensors", model, nn.WeightsConfig{})
	check(err)
	nn.Freeze(model.Slice(0, 2)) // the embedding, which is the head as well, and the positions
	ids, err := t.Encode([]byte(strings.Repeat("The stages of the pipeline are busy, and the batch goes on. ", 40)))
	check(err)
	set, err := data.NewTokens(ids, t.Len(), 16)
	check(err)
	training, _, err := data.Split(set, 0.25, 1)
	check(err)
	loader, err := data.NewLoader(training, data.LoaderConfig{BatchSize: 4, Seed: 1, Shuffle: true})
	check(err)
	defer loader.Close()
	for i := range 2 {
		torch.CPU(i).SetLimit(320 << 10)
		defer torch.CPU(i).SetLimit(0)
	}
	p, err := pipe.New(model, pipe.Config{Balance: []int{9, 9}, Chunks: 2, Checkpoint: pipe.Optimal, Seed: 1})
	check(err)
	sgd, err := optim.SGD(optim.Config{LR: 0.05, Momentum: 0.9})
	check(err)
	defer sgd.Close()
	loop := train.Loop{Pipe: p, Optimizer: sgd, Loss: nn.CrossEntropy(), Loader: loader, Epochs: 4, ClipNorm: 1}
	_, err = loop.Run(ctx)
	check(err)
	check(p.Close())
	check(nn.Save(out, model))
	return model
}

var update = flag.Bool("update", false, "record the outputs of Debian's python3-torch and python3-torchvision")

// PyTorch reads the fine-tuned weights and gives the same outputs. Without PyTorch the outputs are
// compared with recorded ones.
func TestFineTunedInPyTorch(t *testing.T) {
	folder := t.TempDir()
	writePictures(folder)
	pixels := make([]float32, 2*3*32*32)
	for i := range pixels {
		pixels[i] = float32(math.Sin(float64(i)))
	}
	tokens := make([]int64, 16)
	for i := range tokens {
		tokens[i] = int64(i * 11 % 377)
	}
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	python := []string{"../../scripts/fixtures/finetune.py", "outputs"}
	type output struct {
		numbers     []float32
		now, golden string
	}
	var all []output
	for _, row := range []struct {
		name  string
		input *torch.Tensor
		tune  func(out string) *nn.Sequential
	}{
		{"vit", torch.From(c, pixels, 2, 3, 32, 32), func(out string) *nn.Sequential { return fineTunePictures(folder, out) }},
		{"gpt2", torch.From(c, tokens, 1, 16), fineTuneText},
	} {
		tuned, input := filepath.Join(folder, row.name), filepath.Join(folder, row.name+"-input")
		model := row.tune(tuned)
		defer nn.Free(model)
		saved := []safetensors.Tensor{torch.FileTensor("input", row.input)}
		check(safetensors.WriteFile(input, saved, safetensors.PyTorch))
		o := output{torch.Values[float32](model.Forward(nn.NewCtx(c, nn.Config{}), row.input)), tuned + "-output", filepath.Join(pretrained, row.name+"-output.safetensors")}
		if *update {
			o.now = o.golden
		}
		python = append(python, row.name, tuned, input, o.now)
		all = append(all, o)
	}
	text, err := exec.Command("/usr/bin/python3", python...).CombinedOutput()
	there := err == nil
	lacks := strings.Contains(string(text), "No module named 'torch")
	if !there && (*update || !errors.Is(err, fs.ErrNotExist) && !lacks) {
		t.Fatalf("PyTorch does not take the files: %v\n%s", err, text)
	}
	if !there {
		t.Log("no PyTorch: compared with its recorded outputs")
	}
	for _, o := range all {
		if there {
			near(t, o.numbers, o.now, 1e-5)
		}
		near(t, o.numbers, o.golden, 1e-3) // other kernels train to other last digits
	}
}

// near fails unless the numbers are almost those of the tensor "output" of a file.
func near(t *testing.T, got []float32, path string, most float64) {
	t.Helper()
	file, err := safetensors.Open(path)
	check(err)
	defer file.Close()
	output, err := file.Read("output")
	check(err)
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	want := torch.Values[float32](torch.FromBytes(c, output.Data, torch.Float32, output.Shape))
	if len(want) != len(got) {
		t.Fatalf("%s: %d numbers, want %d", path, len(got), len(want))
	}
	far := 0.0
	for i := range want {
		far = max(far, math.Abs(float64(got[i]-want[i])))
	}
	if !(far <= most) {
		t.Errorf("%s: the outputs are apart by up to %g, want at most %g", path, far, most)
	}
}
