package schedule

import (
	"fmt"
	"slices"
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
		b.WriteString("\n\t" + v.Error())
	}
	return b.String()
}

// Limits says on which links a program is to run. The zero value is links that name their values
// and hold any number of them, or up to the program's capacity.
type Limits struct {
	// Meet asks that workers get to the end also where nothing waits on any link between them,
	// whatever the program's capacity: a worker that has sent goes on when the value was received.
	// Gloo's links are like that.
	Meet bool
	// InOrder asks that each worker receives from each other in the order in which that sends.
	// Links with nameless values need it, such as NCCL's.
	InOrder bool
}

// Check returns nil if the program can run to its end on such links and gives bit-equal results.
// Otherwise the error is a [Violations] with up to a hundred faults. A header that makes no sense
// is reported alone.
//
// Check takes any program, and does not change it.
func Check(p *Program, limits Limits) error {
	c, err := newChecker(p)
	if err != nil {
		return err
	}
	c.lists()
	if limits.InOrder {
		c.inOrder()
	}
	c.progress(limits.Meet)
	return c.err()
}

// newChecker returns a checker of a program, or the faults of its header.
func newChecker(p *Program) (*checker, error) {
	c := &checker{Program: p}
	if c.header(); len(c.found) > 0 {
		return nil, c.found
	}
	c.numbered = p.numbered()
	return c, nil
}

// lists checks the rules for which nothing has to run.
func (c *checker) lists() {
	c.known()
	c.missing()
	c.reductions()
	c.placement()
	c.order()
}

func (c *checker) err() error {
	if len(c.found) > 0 {
		return c.found
	}
	return nil
}

// checker collects violations of the program. Its methods check one rule each.
type checker struct {
	*Program
	*numbered
	found Violations
}

// mostViolations is how many are reported. A program that is wrong throughout has millions.
const mostViolations = 100

// report adds a violation that has no place in the program.
func (c *checker) report(rule Rule, format string, args ...any) {
	if len(c.found) < mostViolations {
		c.found = append(c.found, Violation{Rule: rule, Reason: fmt.Sprintf(format, args...)})
	}
}

// reportAt adds a violation by an action.
func (c *checker) reportAt(rule Rule, id int, format string, args ...any) {
	if len(c.found) < mostViolations {
		c.found = append(c.found, Violation{rule, int(c.worker[id]), c.at(id) + 1, c.action(id), fmt.Sprintf(format, args...)})
	}
}

// place says where an action is.
func (c *checker) place(id int) string {
	return fmt.Sprintf("worker %d, action %d", c.worker[id], c.at(id)+1)
}

// header checks what has no action. A program with a large header must have an action for each
// forward or backward before memory is taken for all of them.
func (c *checker) header() {
	if err := checkSize(c.Stages, len(c.Skips), c.MicroBatches); err != nil {
		c.report(RuleHeader, "%v", err)
	}
	if !c.Phase.forward() && !c.Phase.backward() {
		c.report(RuleHeader, "unknown %v", c.Phase)
	}
	if c.Capacity < Meet {
		c.report(RuleHeader, "a capacity of %d values on a link", c.Capacity)
	}
	if len(c.found) == 0 { // without a number of stages no edge makes sense
		for _, err := range c.checkSkips() {
			c.report(RuleHeader, "%v", err)
		}
	}
	const large = 1 << 16
	actions := 0
	for _, list := range c.Workers {
		actions += len(list)
	}
	if n := c.Stages * c.MicroBatches; len(c.found) == 0 && n > large && actions < n {
		c.report(RuleMissing, "%d actions in all, want at least one for each of %d stages and %d micro-batches", actions, c.Stages, c.MicroBatches)
	}
}

// known finds actions that do not belong to the program, and repeated ones.
func (c *checker) known() {
	for id := range c.size() {
		a := c.action(id)
		if reason := c.foreign(a); reason != "" {
			c.reportAt(RuleUnknown, id, "%s", reason)
		}
		if first, _ := c.find(a); first != id {
			c.reportAt(RuleDuplicate, id, "it is there already: %s", c.place(first))
		}
	}
}

// foreign says why the action cannot be part of the program, or nothing if it can.
func (c *checker) foreign(a Action) string {
	outside := func(stage int) bool { return stage < 0 || stage >= c.Stages }
	forward := a.Kind.forward()
	edge := Edge{min(a.Stage, a.Peer), max(a.Stage, a.Peer)}
	upward := a.Stage == edge.From // to, or from, a later stage
	switch {
	case a.Kind < Forward || a.Kind > Reduce:
		return "no such kind of action"
	case outside(a.Stage) || outside(a.Peer):
		return fmt.Sprintf("there are %d stages", c.Stages)
	case a.MicroBatch < 0 || a.MicroBatch >= c.MicroBatches:
		return fmt.Sprintf("there are %d micro-batches", c.MicroBatches)
	case a.Kind == Reduce && a.MicroBatch != 0:
		return fmt.Sprintf("micro-batch %d for a reduction, which is of all", a.MicroBatch)
	case a.Kind.Transfer() && forward && (upward != a.Kind.Send() || !c.declared(edge)):
		return "activations move from a stage to the next or along a declared skip"
	case a.Kind.Transfer() && !forward && (upward != a.Kind.Receive() || !c.declared(edge)):
		return "gradients move from a stage to the one before or back along a declared skip"
	case !a.Kind.Transfer() && a.Peer != 0:
		return fmt.Sprintf("other stage %d for what is not a transfer", a.Peer)
	case forward && !c.Phase.forward(), !forward && !c.Phase.backward():
		return "not part of a " + c.Phase.String() + " program"
	}
	return ""
}

// missing finds actions that the program lacks. Recomputations are optional, and a backward may be
// in two parts.
func (c *checker) missing() {
	want := func(actions ...Action) {
		for _, a := range actions {
			if _, ok := c.find(a); !ok {
				c.report(RuleMissing, "%v is on no worker", a)
			}
		}
	}
	for s := range c.Stages {
		before, after := slices.Clone(c.skips.from[s]), slices.Clone(c.skips.to[s]) // the stages that s has links with
		if s > 0 {
			before = append(before, s-1)
		}
		if s < c.Stages-1 {
			after = append(after, s+1)
		}
		for i := range c.MicroBatches {
			if len(c.found) == mostViolations {
				return
			}
			if c.Phase.forward() {
				for _, peer := range before {
					want(Action{ReceiveActivation, s, i, peer})
				}
				want(Action{Forward, s, i, 0})
				for _, peer := range after {
					want(Action{SendActivation, s, i, peer})
				}
			}
			if c.Phase.backward() {
				for _, peer := range after {
					want(Action{ReceiveGradient, s, i, peer})
				}
				want(c.backwards(s, i)...)
				for _, peer := range before {
					want(Action{SendGradient, s, i, peer})
				}
			}
		}
	}
}

// backwards returns the actions that a backward must have: both parts if one is there, otherwise
// the whole. It reports parts of a backward that is whole too.
func (c *checker) backwards(stage, microBatch int) []Action {
	action := Action{Backward, stage, microBatch, 0}
	whole, has := c.find(action)
	parts := []Action{{BackwardInput, stage, microBatch, 0}, {BackwardWeight, stage, microBatch, 0}}
	some := false
	for _, a := range parts {
		part, ok := c.find(a)
		if some = some || ok; ok && has {
			c.reportAt(RuleDuplicate, part, "it is a part of %v: %s", action, c.place(whole))
		}
	}
	if has || !some {
		return []Action{action}
	}
	return parts
}

// reductions finds stages without a reduction where others have one.
func (c *checker) reductions() {
	if !c.Reduces() {
		return
	}
	for s := range c.Stages {
		if _, ok := c.find(Action{Kind: Reduce, Stage: s}); ok {
			continue
		}
		for _, kind := range []Kind{Backward, BackwardWeight} {
			if last, ok := c.find(Action{kind, s, c.MicroBatches - 1, 0}); ok {
				c.reportAt(RuleMissing, last, "no %v follows, and other stages have one", Action{Kind: Reduce, Stage: s})
			}
		}
	}
}

// placement finds actions that are elsewhere than most of their stage.
func (c *checker) placement() {
	type home struct{ worker, actions int }
	homes := make(map[int]home) // by stage: where most of it is; the first such worker
	for w, actions := range c.Workers {
		count := make(map[int]int) // by stage
		for _, a := range actions {
			count[a.Stage]++
		}
		for s, n := range count {
			if n > homes[s].actions {
				homes[s] = home{w, n}
			}
		}
	}
	for id := range c.size() {
		if want := homes[c.action(id).Stage].worker; int(c.worker[id]) != want {
			c.reportAt(RulePlacement, id, "stage %d is on worker %d", c.action(id).Stage, want)
		}
	}
}

// order finds actions that come before their dependencies on their own worker. Nothing could wait
// for those.
func (c *checker) order() {
	var deps []int
	for id := range c.size() {
		deps = c.deps(deps[:0], id, false)
		for _, dep := range deps {
			if dep >= id && c.on(dep, int(c.worker[id])) {
				c.reportAt(RuleOrder, id, "it comes before %v, which it needs", c.action(dep))
			}
		}
	}
}

// inOrder finds receives that come after one of the same worker's values that was sent later.
func (c *checker) inOrder() {
	latest := map[[2]int32]int{} // by sender and receiver: the id of the last send, in its order, that was received so far
	for id := range c.size() {
		if !c.action(id).Kind.Receive() {
			continue
		}
		sent, ok := c.find(c.action(id).Matching())
		if !ok || c.worker[sent] == c.worker[id] {
			continue
		}
		way := [2]int32{c.worker[sent], c.worker[id]}
		if last, some := latest[way]; some && sent < last {
			c.reportAt(RuleInOrder, id, "it comes after %v, which worker %d sends later", c.action(last).Matching(), c.worker[sent])
		}
		latest[way] = max(latest[way], sent)
	}
}

// progress runs the program without a clock and finds the workers that get stuck. With meet,
// nothing waits on links.
func (c *checker) progress(meet bool) {
	stuck := c.advance(meet, func(int, int, []int) {})
	var deps []int
	for w, id := range stuck {
		if id == c.first[w+1] {
			continue
		}
		deps = c.deps(deps[:0], id, meet)
		for _, dep := range deps {
			if on := int(c.worker[dep]); on != w && dep >= stuck[on] {
				c.reportAt(RuleDeadlock, id, "it waits for %v on worker %d, which is stuck at %v, action %d",
					c.action(dep), on, c.action(stuck[on]), c.at(stuck[on])+1)
			}
		}
	}
}
