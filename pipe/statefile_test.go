package pipe_test

import (
	"testing"

	"penstock.example/nn"
	"penstock.example/safetensors"
	"penstock.example/torch"
)

func overwrite(t *testing.T, model nn.Module, path string) {
	t.Helper()
	f := must(safetensors.Open(path))(t)
	defer f.Close()
	for _, s := range nn.State(model) {
		got := must(f.Read(s.Name))(t)
		check(t, torch.SetBytes(s.Tensor(), got.Data))
	}
}
