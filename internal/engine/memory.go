package engine

import (
	"slices"
	"sync"

	"penstock.example/internal/shim"
	"penstock.example/torch"
)

// RaisePeak raises the peak to at least that. Code that has reset the peak to measure a
// part of a longer measurement restores the longer one's peak with it.
func RaisePeak(d torch.Device, bytes int64) { shim.RaisePeak(d.Account(), bytes) }

// OwnPeak returns the peak of live bytes since its last call, or since the process began.
func OwnPeak(d torch.Device) int64 { return shim.OwnPeak(d.Account()) }

// restrictions are the limits in force of Restrict, by device, after the limit that was there before.
var restrictions struct {
	mu sync.Mutex
	of map[torch.Device][]*int64
}

// Restrict limits the live bytes of a device, to more than 0, until release is
// called. Restrictions may overlap and be released in any order, and release may be called again.
// The limit in force is the lowest of all restrictions and of the limit before them, which returns
// when the last is released. A SetLimit in between holds until the next Restrict or release.
func Restrict(d torch.Device, bytes int64) (release func()) {
	r := &restrictions
	change := func(how func([]*int64) []*int64) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.of == nil {
			r.of = map[torch.Device][]*int64{}
		}
		if r.of[d] == nil {
			before := d.Memory().Limit
			r.of[d] = []*int64{&before}
		}
		limits := how(r.of[d])
		r.of[d] = limits
		lowest := *limits[0]
		for _, l := range limits[1:] {
			if lowest == 0 || *l < lowest {
				lowest = *l
			}
		}
		d.SetLimit(lowest)
		if len(limits) == 1 {
			delete(r.of, d)
		}
	}
	change(func(limits []*int64) []*int64 { return append(limits, &bytes) })
	return sync.OnceFunc(func() {
		change(func(limits []*int64) []*int64 {
			return slices.DeleteFunc(limits, func(l *int64) bool { return l == &bytes })
		})
	})
}
