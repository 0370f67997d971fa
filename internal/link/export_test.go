package link

import "penstock.example/torch"

// SetStaged has the tensors of all devices go by copies on the host, as those of GPUs do, or none.
func (l *Remote) SetStaged(on bool) { l.staged = func(torch.Device) bool { return on } }
