package main

import (
	"cmp"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"penstock.example/internal/system"
	"penstock.example/torch"
)

// machine is where the numbers were measured.
type machine struct {
	CPU   string `json:"cpu"`
	Cores int    `json:"cores"`
	Torch string `json:"libtorch"`
	BLAS  string `json:"blas"`
	Go    string `json:"go"`
	// OtherCores is the mean of cores that other processes used. Trust numbers below a few hundredths.
	OtherCores float64 `json:"other_cores"`
}

func describeMachine() machine {
	text, _ := os.ReadFile("/proc/cpuinfo")
	_, name, _ := strings.Cut(string(text), "model name")
	name, _, _ = strings.Cut(name, "\n")
	return machine{CPU: cmp.Or(strings.Trim(name, "\t :"), runtime.GOARCH), Cores: runtime.NumCPU(),
		Torch: torch.Version(), BLAS: system.KernelNames()["BLAS"], Go: runtime.Version()}
}

// othersTime returns the processor time of other processes. Children count until they are waited for.
func othersTime() (sum time.Duration) {
	text, _ := os.ReadFile("/proc/stat")
	line, _, _ := strings.Cut(string(text), "\n")
	var ticks int64
	// cpu user nice system idle iowait irq softirq steal guest guest_nice; user includes guests
	for i, f := range strings.Fields(line) {
		if i >= 1 && i <= 8 && i != 4 && i != 5 {
			n, _ := strconv.ParseInt(f, 10, 64)
			ticks += n
		}
	}
	sum = time.Duration(ticks) * 10 * time.Millisecond
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var r syscall.Rusage
		if syscall.Getrusage(who, &r) == nil {
			sum -= time.Duration(r.Utime.Nano() + r.Stime.Nano())
		}
	}
	return sum
}
