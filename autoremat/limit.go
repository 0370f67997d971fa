package autoremat

import (
	"fmt"

	"penstock.example/torch"
)

// accountLimit is the module's limit on the memory account of its device.
type accountLimit struct {
	bound  bool
	device torch.Device
	bytes  int64
	source string // where bytes is from, for messages
	was    int64  // the account's limit before; 0 is none

	release func() // ends the restriction of the account; nil where there is none
}

// bind sets the device and its limit when it is first called. Later calls check that the device is
// the same.
func (b *accountLimit) bind(device torch.Device, limit int64) error {
	if b.bound {
		if device != b.device {
			return fmt.Errorf("autoremat: the module trains on %v, and was given a context of %v; "+
				"make one for each device", b.device, device)
		}
		return nil
	}
	account := device.Memory()
	n := accountLimit{device: device, bytes: limit, source: "Config.Limit", was: account.Limit}
	switch {
	case limit > 0:
	case account.Limit > 0:
		n.bytes, n.source = account.Limit, fmt.Sprintf("the limit of %v", device)
	case device.Kind != torch.KindCPU:
		return fmt.Errorf("autoremat: there is no limit for %v, whose free memory is unknown; set Config.Limit", device)
	default:
		free, err := torch.AvailableMemory()
		if err != nil {
			return fmt.Errorf("autoremat: there is no limit, and what is free is unknown: %w; set Config.Limit", err)
		}
		n.bytes = account.Live + account.Cached + free - reserveOf(free)
		n.source = "what is live, and what the machine and the cgroups have free, less a reserve"
	}
	n.bound = true
	*b = n
	b.enforce()
	return nil
}

// reserveOf returns the part of free bytes that a default limit leaves unused: a tenth, but at
// least 64 MiB, or half of what is free if that is less.
//
// The account counts less than the process takes. Partly used pages, cached blocks, graphs and Go's
// heap add up to a tenth. Other programs need memory as well.
func reserveOf(free int64) int64 { return max(free/10, min(64<<20, free/2)) }

// enforce restricts the account to the limit. A lower limit that the account has already stays in
// force.
func (b *accountLimit) enforce() {
	b.lift()
	b.release = b.device.Restrict(b.bytes)
}

// lift ends the restriction.
func (b *accountLimit) lift() {
	if b.release != nil {
		b.release()
	}
	b.release = nil
}

// inForce returns the lower of the module's limit and the account's own, in bytes.
func (b *accountLimit) inForce() int64 {
	if b.was > 0 {
		return min(b.was, b.bytes)
	}
	return b.bytes
}

// restore ends the restriction and forgets the device.
func (b *accountLimit) restore() {
	b.lift()
	b.bound = false
}
