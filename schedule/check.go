package schedule

import (
	"fmt"
	"slices"
)

// Violation is one thing that is wrong with a program.
type Violation struct {
	// Rule is the rule that the program violates:
	//
	//	header      stages, micro-batches, skips and phase make sense, as Program says
	//	unknown     every action belongs to the program's stages, micro-batches, skips and phase
	//	duplicate   no action occurs twice, and no backward both whole and in parts
	//	missing     every stage has, for every micro-batch, a forward and a backward, whole or in
	//	            parts, with their transfers; if one stage has a reduction, all have
	//	placement   all actions of a stage are on one worker
	//	order       a worker performs every action after its dependencies on the same worker
	//	deadlock    workers that wait for each other get to the end
	Rule     string
	Worker   int    // of the action
	Position int    // of the action in the worker's list, from 1; 0 if no action is at fault
	Action   Action // if Position is not 0
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
	text := "schedule: the program cannot run:"
	for _, v := range vs {
		text += "\n\t" + v.Error()
	}
	return text
}

// Check returns nil if the program runs to its end on links of its capacity and gives bit-equal
// results. Otherwise the error is a [Violations] of up to a hundred faults. A faulty header is
// reported alone.
func Check(p *Program) error {
	c, err := newChecker(p)
	if err == nil {
		c.checkProgress()
		err = c.err()
	}
	return err
}

// checker collects violations of the program. Its methods check one rule each.
type checker struct {
	*Program
	*Graph
	found Violations
}

// newChecker checks every rule but order and deadlock, for which the program has to run. It fails
// if the header is wrong.
func newChecker(p *Program) (*checker, error) {
	if err := p.checkHeader(); err != nil {
		return nil, Violations{{Rule: "header", Reason: err.Error()}}
	}
	// A large header without its actions would allocate memory for all of them.
	const large = 1 << 16
	actions, n := 0, p.Stages*p.MicroBatches
	for _, list := range p.Workers {
		actions += len(list)
	}
	if n > large && actions < n {
		return nil, Violations{{Rule: "missing", Reason: fmt.Sprintf("%d actions in all, want at least one "+
			"for each of %d stages and %d micro-batches", actions, p.Stages, p.MicroBatches)}}
	}
	c := &checker{Program: p, Graph: p.index()}
	c.checkActions()
	c.checkMissing()
	return c, nil
}

func (c *checker) err() error {
	if len(c.found) > 0 {
		return c.found
	}
	return nil
}

// mostViolations bounds the report. A program that is wrong throughout has millions.
const mostViolations = 100

// report adds a violation of the action with the id, or of no action if the id is negative.
func (c *checker) report(rule string, id int, format string, args ...any) {
	if len(c.found) < mostViolations {
		v := Violation{Rule: rule, Reason: fmt.Sprintf(format, args...)}
		if id >= 0 {
			v.Worker, v.Position, v.Action = c.Worker[id], c.indexInWorker(id)+1, c.Actions[id]
		}
		c.found = append(c.found, v)
	}
}

// checkActions finds actions that do not belong to the program, that occur twice, and that are on
// another worker than the first action of their stage.
func (c *checker) checkActions() {
	homes := map[int]int{} // by stage
	for id, a := range c.Actions {
		if reason := c.whyUnknown(a); reason != "" {
			c.report("unknown", id, "%s", reason)
		}
		if first, _ := c.IndexOf(a); first != id {
			c.report("duplicate", id, "it is there already: worker %d, action %d", c.Worker[first],
				c.indexInWorker(first)+1)
		}
		if home, some := homes[a.Stage]; !some {
			homes[a.Stage] = c.Worker[id]
		} else if home != c.Worker[id] {
			c.report("placement", id, "stage %d is on worker %d", a.Stage, home)
		}
	}
}

// whyUnknown says why the action cannot be part of the program; "" if it can.
func (c *checker) whyUnknown(a Action) string {
	transferOf := func(k Kind) bool {
		return slices.Contains(c.withTransfers(Action{k, a.Stage, a.MicroBatch, 0}), a)
	}
	switch {
	case a.Kind < Forward || a.Kind > Reduce:
		return "no such kind of action"
	case min(a.Stage, a.Peer) < 0 || max(a.Stage, a.Peer) >= c.Stages:
		return fmt.Sprintf("there are %d stages", c.Stages)
	case a.MicroBatch < 0 || a.MicroBatch >= c.MicroBatches:
		return fmt.Sprintf("there are %d micro-batches", c.MicroBatches)
	case a.Kind == Reduce && a.MicroBatch != 0:
		return fmt.Sprintf("micro-batch %d for a reduction, which is of all", a.MicroBatch)
	case !a.Kind.Transfer() && a.Peer != 0:
		return fmt.Sprintf("other stage %d for what is not a transfer", a.Peer)
	case !c.Phase.covers(a.Kind.forward()):
		return "not part of a " + c.Phase.String() + " program"
	case a.Kind.Transfer() && !transferOf(Forward) && !transferOf(Backward):
		return "activations move from a stage to the next or along a declared skip, and gradients back"
	}
	return ""
}

// withTransfers returns a computation and its transfers.
func (c *checker) withTransfers(a Action) []Action {
	return c.sends(append(c.receives(nil, a), a), a)
}

// checkMissing finds actions that the program lacks. Recomputations are optional, and a backward
// may be in two parts.
func (c *checker) checkMissing() {
	want := func(actions ...Action) {
		for _, a := range actions {
			if _, ok := c.IndexOf(a); !ok {
				c.report("missing", -1, "%v is on no worker", a)
			}
		}
	}
	reduces := c.Reduces()
	for s := range c.Stages {
		for i := range c.MicroBatches {
			if len(c.found) == mostViolations {
				return
			}
			if c.Phase.covers(true) {
				want(c.withTransfers(Action{Forward, s, i, 0})...)
			}
			if !c.Phase.covers(false) {
				continue
			}
			whole, has := c.IndexOf(Action{Backward, s, i, 0})
			_, input := c.IndexOf(Action{BackwardInput, s, i, 0})
			_, weight := c.IndexOf(Action{BackwardWeight, s, i, 0})
			switch {
			case has && (input || weight):
				c.report("duplicate", whole, "it is there in parts, too")
			case input || weight:
				want(c.withTransfers(Action{BackwardInput, s, i, 0})...)
				want(Action{BackwardWeight, s, i, 0})
			default:
				want(c.withTransfers(Action{Backward, s, i, 0})...)
			}
		}
		if reduces {
			want(Action{Kind: Reduce, Stage: s})
		}
	}
}

// checkProgress runs the program without a clock and finds the workers that get stuck: at an action
// that needs a later action of its own worker, or an action of another stuck worker.
func (c *checker) checkProgress() {
	stuck := c.advance(func(int, []int) {})
	for w, id := range stuck {
		if id == c.First[w+1] {
			continue
		}
		for _, dep := range c.deps(nil, id) {
			switch on := c.Worker[dep]; {
			case dep < stuck[on]:
			case on == w:
				c.report("order", id, "it comes before %v, which it needs", c.Actions[dep])
			default:
				c.report("deadlock", id, "it waits for %v on worker %d, which is stuck at %v, action %d",
					c.Actions[dep], on, c.Actions[stuck[on]], c.indexInWorker(stuck[on])+1)
			}
		}
	}
}
