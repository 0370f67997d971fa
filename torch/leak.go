package torch

import (
	"fmt"
	"runtime"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
)

// Live tensors are always counted; who made them is only recorded while tracking is on, because it
// costs a stack walk each.
var (
	liveTensors atomic.Int64
	tracking    atomic.Bool
	sites       sync.Map // *Tensor -> []uintptr
)

// LiveTensors returns the number of tensor handles in the process that were not freed.
func LiveTensors() int64 { return liveTensors.Load() }

// TrackLeaks starts or stops recording where tensors are made. Tests turn it on.
func TrackLeaks(on bool) { tracking.Store(on) }

func remember(t *Tensor) {
	liveTensors.Add(1)
	if tracking.Load() {
		pcs := make([]uintptr, 32)
		sites.Store(t, pcs[:runtime.Callers(3, pcs)])
	}
}

func forget(t *Tensor) {
	liveTensors.Add(-1)
	if tracking.Load() {
		sites.Delete(t)
	}
}

// Leaks describes the live tensors made while tracking was on, one line for each creating line of
// code: how many, what, where.
func Leaks() []string {
	count := map[string]int{}
	sites.Range(func(k, v any) bool {
		count[fmt.Sprintf("%v made at %s", k, creator(v.([]uintptr)))]++
		return true
	})
	var out []string
	for line, n := range count {
		out = append(out, fmt.Sprintf("%d x %s", n, line))
	}
	sort.Strings(out)
	return out
}

// creator is the first frame outside this package.
func creator(pcs []uintptr) string {
	frames := runtime.CallersFrames(pcs)
	for {
		f, more := frames.Next()
		if !strings.HasPrefix(f.Function, "penstock.example/torch.") || !more {
			return fmt.Sprintf("%s:%d", f.File, f.Line)
		}
	}
}
