package autoremat

import (
	"fmt"

	"penstock.example/internal/engine"
	"penstock.example/internal/system"
	"penstock.example/torch"
)

// bind sets the module's device and restricts its account when it is first called. Later calls
// check that the device is the same. A lower limit of the account itself stays in force.
func (m *Module) bind(device torch.Device) error {
	limit, account := m.config.Limit, device.Memory()
	switch {
	case device.Kind != torch.KindCPU:
		return fmt.Errorf("autoremat: a module trains on CPU devices, and was given a context of %v", device)
	case m.release != nil && device != m.device:
		return fmt.Errorf("autoremat: the module trains on %v, not on %v; make one for each", m.device,
			device)
	case m.release != nil:
		return nil
	case limit == 0 && account.Limit > 0:
		limit = account.Limit
	case limit == 0:
		free, err := system.AvailableMemory("/")
		if err != nil {
			return fmt.Errorf("autoremat: the free memory is unknown: %w; set Config.Limit", err)
		}
		limit = account.Live + account.Cached + free - reserveOf(free)
	}
	m.device, m.release = device, engine.Restrict(device, limit)
	return nil
}

// reserveOf is the part of free bytes that a default limit does not use: a tenth, but at least 64
// MiB or half of the free bytes. Partly used pages, graphs and Go's heap are in no account, and
// other programs need memory as well.
func reserveOf(free int64) int64 { return max(free/10, min(64<<20, free/2)) }
