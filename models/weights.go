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
// match the names in the folder's model, for nn.LoadWeights and nn.CheckWeights. If the weights
// have no classifier, or one for another number of classes, the classifier of the model keeps its
// values.
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
		return "", o, fmt.Errorf("models: %w; copy the folder's files again", err)
	}
	defer file.Close() // it was only read
	tensors := file.Tensors()
	state := nn.State(m)
	body, _, _ := strings.Cut(state[0].Name, ".")
	shapes, prefix := map[string][]int64{}, body+"."
	if slices.ContainsFunc(tensors, func(t safetensors.Tensor) bool {
		return strings.HasPrefix(t.Name, prefix)
	}) {
		prefix = ""
	} else { // the file has only the body
		o.Rename = []nn.Rename{{New: body}}
	}
	for _, t := range tensors {
		shapes[prefix+t.Name] = t.Shape
	}
	// Buffers that the model computes, and a pooler that the classifier does not use.
	for _, pattern := range []string{"*.attn.bias", "*.attn.masked_bias", "*.rotary_emb.inv_freq",
		"vit.pooler.*"} {
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
