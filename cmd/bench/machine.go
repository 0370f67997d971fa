package main

import (
	"cmp"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"penstock.example/torch"
)

// machine is what the numbers were measured on.
type machine struct {
	CPU      string `json:"cpu"`
	Cores    int    `json:"cores"`
	Libtorch string `json:"libtorch"`
	BLAS     string `json:"blas"` // kernels
	Go       string `json:"go"`
	// OtherCores is how many cores processes other than this one and its children kept busy, on
	// average over the run; -1 is unknown. Above a few hundredths the numbers are not to be
	// trusted.
	OtherCores float64 `json:"other_cores"`
}

func describeMachine() machine {
	return machine{CPU: cpuModel(), Cores: runtime.NumCPU(), Libtorch: torch.Version(), BLAS: torch.BLASCore(), Go: runtime.Version(), OtherCores: -1}
}

func cpuModel() string {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return runtime.GOARCH
	}
	return parseCPU(string(text))
}

// parseCPU names the first processor of /proc/cpuinfo as the kernel does: a virtual one often hides
// its maker's name for it, but not its family, model and stepping.
func parseCPU(text string) string {
	first, _, _ := strings.Cut(text, "\n\n")
	fields := map[string]string{}
	for line := range strings.Lines(first) {
		if name, value, ok := strings.Cut(line, ":"); ok {
			fields[strings.TrimSpace(name)] = strings.TrimSpace(value)
		}
	}
	name := cmp.Or(fields["model name"], runtime.GOARCH)
	if fields["cpu family"] == "" {
		return name
	}
	return fmt.Sprintf("%s (family %s, model %s, stepping %s)", name, fields["cpu family"], fields["model"], cmp.Or(fields["stepping"], "unknown"))
}

// allowedCores lists the cores that this process may run on, nil where that is not known.
func allowedCores() []int {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(text)) {
		if list, ok := strings.CutPrefix(line, "Cpus_allowed_list:"); ok {
			return parseCores(strings.TrimSpace(list))
		}
	}
	return nil
}

// parseCores reads the kernel's list of numbers and ranges, such as 0-3,8; nil for what is none.
func parseCores(list string) []int {
	var cores []int
	for part := range strings.SplitSeq(list, ",") {
		from, to, ok := strings.Cut(part, "-")
		if !ok {
			to = from
		}
		first, err := strconv.Atoi(from)
		last, err2 := strconv.Atoi(to)
		if err != nil || err2 != nil {
			return nil
		}
		for i := first; i <= last; i++ {
			cores = append(cores, i)
		}
	}
	return cores
}

// usage is a moment from which the use of the processor is counted.
type usage struct {
	at              time.Time
	machine, itself time.Duration
}

func startUsage() usage { return usage{time.Now(), machineTime(), ownTime()} }

// others is the number of cores that others kept busy since. Children count as our own once they
// have been waited for.
func (u usage) others() float64 {
	if u.machine == 0 {
		return -1
	}
	busy := (machineTime() - u.machine) - (ownTime() - u.itself)
	return max(busy.Seconds()/time.Since(u.at).Seconds(), 0)
}

// machineTime is the processor time that the whole machine has spent not idle, 0 where that is not
// known. The kernel counts in hundredths of a second.
func machineTime() time.Duration {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	line, _, _ := strings.Cut(string(text), "\n")
	var ticks int64
	for i, f := range strings.Fields(line) { // cpu user nice system idle iowait irq softirq steal guest guest_nice; guests are in user already
		if i == 0 || i == 4 || i == 5 || i > 8 {
			continue
		}
		n, _ := strconv.ParseInt(f, 10, 64)
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

func ownTime() time.Duration {
	var sum time.Duration
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var r syscall.Rusage
		if syscall.Getrusage(who, &r) == nil {
			sum += time.Duration(r.Utime.Nano() + r.Stime.Nano())
		}
	}
	return sum
}
