package torch

import (
	"os"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"strings"

	"penstock/internal/shim"
)

// ProcessMemory is the memory that the whole process holds of the machine, in bytes: what the accounts of its devices have taken, libtorch itself, the heaps of Go and of malloc.
type ProcessMemory struct {
	Resident int64 // now
	Peak     int64 // at most since the process began
}

// ReadProcessMemory asks the system (VmRSS and VmHWM in /proc/self/status); numbers that it does not tell are 0.
func ReadProcessMemory() (m ProcessMemory) {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return m
	}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		switch {
		case err != nil:
		case name == "VmRSS":
			m.Resident = kib << 10
		case name == "VmHWM":
			m.Peak = kib << 10
		}
	}
	m.Peak = max(m.Peak, m.Resident) // the system counts in batches, and not both at once
	return m
}

// trimGoFrom is how much of its heap Go must be keeping for TrimProcess to ask for it, which takes a garbage collection.
const trimGoFrom = 32 << 20

// TrimProcess gives back to the system what the process keeps without using it: free parts of malloc's heap and, if they are large, of Go's. Cached blocks of devices are Device.Trim's. It is meant for after
// something that took much memory for a while, such as measuring or planning, and takes milliseconds.
func TrimProcess() {
	shim.TrimHeap()
	kept := []metrics.Sample{{Name: "/memory/classes/heap/free:bytes"}, {Name: "/memory/classes/heap/unused:bytes"}, {Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(kept)
	sum := uint64(0)
	for _, k := range kept {
		sum += k.Value.Uint64()
	}
	if sum >= trimGoFrom {
		debug.FreeOSMemory()
	}
}
