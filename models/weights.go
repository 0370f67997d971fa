package models

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"penstock.example/nn"
	"penstock.example/safetensors"
)

// Weights returns the path of the weights in a folder in Hugging Face's layout, and how their names
// match those of the folder's model, for nn.LoadWeights and nn.CheckWeights. A classifier keeps its
// values if the file does not have it, or has it for other classes.
func Weights(folder string, m nn.Module) (path string, o nn.WeightsConfig, err error) {
	path = filepath.Join(folder, "model.safetensors")
	if _, missing := os.Stat(path); missing != nil {
		index := path + ".index.json"
		if _, err := os.Stat(index); err != nil {
			return "", o, fmt.Errorf("models: %s has neither model.safetensors nor its index: %w", folder, missing)
		}
		path = index
	}
	file, err := safetensors.Open(path)
	if err != nil {
		return "", o, fmt.Errorf("models: %w", err)
	}
	defer file.Close() // it was only read
	tensors := file.Tensors()
	state := nn.State(m)
	body, _, _ := strings.Cut(state[0].Name, ".")
	shapes, prefix := map[string][]int64{}, body+"."
	if !slices.ContainsFunc(tensors, func(t safetensors.Tensor) bool {
		return strings.HasPrefix(t.Name, prefix)
	}) { // of the body alone
		o.Rename = []nn.Rename{{New: body}}
	} else {
		prefix = ""
	}
	for _, t := range tensors {
		shapes[prefix+t.Name] = t.Shape
	}
	for _, pattern := range []string{"*.attn.bias", "*.attn.masked_bias", "*.rotary_emb.inv_freq",
		"vit.pooler.*"} { // buffers that are computed, and what no classifier uses
		for name := range shapes {
			if nn.Match(pattern, name) {
				o.Skip = append(o.Skip, pattern)
				break
			}
		}
	}
	for _, p := range state {
		shape, there := shapes[p.Name]
		if strings.HasPrefix(p.Name, "classifier.") && !(there && slices.Equal(shape, p.Shape())) {
			o.Skip = append(o.Skip, p.Name)
		}
	}
	return path, o, nil
}
