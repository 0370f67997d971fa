package profile

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"

	"penstock.example/torch"
)

// Bytes are read from a device's account, so each measurement reserves its device. It does not wait
// for one, as a layer may itself run a pipe that measures.
var reserving sync.Mutex

// IdleDevice reserves a CPU device that holds nothing and has no limit, and gives it a limit, or
// with 0 an endless one. release gives the device back. If all devices are in use it fails.
func IdleDevice(limit int64) (d torch.Device, release func(), err error) {
	reserving.Lock()
	defer reserving.Unlock()
	for i := torch.MaxCPU - 1; i >= 0; i-- {
		d := torch.CPU(i)
		if m := d.Memory(); m.Live == 0 && m.Limit == 0 {
			d.SetLimit(cmp.Or(limit, math.MaxInt64)) // nobody else takes it then
			return d, func() { d.SetLimit(0) }, nil
		}
	}
	return d, nil, fmt.Errorf("profile: all %d CPU devices are in use; use fewer stages", torch.MaxCPU)
}

// cores is the number of cores. Tests replace it.
var cores = runtime.NumCPU

// reserveOthers reserves devices that work while Device does, one for each free core, with Device's
// limit. With a clock of the caller there are none.
func (p *prober) reserveOthers() (release func()) {
	if p.Device.Kind == torch.KindCPU && p.Clock == nil {
		for range min(p.Devices, cores()/p.Threads) - 1 {
			d, _, err := IdleDevice(p.Device.Memory().Limit)
			if err != nil {
				break
			}
			p.others = append(p.others, d)
		}
	}
	return func() {
		for _, d := range p.others {
			d.Trim()
			d.SetLimit(0)
		}
		p.others = nil
	}
}

// isFull reports whether the device's limit caused an error.
func (p *prober) isFull(err error) bool {
	return errors.Is(err, torch.ErrOutOfMemory) && p.Device.Memory().Limit > 0
}
