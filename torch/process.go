package torch

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"runtime/debug"
	"runtime/metrics"
	"slices"
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

// AvailableMemory is the number of bytes that the process can still take: the machine's MemAvailable
// (/proc/meminfo), or less if a cgroup, from the process's own up to the root, has less left under its limit.
// Files that a cgroup has read and not used lately count as free, as the system drops them first. Swap
// does not count.
func AvailableMemory() (int64, error) { return availableMemory("/") }

// availableMemory is AvailableMemory of a system whose files are under root.
func availableMemory(root string) (int64, error) {
	text, err := os.ReadFile(filepath.Join(root, "proc/meminfo"))
	if err != nil {
		return 0, err
	}
	free, err := freeOfMachine(string(text))
	if err != nil {
		return 0, err
	}
	text, _ = os.ReadFile(filepath.Join(root, "proc/self/cgroup")) // not there without cgroups
	for line := range strings.Lines(string(text)) {
		_, of, _ := strings.Cut(strings.TrimSpace(line), ":")
		controllers, group, _ := strings.Cut(of, ":")
		switch {
		case controllers == "": // version 2
			free = freeOfCgroups(free, filepath.Join(root, "sys/fs/cgroup"), group, "memory.max",
				"memory.current", "inactive_file")
		case slices.Contains(strings.Split(controllers, ","), "memory"): // version 1
			free = freeOfCgroups(free, filepath.Join(root, "sys/fs/cgroup/memory"), group,
				"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
		}
	}
	return free, nil
}

// freeOfMachine is MemAvailable of the text of /proc/meminfo.
func freeOfMachine(text string) (int64, error) {
	for line := range strings.Lines(text) {
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

// freeOfCgroups is free, or less if a group or a group above it, up to the mount point, has less left.
// A group that is not under the mount point counts as unlimited: a container may see its own groups
// alone, and their path on the host.
func freeOfCgroups(free int64, mount, group, limit, usage, inactive string) int64 {
	for group = path.Join("/", group); ; group = path.Dir(group) {
		number := func(file string) (int64, bool) {
			text, _ := os.ReadFile(filepath.Join(mount, group, file))
			n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
			return n, err == nil // no limit is "max", or no file
		}
		most, limited := number(limit)
		used, known := number(usage)
		if limited && known {
			stat, _ := os.ReadFile(filepath.Join(mount, group, "memory.stat"))
			for line := range strings.Lines(string(stat)) {
				if value, ok := strings.CutPrefix(line, inactive+" "); ok {
					files, _ := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
					used -= files
				}
			}
			free = min(free, max(0, most-used))
		}
		if group == "/" {
			return free
		}
	}
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
