package schedule

import (
	"fmt"
	"strings"
)

// Rule is a rule that a program violates.
type Rule string

const (
	// RuleHeader: the numbers of stages and micro-batches are positive and sane, the phase is
	// known; skips are within the stages, run from an earlier to a later stage, not to its
	// neighbour, and are sorted, each once.
	RuleHeader Rule = "header"
	// RuleUnknown: every action is well formed and belongs to the program's stages, micro-batches,
	// skips and phase.
	RuleUnknown Rule = "unknown"
	// RuleDuplicate: no action occurs twice, and no backward both whole and in parts.
	RuleDuplicate Rule = "duplicate"
	// RuleMissing: every stage, skip and micro-batch has its forward, its backward or both parts of
	// it, its sends and receives; and every stage has a reduction, if one has.
	RuleMissing Rule = "missing"
	// RulePlacement: all actions of a stage are on one worker.
	RulePlacement Rule = "placement"
	// RuleOrder: a worker performs every action after its dependencies on the same worker. As a
	// forward and a backward need the ones of the micro-batch before, both ascend on every stage,
	// and so does either part of a backward. A reduction follows all of them.
	RuleOrder Rule = "order"
	// RuleInOrder: each worker receives from each other in the order of its sends.
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

// Violations is the error that [Check] returns: the faults of a program, one per line.
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
