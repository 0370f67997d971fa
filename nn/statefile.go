package nn

import (
	"fmt"

	"penstock.example/safetensors"
	"penstock.example/torch"
)

// Save writes the parameters and buffers of m, which must all exist, to a safetensors file under
// their names. The file does not depend on how the model is cut: it fits any cut, and the model
// without a pipe. A file at path is replaced when everything is written.
func Save(path string, m Module) error {
	var tensors []safetensors.Tensor
	for _, p := range State(m) {
		if !p.Exists() {
			return fmt.Errorf("nn: saving a model: %q does not exist yet; call nn.Materialise or pipe.New first", p.Name)
		}
		tensors = append(tensors, p.FileTensor())
	}
	return safetensors.WriteFile(path, tensors, safetensors.PyTorch)
}

// FileTensor is the parameter, which must exist, as it is to be written to a file.
func (p NamedParam) FileTensor() safetensors.Tensor { return torch.FileTensor(p.Name, p.value()) }

// Load is LoadWeights with all names as they are.
func Load(c *torch.Ctx, path string, m Module) error {
	_, err := LoadWeights(c, path, m, WeightsConfig{})
	return err
}

// value is the parameter's own, not a replica.
func (p NamedParam) value() *torch.Tensor {
	p.Tensor() // panics where there is none
	return p.Owner().value
}
