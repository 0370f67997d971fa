package torch

import (
	"slices"
	"sync"
)

// restrictions are those in force on the accounts of devices. Like the accounts, they belong to
// the process.
var restrictions struct {
	mu sync.Mutex
	of map[Device]*restricted
}

// restricted is the restrictions of one device.
type restricted struct {
	was    int64 // the limit before the first restriction; 0 is none
	limits []*int64
}

// Restrict limits the live bytes of a device to at most so many, more than 0, until release is
// called. Restrictions may overlap and be released in any order, and release may be called again.
// The limit in force is the lowest of all restrictions and of the limit before them, which returns
// when the last is released. A SetLimit in between holds until the next Restrict or release.
//
// It is tempting to let each restriction restore the limit that it found. But the first to come
// need not be the last to go, and the limit of one that has gone would stay.
func (d Device) Restrict(bytes int64) (release func()) {
	limit := &bytes
	r := &restrictions
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.of[d] == nil {
		if r.of == nil {
			r.of = map[Device]*restricted{}
		}
		r.of[d] = &restricted{was: d.Memory().Limit}
	}
	r.of[d].limits = append(r.of[d].limits, limit)
	r.of[d].enforce(d)
	return sync.OnceFunc(func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		now := r.of[d]
		now.limits = slices.DeleteFunc(now.limits, func(l *int64) bool { return l == limit })
		now.enforce(d)
		if len(now.limits) == 0 {
			delete(r.of, d)
		}
	})
}

func (r *restricted) enforce(d Device) {
	lowest := r.was
	for _, l := range r.limits {
		if lowest == 0 || *l < lowest {
			lowest = *l
		}
	}
	d.SetLimit(lowest)
}
