package pipe_test

import (
	"testing"

	"penstock.example/nn"
	"penstock.example/safetensors"
	"penstock.example/torch"
)

func overwrite(t *testing.T, model nn.Module, path string) {
	t.Helper()
	f, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, s := range nn.State(model) {
		got, err := f.Read(s.Name)
		if err != nil {
			t.Fatal(err)
		}
		if err := torch.SetBytes(s.Tensor(), got.Data); err != nil {
			t.Fatal(err)
		}
	}
}
