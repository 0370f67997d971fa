package schedule

import "fmt"

// Limits bounds what each stage may hold at a time, in micro-batches; see [StageMemory]. Zero is no limit.
type Limits struct {
	Saved  int
	Inputs int
}

// Check returns nil if the program can run to its end, gives bit-equal results and keeps to the limits. Otherwise
// the error is a [Violations] that lists everything that is wrong, save that a header that makes no sense is
// reported alone.
//
// Check takes any program, from wherever it came, and does not change it.
func Check(p *Program, limits Limits) error {
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
	c.progress()
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
	if err := checkSize(c.Stages, c.MicroBatches); err != nil {
		c.report(RuleHeader, "%v", err)
	}
	if !c.Phase.forward() && !c.Phase.backward() {
		c.report(RuleHeader, "unknown %v", c.Phase)
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
	forward := a.Kind == Forward || a.Kind == Activation
	switch {
	case a.Kind < Forward || a.Kind > Gradient:
		return "no such kind of action"
	case outside(a.Stage) || outside(a.Source):
		return fmt.Sprintf("there are %d stages", c.Stages)
	case a.MicroBatch < 0 || a.MicroBatch >= c.MicroBatches:
		return fmt.Sprintf("there are %d micro-batches", c.MicroBatches)
	case a.Kind == Activation && a.Source != a.Stage-1:
		return "activations move from a stage to the next"
	case a.Kind == Gradient && a.Source != a.Stage+1:
		return "gradients move from a stage to the one before"
	case !a.Kind.Transfer() && a.Source != 0:
		return fmt.Sprintf("source %d for what is not a transfer", a.Source)
	case forward && !c.Phase.forward(), !forward && !c.Phase.backward():
		return "not part of a " + c.Phase.String() + " program"
	}
	return ""
}

// missing finds what the program has to have and has not. Recomputations are optional.
func (c *checker) missing() {
	want := func(a Action) {
		if _, ok := c.graph.IndexOf(a); !ok {
			c.report(RuleMissing, "%v is on no worker", a)
		}
	}
	for s := range c.Stages {
		for i := range c.MicroBatches {
			if c.Phase.forward() {
				if s > 0 {
					want(Action{Activation, s, i, s - 1})
				}
				want(Action{Forward, s, i, 0})
			}
			if c.Phase.backward() {
				if s < c.Stages-1 {
					want(Action{Gradient, s, i, s + 1})
				}
				want(Action{Backward, s, i, 0})
			}
		}
	}
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
		if w := c.graph.Worker[id]; w != home[a.Stage] {
			c.report(RulePlacement, "worker %d: %v, but stage %d is on worker %d", w, a, a.Stage, home[a.Stage])
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

// progress runs the program without a clock and finds the workers that get stuck.
func (c *checker) progress() {
	g := c.graph
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
