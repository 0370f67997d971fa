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
	// OtherCores is the number of cores that other processes kept busy, on average; -1 is unknown.
	// Numbers measured above a few hundredths are not to be trusted.
	OtherCores float64 `json:"other_cores"`
}

func describeMachine() machine {
	text, _ := os.ReadFile("/proc/cpuinfo")
	cpu, avx512 := parseCPU(string(text))
	return machine{CPU: cpu, AVX512: avx512, Cores: cores(), Torch: torch.Version(),
		BLAS: torch.BLASCore(), Go: runtime.Version(), OtherCores: -1}
}

func (m machine) String() string {
	with, blas, others := "with", "", "an unknown number of"
	if !m.AVX512 {
		with = "without"
	}
	if m.BLAS != "" {
		blas = ", OpenBLAS kernels for " + m.BLAS
	}
	if m.OtherCores >= 0 {
		others = fmt.Sprintf("%.2f", m.OtherCores)
	}
	return fmt.Sprintf("%s %s AVX-512, %d cores; Penstock on libtorch %s%s, %s; other processes used %s cores",
		m.CPU, with, m.Cores, m.Torch, blas, m.Go, others)
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

// usage is a moment from which the use of the processor is counted.
type usage struct {
	at              time.Time
	machine, itself time.Duration
}

func startUsage() usage { return usage{time.Now(), machineTime(), ownTime()} }

// others returns the number of cores that other processes kept busy since. Children are not others
// once they have been waited for.
func (u usage) others() float64 {
	if u.machine == 0 {
		return -1
	}
	busy := (machineTime() - u.machine) - (ownTime() - u.itself)
	return max(busy.Seconds()/time.Since(u.at).Seconds(), 0)
}

// machineTime returns the busy processor time of the whole machine, 0 if it is unknown.
func machineTime() time.Duration {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	line, _, _ := strings.Cut(string(text), "\n")
	var ticks int64
	// cpu user nice system idle iowait irq softirq steal guest guest_nice; user includes guests
	for i, f := range strings.Fields(line) {
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
