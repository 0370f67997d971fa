package main

import (
	"os"
	"runtime"
	"runtime/debug"

	"penstock.example/torch"
)

// garbage is the most bytes of Go's heap that may be garbage during training, unless the heap is
// smaller than that. By Go's own rule used batches may take as much as the data set, which is in
// the heap; it has no pointers, so that collecting often costs next to nothing.
const garbage = 16 << 20

// sparingly keeps Go's heap small until restore is called, unless the user has said how large it
// may get. What reading data and planning have left goes back to the system.
func sparingly() (restore func()) {
	if os.Getenv("GOGC") != "" || os.Getenv("GOMEMLIMIT") != "" {
		return func() {}
	}
	torch.TrimProcess()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	was := debug.SetGCPercent(percentFor(int64(m.HeapAlloc)))
	return func() { debug.SetGCPercent(was) }
}

// percentFor is Go's GC percentage for a heap with this many bytes in use.
func percentFor(heap int64) int { return int(min(max(100*garbage/max(heap, 1), 5), 100)) }
