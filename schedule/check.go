package schedule

import (
	"fmt"
	"slices"

	"penstock/internal/arg"
)

// Limits are what a program is checked against beside itself. The zero value limits nothing.
type Limits struct {
	// Saved and Inputs bound what each stage may hold at a time, in micro-batches; see [StageMemory]. Zero is no limit.
	Saved, Inputs int
	// Meet asks that workers get to the end also where nothing waits on any link between them, whatever the program's
	// capacity: a worker that has sent goes on when the value was received. Gloo's links are like that.
	Meet bool
	// InOrder asks that each worker receives from each other what that sends it in the order in which it is sent. Links
	// without names for what they carry need it, such as NCCL's.
	InOrder bool
}

// Check returns nil if the program can run to its end, gives bit-equal results and keeps to the limits. Otherwise
// the error is a [Violations] that lists everything that is wrong, save that a header that makes no sense is
// reported alone.
//
// Check takes any program, from wherever it came, and does not change it.
func Check(p *Program, limits Limits) error {
	if err := arg.Given(p, "schedule: Check: the program", "one such as GPipe or Parse makes"); err != nil {
		return err
	}
	c := &checker{Program: p}
	c.header()
	if len(c.found) > 0 {
		return c.found
	}
	c.graph = p.Graph()
	c.known()
	c.missing()
	c.placement()
	c.order()
	if limits.InOrder {
		c.inOrder()
	}
	c.progress(limits.Meet)
	c.memory(limits)
	if len(c.found) > 0 {
		return c.found
	}
	return nil
}

// checker collects violations of the program. Its methods check one rule each.
type checker struct {
	*Program
	graph *Graph
	found Violations
}

func (c *checker) report(rule Rule, format string, args ...any) {
	c.found = append(c.found, Violation{rule, fmt.Sprintf(format, args...)})
}

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
}

// known finds actions that do not belong to the program, and those that occur again.
func (c *checker) known() {
	for id, a := range c.graph.Actions {
		w := c.graph.Worker[id]
		if reason := c.foreign(a); reason != "" {
			c.report(RuleUnknown, "worker %d: %v: %s", w, a, reason)
		}
		if first, _ := c.graph.IndexOf(a); first != id {
			c.report(RuleDuplicate, "worker %d: %v is already on worker %d", w, a, c.graph.Worker[first])
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
	case a.Kind < Forward || a.Kind > ReceiveGradient:
		return "no such kind of action"
	case outside(a.Stage) || outside(a.Peer):
		return fmt.Sprintf("there are %d stages", c.Stages)
	case a.MicroBatch < 0 || a.MicroBatch >= c.MicroBatches:
		return fmt.Sprintf("there are %d micro-batches", c.MicroBatches)
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

// missing finds what the program has to have and has not. Recomputations are optional, and a backward may be in two
// parts.
func (c *checker) missing() {
	skips := fanOf(c.Skips)
	want := func(a Action) {
		if _, ok := c.graph.IndexOf(a); !ok {
			c.report(RuleMissing, "%v is on no worker", a)
		}
	}
	for s := range c.Stages {
		before, after := slices.Clone(skips.from[s]), slices.Clone(skips.to[s]) // the stages that s has links with
		if s > 0 {
			before = append(before, s-1)
		}
		if s < c.Stages-1 {
			after = append(after, s+1)
		}
		half := func(i int, computation, receive, send Kind, from, to []int) {
			for _, peer := range from {
				want(Action{receive, s, i, peer})
			}
			want(Action{computation, s, i, 0})
			for _, peer := range to {
				want(Action{send, s, i, peer})
			}
		}
		for i := range c.MicroBatches {
			if c.Phase.forward() {
				half(i, Forward, ReceiveActivation, SendActivation, before, after)
			}
			if c.Phase.backward() {
				half(i, c.backward(s, i), ReceiveGradient, SendGradient, after, before)
			}
		}
	}
}

// backward returns the kind of action that makes the gradients of a micro-batch on a stage, and reports where its two
// parts are not complete or there is a whole one beside them.
func (c *checker) backward(stage, microBatch int) Kind {
	var ids [BackwardWeight + 1]int
	var has [BackwardWeight + 1]bool
	for _, kind := range []Kind{Backward, BackwardInput, BackwardWeight} {
		ids[kind], has[kind] = c.graph.IndexOf(Action{kind, stage, microBatch, 0})
	}
	for _, kind := range []Kind{BackwardInput, BackwardWeight} {
		if has[Backward] && has[kind] {
			c.report(RuleDuplicate, "worker %d: %v is a part of %v, which is on worker %d", c.graph.Worker[ids[kind]],
				c.graph.Actions[ids[kind]], c.graph.Actions[ids[Backward]], c.graph.Worker[ids[Backward]])
		}
	}
	switch {
	case has[Backward] || !has[BackwardInput] && !has[BackwardWeight]:
		return Backward
	case has[BackwardInput] && !has[BackwardWeight]:
		c.report(RuleMissing, "%v is on no worker", Action{BackwardWeight, stage, microBatch, 0})
	}
	return BackwardInput
}

// placement finds actions that are elsewhere than most of their stage.
func (c *checker) placement() {
	type place struct{ stage, worker int }
	count := make(map[place]int)
	home := make(map[int]int) // by stage; on a tie the worker that reached the count first
	for id, a := range c.graph.Actions {
		here := place{a.Stage, c.graph.Worker[id]}
		count[here]++
		if h, ok := home[a.Stage]; !ok || count[here] > count[place{a.Stage, h}] {
			home[a.Stage] = here.worker
		}
	}
	for id, a := range c.graph.Actions {
		if w, want := c.graph.Worker[id], home[a.Stage]; w != want {
			c.report(RulePlacement, "worker %d: %v, but stage %d is on worker %d", w, a, a.Stage, want)
		}
	}
}

// order finds actions that come before what they need on their own worker. Nothing could wait for that.
func (c *checker) order() {
	for id, deps := range c.graph.Deps {
		for _, dep := range deps {
			if w := c.graph.Worker[id]; dep >= id && w == c.graph.Worker[dep] {
				c.report(RuleOrder, "worker %d: %v comes before %v, which it needs", w, c.graph.Actions[id], c.graph.Actions[dep])
			}
		}
	}
}

// inOrder finds receives that come before one of the same worker's values that was sent earlier.
func (c *checker) inOrder() {
	g := c.graph
	latest := make([]int, len(c.Workers)) // by sender: the id of the last send, in its order, that was received so far
	for w := range c.Workers {
		for from := range latest {
			latest[from] = -1
		}
		for id := g.First[w]; id < g.First[w+1]; id++ {
			if !g.Actions[id].Kind.Receive() {
				continue
			}
			sent, ok := g.IndexOf(g.Actions[id].Matching())
			if !ok || g.Worker[sent] == w {
				continue
			}
			last := &latest[g.Worker[sent]]
			if sent < *last {
				c.report(RuleInOrder, "worker %d: %v comes after %v, but worker %d sends it before", w, g.Actions[id],
					g.Actions[*last].Matching(), g.Worker[sent])
			}
			*last = max(*last, sent)
		}
	}
}

// progress runs the program without a clock and finds the workers that get stuck. With meet, nothing waits on links.
func (c *checker) progress(meet bool) {
	g := c.graph
	if meet {
		g.needs(c.Program, true)
	}
	stuck := g.advance(func(int) {})
	for w, id := range stuck {
		if id == g.First[w+1] {
			continue
		}
		for _, dep := range g.Cross[id] {
			if on := g.Worker[dep]; dep >= stuck[on] {
				c.report(RuleDeadlock, "worker %d is stuck at %v: it waits for %v on worker %d, which is stuck at %v",
					w, g.Actions[id], g.Actions[dep], on, g.Actions[stuck[on]])
			}
		}
	}
}

func (c *checker) memory(limits Limits) {
	for s, holds := range Memory(c.Program) {
		if limits.Saved > 0 && holds.Saved > limits.Saved {
			c.report(RuleMemory, "stage %d saves the graphs of %d micro-batches, limit %d", s, holds.Saved, limits.Saved)
		}
		if limits.Inputs > 0 && holds.Inputs > limits.Inputs {
			c.report(RuleMemory, "stage %d holds the inputs of %d micro-batches, limit %d", s, holds.Inputs, limits.Inputs)
		}
	}
}
