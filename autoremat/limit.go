package autoremat

import (
	"fmt"

	"penstock.example/torch"
)

// accountLimit is the module's limit on the memory account of its device.
type accountLimit struct {
	device  torch.Device
	bytes   int64
	release func() // ends the restriction of the account; nil before bind
}

// bind sets the device and its limit when it is first called. Later calls check that the device is
// the same.
func (b *accountLimit) bind(device torch.Device, limit int64) error {
	account := device.Memory()
	switch {
	case device.Kind != torch.KindCPU:
		return fmt.Errorf("autoremat: a module trains on CPU devices, and was given a context of %v", device)
	case b.release != nil && device != b.device:
		return fmt.Errorf("autoremat: the module trains on %v, and was given a context of %v; make one for each device", b.device, device)
	case b.release != nil:
		return nil
	case limit == 0 && account.Limit > 0:
		limit = account.Limit
	case limit == 0:
		free, err := torch.AvailableMemory()
		if err != nil {
			return fmt.Errorf("autoremat: there is no limit, and what is free is unknown: %w; set Config.Limit", err)
		}
		limit = account.Live + account.Cached + free - reserveOf(free)
	}
	b.device = device
	b.enforce(limit)
	return nil
}

// reserveOf returns the part of free bytes that a default limit leaves unused: a tenth, but at
// least 64 MiB, or half of what is free if that is less.
//
// The account counts less than the process takes. Partly used pages, cached blocks, graphs and Go's
// heap add up to a tenth. Other programs need memory as well.
func reserveOf(free int64) int64 { return max(free/10, min(64<<20, free/2)) }

// enforce restricts the account to a limit. A lower limit that the account has already stays in
// force.
func (b *accountLimit) enforce(bytes int64) {
	b.lift()
	b.bytes, b.release = bytes, b.device.Restrict(bytes)
}

// lift ends the restriction.
func (b *accountLimit) lift() {
	if b.release != nil {
		b.release()
	}
	b.release = nil
}
