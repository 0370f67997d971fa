package system

import (
	"errors"
	"os"
	"path"
	"path/filepath"
	"runtime/debug"
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
func ReadProcessMemory() ProcessMemory {
	text, _ := os.ReadFile("/proc/self/status")
	now, peak := number(text, "VmRSS:"), number(text, "VmHWM:")
	// the system counts in batches, and not both at once
	return ProcessMemory{now << 10, max(now, peak) << 10}
}

// number is that after a word that begins a line, or 0.
func number(text []byte, word string) int64 {
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == word {
			n, _ := strconv.ParseInt(f[1], 10, 64)
			return n
		}
	}
	return 0
}

// AvailableMemory is the number of bytes that the process can still take: the machine's MemAvailable
// (/proc/meminfo), or less if a cgroup of version 2, from the process's own up to the root, has less left
// under its limit. Files that a cgroup has read and not used lately count as free, as the system drops
// them first. Swap does not count.
func AvailableMemory() (int64, error) { return AvailableMemoryUnder("/") }

// AvailableMemoryUnder is AvailableMemory of a system whose files are under root. A group that is not there
// counts as unlimited: a container may see its own groups alone, and their path on the host.
func AvailableMemoryUnder(root string) (int64, error) {
	text, err := os.ReadFile(filepath.Join(root, "proc/meminfo"))
	if err != nil {
		return 0, err
	}
	free := number(text, "MemAvailable:") << 10
	if free == 0 {
		return 0, errors.New("/proc/meminfo has no MemAvailable")
	}
	text, _ = os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	_, group, _ := strings.Cut("\n"+string(text), "\n0::")
	group, _, _ = strings.Cut(group, "\n")
	for group = path.Join("/", group); ; group = path.Dir(group) {
		read := func(file string) []byte {
			text, _ := os.ReadFile(filepath.Join(root, "sys/fs/cgroup", group, file))
			return text
		}
		limit, err := strconv.ParseInt(strings.TrimSpace(string(read("memory.max"))), 10, 64)
		if err == nil { // no limit is "max", or no file
			used := number(append([]byte("used "), read("memory.current")...), "used")
			free = min(free, max(0, limit-used+number(read("memory.stat"), "inactive_file")))
		}
		if group == "/" {
			return free, nil
		}
	}
}

// TrimProcess gives unused memory of the process back to the system: free parts of the heaps of malloc
// and of Go. Cached blocks of devices are left to Device.Trim. It takes milliseconds, and is meant for
// the end of work that took much memory, such as measuring or planning.
func TrimProcess() {
	shim.TrimHeap()
	debug.FreeOSMemory()
}
