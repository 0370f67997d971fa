package engine

import (
	"slices"
	"sync"

	"penstock.example/internal/shim"
	"penstock.example/torch"
)

// RaisePeak raises the peak to at least bytes, to restore it after a measurement that has reset it.
func RaisePeak(d torch.Device, bytes int64) { shim.RaisePeak(d.Account(), bytes) }

// OwnPeak returns the peak of live bytes since its last call, or since the process began.
func OwnPeak(d torch.Device) int64 { return shim.OwnPeak(d.Account()) }

// restrictions has the limits that hold on each device: its former limit, then those of Restrict.
var (
	restrictions   = map[torch.Device][]*int64{}
	restrictionsMu sync.Mutex
)

// Restrict limits the live bytes of a device, to more than 0, until release is called. Restrictions
// may overlap and be released in any order, and release may be called again. The lowest of all
// restrictions and of the former limit holds; the former limit returns after the last release. A
// SetLimit in between holds until the next Restrict or release.
func Restrict(d torch.Device, bytes int64) (release func()) {
	change := func(apply func([]*int64) []*int64) {
		restrictionsMu.Lock()
		defer restrictionsMu.Unlock()
		if restrictions[d] == nil {
			before := d.Memory().Limit
			restrictions[d] = []*int64{&before}
		}
		limits := apply(restrictions[d])
		restrictions[d] = limits
		lowest := *limits[0]
		for _, l := range limits[1:] {
			if lowest == 0 || *l < lowest {
				lowest = *l
			}
		}
		d.SetLimit(lowest)
		if len(limits) == 1 {
			delete(restrictions, d)
		}
	}
	change(func(limits []*int64) []*int64 { return append(limits, &bytes) })
	return sync.OnceFunc(func() {
		change(func(limits []*int64) []*int64 {
			return slices.DeleteFunc(limits, func(l *int64) bool { return l == &bytes })
		})
	})
}
