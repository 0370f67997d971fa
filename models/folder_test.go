package models_test

import (
	"encoding/json"
	"hash/crc32"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"penstock.example/internal/must"
	"penstock.example/internal/torchtest"
	"penstock.example/models"
	"penstock.example/nn"
	"penstock.example/safetensors"
	"penstock.example/torch"
)

// fixtureWeight is the weight of scripts/fixtures/folders.py.
func fixtureWeight(name string, n int64) []float32 {
	w, hash := make([]float32, n), crc32.ChecksumIEEE([]byte(name))
	one := 0.0
	if strings.HasSuffix(name, "weight") &&
		(strings.Contains(name, "norm") || strings.Contains(name, ".ln_")) {
		one = 1
	}
	for i := range w {
		w[i] = float32((float64(uint32(i)*2654435761+hash)/(1<<32)-0.5)/4 + one)
	}
	return w
}

// TestFoldersHaveTheirModelsNumbers compares logits, and losses and gradients of five steps, with what
// the transformers library computes in float64.
func TestFoldersHaveTheirModelsNumbers(t *testing.T) {
	for _, name := range []string{"gpt2", "llama", "llama-tied", "mistral", "qwen2", "qwen3", "vit"} {
		t.Run(name, func(t *testing.T) {
			folder := filepath.Join("testdata", "folders", name)
			var want struct {
				Shapes map[string][]int64
				Input  []int64
				Logits []float64
				Steps  []fixtureStep
				// of the adapter in the folder
				Adapter []fixtureStep
			}
			must.Do(t, json.Unmarshal(must.Get(os.ReadFile(filepath.Join(folder, "expected.json")))(t),
				&want))
			c := torchtest.New(t, torch.Options{Grad: true})
			s := build(t, folder, models.Options{})
			t.Cleanup(func() { nn.Free(s) })
			for _, p := range nn.Params(s) {
				if !slices.Equal(p.Shape(), want.Shapes[p.Name]) {
					t.Fatalf("%s has the shape %v, want %v", p.Name, p.Shape(), want.Shapes[p.Name])
				}
				p.SetTensor(c.Keep(torch.From(c, fixtureWeight(p.Name, p.Numel()), p.Shape()...)))
			}
			if len(nn.Params(s)) != len(want.Shapes) {
				t.Fatalf("%d parameters, want %d", len(nn.Params(s)), len(want.Shapes))
			}
			var x, labels *torch.Tensor
			if name == "vit" {
				x = torch.From(c, fixtureWeight("input", 4*3*12*12), 4, 3, 12, 12)
				labels = torch.From(c, []int64{0, 2, 1, 1}, 4)
			} else {
				x = torch.From(c, want.Input, 3, 9)
				labels = c.Narrow(x, 1, 1, 8)
			}
			loss := func(y *torch.Tensor) *torch.Tensor {
				if name != "vit" {
					y = c.Narrow(y, 2, 0, 8)
				}
				return c.Op("aten::cross_entropy_loss", y, labels)
			}
			logits := s.Forward(training(c), x)
			if name != "vit" {
				logits = c.Transpose(logits, 1, 2) // [N, T, classes]
			}
			for k, v := range torch.Values[float32](c.Reshape(logits, -1)) {
				if math.Abs(float64(v)-want.Logits[k]) > 1e-5 {
					t.Fatalf("logit %d is %v, want %v", k, v, want.Logits[k])
				}
			}
			if want.Adapter != nil {
				checkAdapter(t, c, folder, x, loss, want.Adapter)
			}
			checkSteps(t, c, s, x, loss, want.Steps)
		})
	}
}

type fixtureStep struct {
	Loss      float64
	Gradients map[string][2]float64 // sum and norm
}

// checkSteps takes steps of SGD and compares losses and gradients.
func checkSteps(t *testing.T, c *torch.Ctx, s *nn.Sequential, x *torch.Tensor,
	lossOf func(y *torch.Tensor) *torch.Tensor, want []fixtureStep) {
	for i, step := range want {
		mark := c.Mark()
		loss := lossOf(s.Forward(training(c), x))
		if got := float64(torch.Item[float32](loss)); math.Abs(got-step.Loss) > 1e-5*step.Loss {
			t.Errorf("step %d: the loss is %v, want %v", i, got, step.Loss)
		}
		c.Backward([]*torch.Tensor{loss}, []*torch.Tensor{nil}, false)
		if n := len(nn.Params(s)); n != len(step.Gradients) {
			t.Fatalf("%d parameters are trained, want %d", n, len(step.Gradients))
		}
		for _, p := range nn.Params(s) {
			var sum, squares float64
			g := c.GradOf(p.Tensor())
			for _, v := range torch.Values[float32](g) {
				sum += float64(v)
				squares += float64(v) * float64(v)
			}
			norm := step.Gradients[p.Name][1]
			if math.Abs(math.Sqrt(squares)-norm) > 5e-4*norm+1e-7 ||
				math.Abs(sum-step.Gradients[p.Name][0]) > 1e-3*norm+1e-7 {
				t.Errorf("step %d: the gradient of %s has sum and norm %v %v, want %v", i, p.Name, sum,
					math.Sqrt(squares), step.Gradients[p.Name])
			}
			c.NoGrad(func() { c.Add_(p.Tensor(), g, -0.1) })
			p.Tensor().SetGradOf(nil)
		}
		c.Release(mark)
	}
}

// checkAdapter reads an adapter that the PEFT library wrote, compares the loss of the model with it,
// of the model into which it is merged, and steps of training it, and reads what WriteAdapter writes.
func checkAdapter(t *testing.T, c *torch.Ctx, folder string, x *torch.Tensor,
	lossOf func(y *torch.Tensor) *torch.Tensor, want []fixtureStep) {
	fresh := func() *nn.Sequential {
		s := build(t, folder, models.Options{})
		t.Cleanup(func() { nn.Free(s) })
		for _, p := range nn.Params(s) {
			p.SetTensor(c.Keep(torch.From(c, fixtureWeight(p.Name, p.Numel()), p.Shape()...)))
		}
		return s
	}
	read := func(adapter string) (*nn.Sequential, nn.LoRA) {
		s, o := fresh(), must.Get(models.ReadAdapter(adapter))(t)
		must.Do(t, nn.AddLoRA(s, o))
		report := must.Get(nn.LoadWeights(c, filepath.Join(adapter, models.AdapterWeights), nn.Adapters(s),
			nn.WeightsConfig{}))(t)
		if report.Loaded != 2*len(o.Layers) || report.Loaded == 0 {
			t.Errorf("%v for %d layers", report, len(o.Layers))
		}
		return s, o
	}
	s, o := read(filepath.Join(folder, "adapter"))
	var tensors []safetensors.Tensor
	for _, p := range nn.State(s) {
		tensors = append(tensors, p.FileTensor())
	}
	written := filepath.Join(t.TempDir(), "adapter")
	must.Do(t, models.WriteAdapter(written, "base", o, tensors))
	again, _ := read(written)
	merged := filepath.Join(t.TempDir(), "merged.safetensors")
	must.Do(t, safetensors.WriteFile(merged, nn.MergeLoRA(s, tensors), nil))
	whole := fresh()
	must.Get(nn.LoadWeights(c, merged, whole, nn.WeightsConfig{}))(t)
	for what, s := range map[string]*nn.Sequential{"written": again, "merged": whole} {
		got := float64(torch.Item[float32](lossOf(s.Forward(training(c), x))))
		if math.Abs(got-want[0].Loss) > 1e-5*want[0].Loss {
			t.Errorf("%s: the loss is %v, want %v", what, got, want[0].Loss)
		}
	}
	checkSteps(t, c, s, x, lossOf, want)
}

// TestTiedHeadHasNoAdapter: an adapter of a weight that two modules use could not be merged.
func TestTiedHeadHasNoAdapter(t *testing.T) {
	m := must.Get(models.New(filepath.Join("testdata", "folders", "gpt2"), models.Options{}))(t)
	if err := nn.AddLoRA(m, nn.LoRA{Rank: 2, Alpha: 4, Layers: []string{"lm_head"}}); err == nil {
		t.Error("the tied head gets an adapter")
	}
	must.Do(t, nn.AddLoRA(m, nn.LoRA{Rank: 2, Alpha: 4, Layers: []string{"*"}}))
	for _, p := range nn.Params(m) {
		if strings.Contains(p.Name, "lm_head.lora") {
			t.Error(p.Name)
		}
	}
}

// TestFolderRefuses: a config.json that is not the model's, or means something that is not computed,
// is refused by the name of its field.
func TestFolderRefuses(t *testing.T) {
	for _, row := range []struct{ model, old, new, want string }{
		{"llama", `"model_type": "llama"`, `"model_type": "mamba"`,
			`model_type "mamba"; want one of gpt2, llama`},
		{"llama", `"use_cache": true`, `"use_magic": true`, "use_magic is true; want it left out"},
		{"llama", `"hidden_size": 96`, `"hidden_size": "96"`, `hidden_size is "96"; want it of type int64`},
		{"llama", `"hidden_size": 96,`, ``, "hidden_size is 0; want it 1 to 2^24"},
		{"llama", `"num_key_value_heads": 2`, `"num_key_value_heads": 4`,
			"num_key_value_heads is 4; want it a divisor of the 6"},
		{"llama", `"rope_type": "llama3"`, `"rope_type": "yarn"`,
			"rope_type is yarn; want it default, linear or llama3"},
		{"llama", `"factor": 8.0`, `"factor": 8.0, "beta": 1`, "beta of the rotations is 1"},
		{"llama", `"factor": 8.0`, `"factor": 0.0`, "factor is 0; want it above 0"},
		{"llama", `"high_freq_factor": 4.0`, `"high_freq_factor": 1.0`,
			"high_freq_factor is 1; want it above low_freq_factor"},
		{"llama", `"hidden_act": "silu"`, `"hidden_act": "gelu"`, "hidden_act is gelu; want it silu"},
		{"llama", `"head_dim": 24`, `"head_dim": 1`, "head_dim is 1; want it even"},
		{"llama", `"attention_dropout": 0.0`, `"attention_dropout": 0.1`,
			"attention_dropout is 0.1; want it 0"},
		{"llama", `{`, ``, "config.json: invalid character"},
		{"mistral", `"sliding_window": 32`, `"sliding_window": 32, "quantization_config": {"bits": 4}`,
			"quantization_config is"},
		{"gpt2", `"attn_pdrop": 0.0`, `"attn_pdrop": 0.2`, "attn_pdrop is 0.2; want it 0"},
		{"gpt2", `"n_inner": null`, `"n_inner": 50`, "n_inner is 50; want it 192"},
		{"vit", `"patch_size": 4`, `"patch_size": 5`,
			"image_size is 12; want it a multiple of the patch size 5"},
	} {
		text := string(must.Get(os.ReadFile(filepath.Join("testdata", "folders", row.model,
			"config.json")))(t))
		changed := strings.Replace(text, row.old, row.new, 1)
		if changed == text {
			t.Errorf("%s has no %s", row.model, row.old)
		}
		folder := t.TempDir()
		must.Do(t, os.WriteFile(filepath.Join(folder, "config.json"), []byte(changed), 0o666))
		if _, err := models.New(folder, models.Options{}); err == nil ||
			!strings.Contains(err.Error(), row.want) {
			t.Errorf("%s with %s: %v; want %q", row.model, row.new, err, row.want)
		}
	}
	llama := filepath.Join("testdata", "folders", "llama")
	if _, err := models.New(llama, models.Options{Classes: 51}); err == nil ||
		!strings.Contains(err.Error(), "want at most the 50 tokens of the model") {
		t.Errorf("51 classes: %v", err)
	}
	if _, err := models.Describe(filepath.Join("testdata", "nothing")); err == nil ||
		!strings.Contains(err.Error(), "config.json: no such file") {
		t.Errorf("an empty folder: %v", err)
	}
}

// TestFolderNormalisesPictures: pictures are normalised as preprocessor_config.json says, or refused.
func TestFolderNormalisesPictures(t *testing.T) {
	half := []float64{0.5, 0.5, 0.5}
	for text, want := range map[string]struct {
		mean, std []float64
		refusal   string
	}{
		"":   {},
		"{}": {mean: half, std: half},
		`{"do_normalize": true, "image_mean": [0.1, 0.2, 0.3], "image_std": [1, 2, 3], "size": 224,
			"rescale_factor": 0.00392156862745098}`: {mean: []float64{0.1, 0.2, 0.3}, std: []float64{1, 2, 3}},
		`{"do_normalize": false}`: {mean: []float64{0, 0, 0}, std: []float64{1, 1, 1}},
		`{"do_rescale": false}`:   {refusal: "preprocessor_config.json: do_rescale is false; want it true"},
		`{"rescale_factor": 2}`:   {refusal: "rescale_factor is 2; want it 0.0039"},
		`{"image_mean": "half"}`:  {refusal: `image_mean is "half"; want it of type []float64`},
		`[`:                       {refusal: "preprocessor_config.json: unexpected end"},
	} {
		folder := t.TempDir()
		must.Do(t, os.CopyFS(folder, os.DirFS(filepath.Join("testdata", "folders", "vit"))))
		if text != "" {
			must.Do(t, os.WriteFile(filepath.Join(folder, "preprocessor_config.json"), []byte(text), 0o666))
		}
		info, err := models.Describe(folder)
		if want.refusal != "" && (err == nil || !strings.Contains(err.Error(), want.refusal)) ||
			want.refusal == "" && err != nil {
			t.Errorf("%s: %v, want %q", text, err, want.refusal)
		}
		if err == nil && !(slices.Equal(info.Mean, want.mean) && slices.Equal(info.Std, want.std)) {
			t.Errorf("%s: mean %v and deviation %v", text, info.Mean, info.Std)
		}
	}
}
