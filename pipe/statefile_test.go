package pipe_test

import (
	"testing"

	"penstock.example/internal/must"
	"penstock.example/nn"
	"penstock.example/safetensors"
	"penstock.example/torch"
)

func overwrite(t *testing.T, model nn.Module, path string) {
	t.Helper()
	f := must.Get(safetensors.Open(path))(t)
	defer f.Close()
	for _, s := range nn.State(model) {
		got := must.Get(f.Read(s.Name))(t)
		must.Do(t, torch.SetBytes(s.Tensor(), got.Data))
	}
}
