package train

import (
	"penstock.example/nn"
	"penstock.example/optim"
)

// WithBefore is the store with a function that is called before each operation on a file ("mkdir",
// "create", "write", "sync", "rename", "remove"), and whose error refuses it.
func (s Store) WithBefore(before func(operation, path string) error) Store {
	s.before = before
	return s
}

// RestoreInto is Restore without a pipe.
func (c *Checkpoint) RestoreInto(model nn.Module, places []optim.Placement, o optim.Optimizer) error {
	return c.restore(model, places, o)
}
