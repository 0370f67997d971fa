package schedule

import (
	"fmt"
	"strings"
)

// Rule names what a program violates.
type Rule string

const (
	// RuleHeader: the numbers of stages and micro-batches are positive and sane, the phase is
	// known; skips are within the stages, run from an earlier to a later one that is not its
	// neighbour, and are sorted, each once.
	RuleHeader Rule = "header"
	// RuleUnknown: every action is well formed and belongs to the program's stages, micro-batches,
	// skips and phase.
	RuleUnknown Rule = "unknown"
	// RuleDuplicate: no action occurs twice, and no backward both whole and in parts.
	RuleDuplicate Rule = "duplicate"
	// RuleMissing: forward, backward or both of its parts, sends and receives are there for every
	// stage, skip and micro-batch; and a reduction for every stage, if there is one for any.
	RuleMissing Rule = "missing"
	// RulePlacement: all actions of a stage are on one worker.
	RulePlacement Rule = "placement"
	// RuleOrder: a worker performs no action before one of its own that it needs. As forward and
	// backward of a micro-batch need those of the one before, both ascend on every stage, and so
	// does either part of a backward. A reduction follows all of them.
	RuleOrder Rule = "order"
	// RuleInOrder: what one worker sends another is received in the order in which it is sent.
	RuleInOrder Rule = "in order"
	// RuleDeadlock: workers that wait for each other get to the end.
	RuleDeadlock Rule = "deadlock"
)

// Violation is one thing that is wrong with a program.
type Violation struct {
	Rule     Rule
	Worker   int    // that performs the action
	Position int    // of the action in the worker's list, counted from 1; zero for what is not about an action that is there
	Action   Action // if Position is not zero
	Reason   string
}

func (v Violation) Error() string {
	if v.Position == 0 {
		return fmt.Sprintf("%s: %s", v.Rule, v.Reason)
	}
	return fmt.Sprintf("%s: worker %d, action %d, %v: %s", v.Rule, v.Worker, v.Position, v.Action, v.Reason)
}

// Violations is the error that [Check] returns: what is wrong with a program, one per line.
type Violations []Violation

func (vs Violations) Error() string {
	var b strings.Builder
	b.WriteString("schedule: the program cannot run:")
	for _, v := range vs {
		b.WriteString("\n\t")
		b.WriteString(v.Error())
	}
	return b.String()
}
