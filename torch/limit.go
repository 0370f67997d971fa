package torch

import (
	"slices"
	"sync"
)

// restrictions are those in force on the accounts of CPU devices, which are the process's as well.
var restrictions struct {
	mu sync.Mutex
	of map[Device]*restricted
}

// restricted is a device that somebody restricts.
type restricted struct {
	was    int64 // limit before the first of them
	limits []*int64
}

// Restrict limits the live bytes of a CPU device to at most so many, more than 0, until release is called: the limit in force is the lowest of those of all who restrict it and of the one that it had before them. When the
// last has released it, it has that again. They may release in any order, and again. SetLimit meanwhile holds until the next Restrict or release.
//
// That each puts back the limit that it has found is tempting, but who comes first need not go last: the limit of one that has gone would stay.
func (d Device) Restrict(bytes int64) (release func()) {
	if d.Kind != KindCPU {
		return func() {}
	}
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
