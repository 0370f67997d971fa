package profile

import (
	"penstock.example/torch"
)

// SetAway says which tensors are where a device cannot use them, until restore is called.
func SetAway(f func(t *torch.Tensor, d torch.Device) bool) (restore func()) {
	was := away
	away = f
	return func() { away = was }
}

// QueuePasses has passes be timed as on a GPU, until restore is called.
func QueuePasses() (restore func()) {
	was := queues
	queues = func(*Config) bool { return true }
	return func() { queues = was }
}

// SetCores says how many threads run at once, until restore is called.
func SetCores(n int) (restore func()) {
	was := cores
	cores = func() int { return n }
	return func() { cores = was }
}
