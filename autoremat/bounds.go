package autoremat

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"

	"penstock/torch"
)

// bounds are a device and its limit.
type bounds struct {
	bound  bool
	device torch.Device
	limit  int64
	source string
	was    int64 // the account's limit before

	release func() // of the account's limit; nil where it is not enforced
}

// bind binds the module to a device, or checks that it is the one.
func (b *bounds) bind(device torch.Device, limit int64) error {
	if b.bound {
		if device != b.device {
			return fmt.Errorf("autoremat: the module trains on %v, and was given a context of %v; make one for each device", b.device, device)
		}
		return nil
	}
	if device.Kind != torch.KindCPU {
		return fmt.Errorf("autoremat: the memory of %v is not counted; want a CPU device", device)
	}
	account := device.Memory()
	n := bounds{device: device, limit: limit, source: "Config.Limit", was: account.Limit}
	switch {
	case limit > 0:
	case account.Limit > 0:
		n.limit, n.source = account.Limit, fmt.Sprintf("the limit of %v", device)
	default:
		free, err := available()
		if err != nil {
			return fmt.Errorf("autoremat: there is no limit, and what is free is unknown: %w; set Config.Limit", err)
		}
		n.limit, n.source = account.Live+account.Cached+free-reserveOf(free), "what is live, and MemAvailable in /proc/meminfo less a reserve"
	}
	n.bound = true
	*b = n
	b.enforce()
	return nil
}

// reserveOf is the part of free memory that a limit leaves free. The account is not the process: pages that are not full, free ones that are kept for reuse, graphs and Go's heap take up to a tenth more, and
// other programs run as well. A tenth, but at least 64 MiB, or half of what there is if that is less.
func reserveOf(free int64) int64 { return max(free/10, min(64<<20, free/2)) }

// enforce makes the limit the account's, unless that has a lower one.
func (b *bounds) enforce() {
	b.lift()
	b.release = b.device.Restrict(b.limit)
}

// lift gives the account the limit that it has without the module.
func (b *bounds) lift() {
	if b.release != nil {
		b.release()
	}
	b.release = nil
}

// most is the limit in force.
func (b *bounds) most() int64 {
	if b.was > 0 {
		return min(b.was, b.limit)
	}
	return b.limit
}

func (b *bounds) restore() {
	b.lift()
	b.bound = false
}

// available is what the machine has free for programs, in bytes.
func available() (int64, error) {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if value, ok := strings.CutPrefix(s.Text(), "MemAvailable:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
			if err != nil {
				return 0, fmt.Errorf("/proc/meminfo: %q is no number of kB", strings.TrimSpace(value))
			}
			return kib << 10, nil
		}
	}
	return 0, fmt.Errorf("/proc/meminfo has no MemAvailable")
}
