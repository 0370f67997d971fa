package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"penstock.example/internal/arg"
)

// MemoryError says on which devices stages need more memory than they may have, and which limits
// would do. It lists all of them, so that they can be corrected at once.
type MemoryError struct {
	Stages []Shortage // in order; at least one
}

// Shortage is a device on which stages need more memory than it may hold. Sizes are bytes of the
// device, with all that is on it.
type Shortage struct {
	Stage  int    // the first that is on the device
	Others []int  // the others
	Device string // such as "cpu:0"
	Limit  int64
	// Least is the lowest limit known to be enough. It does not depend on measured times. In about
	// one of a thousand cases a plan with some bytes less exists.
	Least int64
	SetBy string // the cause, such as `layer "conv1"`; "" if it is not one thing
}

// Update is the bytes that a device holds while the parameters of its stages are updated.
type Update struct {
	Device string
	Stages []int // in order; at least one
	Limit  int64 // 0 is none
	Bytes  int64
}

// WithUpdates adds the devices that exceed their limit in an update to the error of a step, which
// is nil if the step fits. It returns nil if everything fits. e is not changed.
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

// String says how much the stage needs, and its limit.
func (s Shortage) String() string {
	text := fmt.Sprintf("stage %d on %s needs %s", s.Stage, s.Device, arg.Size(s.Least))
	if len(s.Others) > 0 {
		text = fmt.Sprintf("%s on %s need %s", arg.Numbered("stage", append([]int{s.Stage}, s.Others...)),
			s.Device, arg.Size(s.Least))
	}
	if s.SetBy != "" {
		text += fmt.Sprintf(", set by %s,", s.SetBy)
	}
	return text + " and may have " + arg.Size(s.Limit)
}

// Least is a limit in bytes that will do for the device of every listed stage.
func (e *MemoryError) Least() int64 {
	return slices.MaxFunc(e.Stages, func(a, b Shortage) int { return cmp.Compare(a.Least, b.Least) }).Least
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
