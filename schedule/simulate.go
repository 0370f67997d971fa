package schedule

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"penstock/internal/arg"
)

// Unit is the duration of an action when all computations take as long as each other and transfers take no time.
func Unit(a Action) time.Duration {
	if a.Kind.Transfer() {
		return 0
	}
	return time.Millisecond
}

// Simulate returns the timeline that the program has if every action takes the duration given for it: a worker starts
// an action as soon as it is through with the one before and all that the action needs is done. Workers never
// slow each other down otherwise. The function is called once for each action and must not return less than zero.
//
// A program that [Check] refuses is refused with the same error.
func Simulate(p *Program, duration func(Action) time.Duration) (Timeline, error) {
	if err := cmp.Or(arg.Given(duration, "schedule: Simulate: the function of durations", "one such as Unit"), Check(p, Limits{})); err != nil {
		return Timeline{}, err
	}
	g := p.Graph()
	var negative error
	t := Timeline{Workers: len(p.Workers)}
	end := make([]time.Duration, len(g.Actions))
	free := make([]time.Duration, len(p.Workers))
	g.advance(func(id int) {
		a, w := g.Actions[id], g.Worker[id]
		d := duration(a)
		if d < 0 && negative == nil {
			negative = fmt.Errorf("schedule: simulate: %v takes %v, want no less than zero", a, d)
		}
		start := free[w]
		for _, dep := range g.Deps[id] {
			start = max(start, end[dep])
		}
		end[id] = start + d
		free[w] = end[id]
		t.Events = append(t.Events, Event{Worker: w, Action: a, Start: start, End: end[id]})
	})
	if negative != nil {
		return Timeline{}, negative
	}
	// Stable: of what starts at the same time, an action stays behind those that it needed.
	slices.SortStableFunc(t.Events, func(a, b Event) int { return cmp.Compare(a.Start, b.Start) })
	return t, nil
}
