package models_test

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"penstock.example/internal/must"
	"penstock.example/internal/torchtest"
	"penstock.example/models"
	"penstock.example/nn"
	"penstock.example/safetensors"
	"penstock.example/torch"
)

// TestWeightsOfAFolder: files of the body alone, buffers that are computed, and heads for other classes load.
func TestWeightsOfAFolder(t *testing.T) {
	for reason, row := range map[string]struct {
		of      string
		o       models.Options
		change  func([]safetensors.Tensor) []safetensors.Tensor
		skipped string // a pattern of names that are not loaded
	}{
		"as the model": {"llama", models.Options{}, nil, ""},
		"gpt2 as in the hub": {"gpt2", models.Options{},
			func(list []safetensors.Tensor) []safetensors.Tensor {
				for i := range list {
					list[i].Name = strings.TrimPrefix(list[i].Name, "transformer.")
				}
				mask := safetensors.Tensor{Name: "h.0.attn.bias", DType: safetensors.U8, Shape: []int64{1},
					Data: []byte{1}}
				return append(list, mask)
			}, ""},
		"other classes": {"vit", models.Options{Classes: 5}, nil, "classifier.*"},
		"no classifier": {"vit", models.Options{},
			func(list []safetensors.Tensor) (body []safetensors.Tensor) {
				for _, x := range list {
					if name, in := strings.CutPrefix(x.Name, "vit."); in {
						x.Name = name
						body = append(body, x)
					}
				}
				return body
			}, "classifier.*"},
	} {
		t.Run(reason, func(t *testing.T) {
			c := torchtest.New(t, torch.Options{})
			config := filepath.Join("testdata", "folders", row.of)
			from, to := build(t, config, models.Options{}), build(t, config, row.o)
			t.Cleanup(func() { nn.Free(from); nn.Free(to) })
			nn.Materialise(c, nn.State(from), 1)
			nn.Materialise(c, nn.State(to), 2)
			values := func(m nn.Module) (list []safetensors.Tensor) {
				for _, p := range nn.State(m) {
					list = append(list, p.FileTensor())
				}
				return list
			}
			folder, list := t.TempDir(), values(from)
			var want [][]byte
			for _, x := range list {
				want = append(want, loadedBytes(t, x))
			}
			if row.change != nil {
				list = row.change(list)
			}
			must.Do(t, safetensors.WriteFile(filepath.Join(folder, "model.safetensors"), list, nil))
			path, o, err := models.Weights(folder, to)
			must.Do(t, err)
			report := must.Get(nn.LoadWeights(c, path, to, o))(t)
			for i, x := range values(to) {
				skipped := row.skipped != "" && nn.Match(row.skipped, x.Name)
				if bytes.Equal(loadedBytes(t, x), want[i]) == skipped && !strings.HasSuffix(x.Name, "bias") {
					t.Errorf("%s: loaded is %v; %v", x.Name, skipped, report)
				}
			}
		})
	}
}

func loadedBytes(t *testing.T, x safetensors.Tensor) (all []byte) {
	all = x.Data
	if x.Load != nil {
		must.Do(t, x.Load(func(piece []byte) error { all = append(all, piece...); return nil }))
	}
	return all
}
