package torch

import (
	"fmt"
	"runtime"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
)

// Live tensors are always counted. Their creators are recorded only while tracking is on, because
// each record costs a stack walk.
var (
	liveTensors atomic.Int64
	tracking    atomic.Bool
	sites       sync.Map // *Tensor -> []uintptr
)

// LiveTensors returns the number of tensor handles of the process that were not freed.
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

// Leaks describes the live tensors made while tracking was on, one text for each creating line of
// code: number, type and place.
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
