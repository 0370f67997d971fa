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

// ResidentMemory is the bytes of the machine's memory that this process holds, now and at most so far: VmRSS
// and VmHWM of /proc/self/status, or 0.
func ResidentMemory() (now, peak int64) {
	text, _ := os.ReadFile("/proc/self/status")
	now, peak = number(text, "VmRSS:"), number(text, "VmHWM:")
	return now << 10, max(now, peak) << 10 // the system counts in batches, and not both at once
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
// them first. Swap does not count. A missing group counts as unlimited: a container may see its own groups
// alone, and their path on the host. The system's files are under root, which is "/".
func AvailableMemory(root string) (int64, error) {
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

// TrimProcess gives free parts of the heaps of malloc and of Go back to the system, in milliseconds. Cached
// blocks of devices are left to Device.Trim.
func TrimProcess() {
	shim.TrimHeap()
	debug.FreeOSMemory()
}
