package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"penstock.example/internal/arg"
)

// MemoryError lists all devices whose limit is too low, and which limits would do.
type MemoryError struct {
	Stages []Shortage // in order; at least one
}

// Shortage is a device whose stages need more bytes than it may hold.
type Shortage struct {
	Stage  int    // the first on the device
	Others []int  // the others on it
	Device string // such as "cpu:0"
	Limit  int64
	// Least is the lowest limit known to be enough. It does not depend on measured times. In about
	// one of a thousand cases a plan with some bytes less exists.
	Least int64
	SetBy string // the cause, such as `layer "conv1"`; "" if there are several
}

// Update is the bytes that a device holds while the parameters of its stages are updated.
type Update struct {
	Device string
	Stages []int // in order; at least one
	Limit  int64 // 0 is none
	Bytes  int64
}

// WithUpdates adds devices that exceed their limit in an update to the error of a step; nil if the step
// fits. It returns nil if everything fits, and does not change e.
func (e *MemoryError) WithUpdates(updates []Update) *MemoryError {
	out := &MemoryError{}
	if e != nil {
		out.Stages = slices.Clone(e.Stages)
	}
	for _, u := range updates {
		if u.Limit == 0 || u.Bytes <= u.Limit {
			continue
		}
		at := slices.IndexFunc(out.Stages, func(s Shortage) bool { return s.Device == u.Device })
		if at < 0 {
			at = len(out.Stages)
			out.Stages = append(out.Stages,
				Shortage{Stage: u.Stages[0], Others: u.Stages[1:], Device: u.Device, Limit: u.Limit})
		}
		if s := &out.Stages[at]; u.Bytes > s.Least {
			s.Least, s.SetBy = u.Bytes, "the optimizer's update"
		}
	}
	if len(out.Stages) == 0 {
		return nil
	}
	slices.SortFunc(out.Stages, func(a, b Shortage) int { return cmp.Compare(a.Stage, b.Stage) })
	return out
}

func (s Shortage) String() string {
	verb := "needs"
	if len(s.Others) > 0 {
		verb = "need"
	}
	text := fmt.Sprintf("%s on %s %s %s", arg.Numbered("stage", append([]int{s.Stage}, s.Others...)),
		s.Device, verb, arg.Size(s.Least))
	if s.SetBy != "" {
		text += fmt.Sprintf(", set by %s,", s.SetBy)
	}
	return text + " and may have " + arg.Size(s.Limit)
}

// Least returns a limit in bytes that is enough for each listed device.
func (e *MemoryError) Least() (most int64) {
	for _, s := range e.Stages {
		most = max(most, s.Least)
	}
	return most
}

// Shortages lists the stages as text.
func (e *MemoryError) Shortages() string {
	var list []string
	for _, s := range e.Stages {
		list = append(list, s.String())
	}
	return strings.Join(list, "; ")
}

func (e *MemoryError) Error() string {
	return fmt.Sprintf("pipe: %s; use a limit of at least %s, more chunks, or more stages", e.Shortages(),
		arg.Size(e.Least()))
}
