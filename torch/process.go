package torch

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"strings"

	"penstock.example/internal/shim"
)

// ProcessMemory is the memory of the machine that the whole process holds, in bytes: what its
// devices' accounts have taken, libtorch itself, and the heaps of Go and malloc.
type ProcessMemory struct {
	Resident int64 // now
	Peak     int64 // at most since the process began
}

// ReadProcessMemory reads VmRSS and VmHWM from /proc/self/status. Numbers that the system does not
// give are 0.
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

// AvailableMemory is the bytes that the machine has for programs, MemAvailable in /proc/meminfo.
func AvailableMemory() (int64, error) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "MemAvailable:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
			if err != nil {
				return 0, fmt.Errorf("/proc/meminfo: %q is no number of kB", strings.TrimSpace(value))
			}
			return kib << 10, nil
		}
	}
	return 0, errors.New("/proc/meminfo has no MemAvailable")
}

// trimGoFrom is the least bytes of free Go heap that TrimProcess gives back, as that takes a
// garbage collection.
const trimGoFrom = 32 << 20

// TrimProcess gives unused memory of the process back to the system: free parts of malloc's heap
// and, if they are large, of Go's. Cached blocks of devices are left to Device.Trim. It takes
// milliseconds, and is meant for the end of work that took much memory, such as measuring or
// planning.
func TrimProcess() {
	shim.TrimHeap()
	kept := []metrics.Sample{
		{Name: "/memory/classes/heap/free:bytes"},
		{Name: "/memory/classes/heap/unused:bytes"},
		{Name: "/memory/classes/heap/objects:bytes"},
	}
	metrics.Read(kept)
	sum := uint64(0)
	for _, k := range kept {
		sum += k.Value.Uint64()
	}
	if sum >= trimGoFrom {
		debug.FreeOSMemory()
	}
}
