package pipe

import (
	"fmt"
	"strings"

	"penstock/torch"
)

// BudgetError says which stages need more memory than they may have, and how much would do. It lists all of them, so that what it asks for is asked for once. errors.Is(err, torch.ErrOutOfMemory) holds.
type BudgetError struct {
	Stages []Shortage // in order; at least one
}

// Shortage is a stage that needs more memory than its device may hold. Sizes are bytes of the device, everything on it counted.
type Shortage struct {
	Stage  int
	Device torch.Device
	Limit  int64
	Least  int64  // the least limit that will do
	SetBy  string // what needs so much, such as `layer "conv1"`; "" where it is no single thing
}

// String says what the stage needs and what it may have.
func (s Shortage) String() string {
	text := fmt.Sprintf("stage %d on %v needs %d bytes", s.Stage, s.Device, s.Least)
	if s.SetBy != "" {
		text += fmt.Sprintf(", set by %s,", s.SetBy)
	}
	return text + fmt.Sprintf(" and may have %d", s.Limit)
}

// Least is a limit in bytes that will do for every device of the stages that are listed.
func (e *BudgetError) Least() (bytes int64) {
	for _, s := range e.Stages {
		bytes = max(bytes, s.Least)
	}
	return bytes
}

// Shortages lists the stages as text.
func (e *BudgetError) Shortages() string {
	var list []string
	for _, s := range e.Stages {
		list = append(list, s.String())
	}
	return strings.Join(list, "; ")
}

// Error lists the stages and ends with the remedy.
func (e *BudgetError) Error() string {
	return fmt.Sprintf("pipe: %s; use a limit of at least %d bytes, more chunks, or more stages", e.Shortages(), e.Least())
}

// Is says that it is a want of memory.
func (e *BudgetError) Is(target error) bool { return target == torch.ErrOutOfMemory }
