package models

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"penstock.example/internal/disk"
	"penstock.example/nn"
	"penstock.example/safetensors"
)

// AdapterWeights is the name of the file of weights in an adapter's folder, for nn.LoadWeights with
// nn.Adapters.
const AdapterWeights = "adapter_model.safetensors"

const (
	adapterSettings = "adapter_config.json"
	peftPrefix      = "base_model.model."
)

// ReadAdapter reads the settings of a LoRA adapter from a folder in the layout of the PEFT library.
// Layers lists the layers for which the folder has weights, by full name.
func ReadAdapter(folder string) (o nn.LoRA, err error) {
	c := &config{path: filepath.Join(folder, adapterSettings)}
	if err := c.read(); err != nil {
		return o, err
	}
	mustBe(c, "peft_type", "LORA", "LORA")
	mustBe(c, "bias", "none", "none")
	o.Rank, o.Alpha, o.Dropout = get(c, "r", int64(8)), get(c, "lora_alpha", 8.0), get(c, "lora_dropout", 0.0)
	// These do not change what an adapter computes, or the weights tell them.
	ignored := []string{"base_model_name_or_path", "fan_in_fan_out", "inference_mode", "init_lora_weights",
		"megatron_core", "peft_version", "qalora_group_size", "revision", "target_modules", "task_type"}
	for name, value := range c.fields {
		none := slices.Contains([]string{"null", "false", "{}", "[]"}, string(value))
		if !none && !slices.Contains(ignored, name) {
			c.refuse(name, string(value), "null, as adapters with this field are not supported")
		}
	}
	if c.err != nil {
		return o, c.err
	}
	file, err := safetensors.Open(filepath.Join(folder, AdapterWeights))
	if err != nil {
		return o, fmt.Errorf("models: %w", err)
	}
	defer file.Close() // it was only read
	for _, t := range file.Tensors() {
		if name, isA := strings.CutSuffix(t.Name, ".lora_A.weight"); isA {
			o.Layers = append(o.Layers, strings.TrimPrefix(name, peftPrefix))
		}
	}
	return o, nil
}

// WriteAdapter writes the adapters among a model's tensors to a folder in the layout of the PEFT
// library. tensors have their names in the model. base is the path or name of the model without
// adapters.
func WriteAdapter(folder, base string, o nn.LoRA, tensors []safetensors.Tensor) error {
	var adapter []safetensors.Tensor
	var layers []string
	for _, t := range tensors {
		name, isA := strings.CutSuffix(t.Name, ".lora_A.weight")
		if isA {
			layers = append(layers, name)
		}
		if isA || strings.HasSuffix(t.Name, ".lora_B.weight") {
			t.Name = peftPrefix + t.Name
			adapter = append(adapter, t)
		}
	}
	if err := os.MkdirAll(folder, 0o777); err != nil {
		return fmt.Errorf("models: %w", err)
	}
	if err := safetensors.WriteFile(filepath.Join(folder, AdapterWeights), adapter,
		safetensors.PyTorch); err != nil {
		return err
	}
	return disk.Write(filepath.Join(folder, adapterSettings), func(w io.Writer) error {
		return json.NewEncoder(w).Encode(map[string]any{"peft_type": "LORA", "task_type": "CAUSAL_LM",
			"base_model_name_or_path": base, "r": o.Rank, "lora_alpha": o.Alpha, "lora_dropout": o.Dropout,
			"target_modules": layers, "bias": "none", "inference_mode": true})
	})
}
