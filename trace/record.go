package trace

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// record is one trace event of any type. Fields that a type does not have are absent.
type record struct {
	Phase string  `json:"ph"`
	Pid   int     `json:"pid"`
	Tid   int     `json:"tid,omitempty"`
	Ts    *micros `json:"ts,omitempty"`
	Dur   *micros `json:"dur,omitempty"`
	Name  string  `json:"name"`
	Cat   string  `json:"cat,omitempty"`
	ID    int     `json:"id,omitempty"`
	Bind  string  `json:"bp,omitempty"`
	Args  *args   `json:"args,omitempty"`
}

// The values of record.Phase.
const (
	phaseMetadata = "M"
	phaseComplete = "X" // a slice: start and duration
	phaseCounter  = "C"
	phaseFlowFrom = "s" // an arrow starts at the slice around this moment,
	phaseFlowVia  = "t" // goes on through another,
	phaseFlowTo   = "f" // and ends
)

// The names of metadata records.
const (
	metaProcess = "process_name"
	metaThread  = "thread_name"
	metaSort    = "thread_sort_index"
)

// pid is the process of the workers, which are its threads. Reductions have one of their own with
// the same threads, as they go on beside what their worker does, and slices of a thread must not
// overlap. Perfetto takes a thread 0 for the kernel's idle thread, so worker 0 is thread 1.
const (
	pid           = 1
	pidReductions = 2
)

func tid(worker int) int { return worker + 1 }

// args holds the arguments of all types of records.
type args struct {
	Name       string `json:"name,omitempty"`
	SortIndex  *int   `json:"sort_index,omitempty"`
	Action     string `json:"action,omitempty"`
	Stage      *int   `json:"stage,omitempty"`
	MicroBatch *int   `json:"micro_batch,omitempty"`
	Live       int64  `json:"live_bytes,omitempty"`
	Bytes      *int64 `json:"bytes,omitempty"`
}

// micros is a time that JSON shows in microseconds. Three decimals hold the nanoseconds, so nothing
// is lost, as it would be through a float once a trace is some months long.
type micros time.Duration

func (m micros) MarshalJSON() ([]byte, error) {
	if m < 0 {
		return nil, fmt.Errorf("negative time %v", time.Duration(m))
	}
	return fmt.Appendf(nil, "%d.%03d", m/1000, m%1000), nil
}

func (m *micros) UnmarshalJSON(text []byte) error {
	whole, decimals, _ := strings.Cut(string(text), ".")
	us, err := strconv.ParseUint(whole, 10, 63)
	ns, err2 := strconv.ParseUint(decimals, 10, 63)
	if err != nil || err2 != nil || len(decimals) != 3 || us > (1<<63-1000)/1000 {
		return fmt.Errorf("%s is not a time in microseconds with three decimals", text)
	}
	*m = micros(us*1000 + ns)
	return nil
}
