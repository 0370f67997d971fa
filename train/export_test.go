package train

import (
	"penstock.example/nn"
	"penstock.example/optim"
)

// WithFaults is the store with a function that is called before each operation on a file ("mkdir",
// "create", "write", "sync", "rename", "remove"), and whose error refuses it.
func (s Store) WithFaults(hook func(operation, path string) error) Store {
	s.faultHook = hook
	return s
}

// RestoreInto is Restore without a pipe.
func (c *Checkpoint) RestoreInto(model nn.Module, places []optim.Placement, o optim.Optimizer) error {
	return c.restore(model, places, o)
}

// MeasureCopies is measureCopies.
var MeasureCopies = measureCopies
