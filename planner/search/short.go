package search

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"

	"penstock.example/internal/arg"
	"penstock.example/planner"
	"penstock.example/schedule"
)

// lack says what devices lack with a cut, nil if it fits.
func (p *space) lack(ctx context.Context, c cut) (*planner.MemoryError, error) {
	_, err := planner.Solve(ctx, p.problem(c))
	var lack *planner.MemoryError
	if errors.As(err, &lack) {
		return lack, nil
	}
	return nil, err
}

// short says which limits would do, where no plan fits within those that there are: of all spaces of all
// schedules those of the cut whose devices need the least, and why each schedule has no plan.
func (r *Result) short(ctx context.Context, list []schedule.Schedule, spaces [][]*space, wishes Wishes) error {
	some := slices.ContainsFunc(r.Schedules, func(o Outcome) bool { return o.Plan != nil })
	order := lightFirst(list)
	worst, leanest, left := math.Inf(1), "", leanPlans
	r.ShortProved = true
	for done, i := range order {
		o, spaces := &r.Schedules[i], slices.Clone(spaces[i])
		if len(spaces) == 0 {
			continue // it has a plan, or something else is in the way
		}
		wishes.tell(o.Schedule, done, len(order))
		slices.SortStableFunc(spaces, func(a, b *space) int {
			return cmp.Or(cmp.Compare(len(b.workers), len(a.workers)), cmp.Compare(b.m, a.m))
		})
		if some {
			worst = math.Inf(1)
			spaces = spaces[:1]
		}
		var lack *planner.MemoryError
		for _, p := range spaces {
			plans, before := left, p.oracle.solved
			switch {
			case some:
				plans = fewPlans
			case p.virtual == 1:
				plans = onePlans
			}
			l, err := p.leanest(ctx, worst, plans)
			if err != nil {
				return err
			}
			if r.ShortProved = r.ShortProved && !l.spent; !some && p.virtual > 1 {
				left -= p.oracle.solved - before
			}
			if l.cut == nil {
				continue
			}
			one, err := p.lack(ctx, l.cut)
			if err != nil {
				return err
			}
			if one != nil {
				worst, lack = l.worst, one
			}
		}
		switch {
		case lack != nil:
			o.Lost = "bytes: " + lack.Shortages()
			if leanest = o.Schedule; !some {
				r.Short = lack
			}
		case leanest != "":
			o.Lost = "bytes: it is not known to need fewer than " + leanest
		}
		if !o.Proved {
			o.Lost = "no plan was found; " + o.Lost
		}
	}
	r.ShortProved = r.ShortProved && r.Short != nil
	return ctx.Err()
}

// lightFirst are schedules by number, those first whose devices hold the fewest micro-batches at once: as a rule they
// need the fewest bytes, and their plans are found soonest.
func lightFirst(list []schedule.Schedule) (order []int) {
	held := make([]int, len(list))
	for i, s := range list {
		order = append(order, i)
		if p, err := s.Program(2, 0, schedule.Config{MicroBatches: 8}); err == nil {
			held[i] = int(slices.Max(schedule.InFlight(p, nil))) / s.Usual()
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return held[a] - held[b] })
	return order
}

// How many devices are planned to find the least limits: of each space of one stage on each device, of all spaces of
// several, and of a space if another schedule has a plan,
// or if it is tried with more devices.
const onePlans, leanPlans, fewPlans = 1000, 60, 20

// Enough is how many devices are enough, if those that are added are like the machine's last one: the fewest with
// which a plan fits, more than the machine has or than wishes say, 0 if none is found with up to eight times as many.
// From 32 devices on it tries only some numbers. It blocks until it is known, or fails with ctx.Err().
func Enough(ctx context.Context, profile Profile, machine Machine, wishes Wishes) (int, error) {
	if err := arg.Context(ctx, "search"); err != nil {
		return 0, err
	}
	for _, err := range []error{profile.check(), machine.check(), wishes.check()} {
		if err != nil {
			return 0, err
		}
	}
	list, err := wishes.named()
	if err != nil {
		return 0, err
	}
	had := len(machine.Devices)
	if wishes.Devices > 0 {
		had = wishes.Devices
	}
	for n := had + 1; n <= min(8*had, profile.units()); n += max(1, n/32) {
		wider := machine
		for len(wider.Devices) < n {
			wider = wider.another()
		}
		if wider.check() != nil { // more threads than a machine may have
			return 0, nil
		}
		wishes.Devices = n
		for _, i := range lightFirst(list) {
			spaces, _ := wishes.spaces(profile, wider, list[i])
			slices.SortStableFunc(spaces, func(a, b *space) int { return cmp.Compare(b.m, a.m) })
			for _, p := range spaces {
				if p.prepare() != nil || !p.limited {
					continue
				}
				plans := wishes.plans()
				if p.virtual > 1 {
					plans = min(plans, fewPlans)
				}
				if l, err := p.fitting(ctx, plans); err != nil || l.cut != nil {
					return n, err
				}
			}
		}
	}
	return 0, ctx.Err()
}
