package system

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"

	"penstock.example/internal/shim"
)

// ResidentMemory returns the memory of this process in bytes, now and at its peak: VmRSS and VmHWM of
// /proc/self/status, or 0.
func ResidentMemory() (now, peak int64) {
	text, _ := os.ReadFile("/proc/self/status")
	now, peak = number(text, "VmRSS:"), number(text, "VmHWM:")
	return now << 10, max(now, peak) << 10 // the system updates the two at different times
}

// number returns the number after a word that begins a line, or 0.
func number(text []byte, word string) int64 {
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == word {
			n, _ := strconv.ParseInt(f[1], 10, 64)
			return n
		}
	}
	return 0
}

// AvailableMemory returns the bytes that the process can still take: the machine's MemAvailable
// (/proc/meminfo), or less if a limit of its cgroup (version 2), or of a group above, leaves less
// memory. Inactive file pages of a group count as free, as the system drops them first. Swap does
// not count. A missing group counts as unlimited: a container may see its own groups alone, with
// the host's paths. root is "/", or a folder with files of /proc and /sys.
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
		if err == nil { // otherwise it is "max", or the file is missing
			used := number(append([]byte("used "), read("memory.current")...), "used")
			free = min(free, max(0, limit-used+number(read("memory.stat"), "inactive_file")))
		}
		if group == "/" {
			return free, nil
		}
	}
}

// CheckAddressSpace returns an error if this process may use too few addresses (RLIMIT_AS). Libraries,
// heaps, and the stacks and buffers of threads take many more addresses than memory. If OpenBLAS gets
// no buffer, it hangs.
func CheckAddressSpace() error {
	var limit syscall.Rlimit
	need := uint64(4<<30 + runtime.NumCPU()<<27)
	if syscall.Getrlimit(syscall.RLIMIT_AS, &limit) != nil || limit.Cur >= need {
		return nil
	}
	return fmt.Errorf("this process may use only %d MiB of addresses; want ulimit -v %d or unlimited, and "+
		"--memory-limit to limit memory", limit.Cur>>20, need>>10)
}

// TrimProcess returns free memory of malloc's and Go's heaps to the system. It takes milliseconds.
// Device.Trim frees the cached blocks of devices.
func TrimProcess() {
	shim.TrimHeap()
	debug.FreeOSMemory()
}
