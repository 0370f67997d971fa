package main

import (
	"cmp"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"penstock.example/torch"
)

// machine is where the numbers were measured.
type machine struct {
	CPU    string `json:"cpu"`
	AVX512 bool   `json:"avx512"`
	Cores  int    `json:"cores"`
	Torch  string `json:"libtorch"`
	BLAS   string `json:"blas"`
	Go     string `json:"go"`
	// OtherCores is how many cores other processes kept busy, on average. Numbers measured above a
	// few hundredths are not to be trusted.
	OtherCores float64 `json:"other_cores"`
}

func describeMachine() machine {
	text, _ := os.ReadFile("/proc/cpuinfo")
	cpu, avx512 := parseCPU(string(text))
	return machine{CPU: cpu, AVX512: avx512, Cores: cores(), Torch: torch.Version(),
		BLAS: torch.BLASCore(), Go: runtime.Version()}
}

func (m machine) String() string {
	with := map[bool]string{true: "with", false: "without"}[m.AVX512]
	return fmt.Sprintf("%s %s AVX-512, %d cores; Penstock on libtorch %s, BLAS kernels %s, %s; "+
		"other processes used %.2f cores", m.CPU, with, m.Cores, m.Torch, cmp.Or(m.BLAS, "none"), m.Go, m.OtherCores)
}

// parseCPU names the first processor of /proc/cpuinfo and says whether it has AVX-512. Virtual
// processors often hide their maker's name, but not family, model and stepping.
func parseCPU(text string) (name string, avx512 bool) {
	first, _, _ := strings.Cut(text, "\n\n")
	fields := map[string]string{}
	for line := range strings.Lines(first) {
		if name, value, ok := strings.Cut(line, ":"); ok {
			fields[strings.TrimSpace(name)] = strings.TrimSpace(value)
		}
	}
	avx512 = slices.Contains(strings.Fields(fields["flags"]), "avx512f")
	name = cmp.Or(fields["model name"], runtime.GOARCH)
	if fields["cpu family"] == "" {
		return name, avx512
	}
	return fmt.Sprintf("%s (family %s, model %s, stepping %s)", name, fields["cpu family"],
		fields["model"], cmp.Or(fields["stepping"], "unknown")), avx512
}

// othersTime returns the processor time of other processes. Children are not others once they have
// been waited for.
func othersTime() time.Duration { return machineTime() - ownTime() }

// machineTime returns the processor time that the whole machine was busy.
func machineTime() time.Duration {
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
	return time.Duration(ticks) * 10 * time.Millisecond
}

// ownTime returns the processor time of this process and of the children it waited for.
func ownTime() (sum time.Duration) {
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var r syscall.Rusage
		if syscall.Getrusage(who, &r) == nil {
			sum += time.Duration(r.Utime.Nano() + r.Stime.Nano())
		}
	}
	return sum
}
