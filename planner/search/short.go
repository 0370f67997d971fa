package search

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"penstock/internal/arg"
	"penstock/planner"
	"penstock/remat/solver"
	"penstock/schedule"
)

// short says what devices lack with a cut that has about the fewest bytes too few, nil if it fits: bytes
// are balanced evenly, then borders are moved away from the device that lacks most as long as that helps.
func (p *space) short(ctx context.Context) (*planner.MemoryError, error) {
	c, _, err := p.lean()
	if err != nil {
		return nil, err
	}
	_, err = planner.Solve(ctx, p.problem(c))
	var lack *planner.MemoryError
	if errors.As(err, &lack) {
		return lack, nil
	}
	return nil, err
}

// lean is a cut that has about the fewest bytes too few, and how many times its limit the device needs
// that needs most.
func (p *space) lean() (cut, float64, error) {
	c, err := p.light()
	if err != nil {
		return nil, 0, err
	}
	worst, at, err := p.lack(c)
	for again := err == nil; again; {
		again = false
		for _, s := range p.order[at].stages {
			for _, moved := range []cut{p.moved(c, s, 1), p.moved(c, s+1, -1)} {
				if moved == nil || again {
					continue
				}
				now, on, err := p.lack(moved)
				if err != nil {
					return nil, 0, err
				}
				if now < worst {
					c, worst, at, again = moved, now, on, true
				}
			}
		}
	}
	return c, worst, err
}

// moved is a cut with the border before stage s moved, nil if a stage would have no unit.
func (p *space) moved(c cut, s, by int) cut {
	if s < 1 || s >= p.stages() || c[s]+by <= c[s-1] || c[s]+by >= c[s+1] {
		return nil
	}
	c = slices.Clone(c)
	c[s] += by
	return c
}

// lack is about how many times its limit the device needs that needs most, and which it is: weights, the
// inputs of micro-batches in flight, and the least that one of them needs.
func (p *space) lack(c cut) (worst float64, at int, err error) {
	for w, of := range p.workers {
		if of.bytes == 0 {
			continue
		}
		held, most := int64(0), int64(0)
		for _, s := range p.order[w].stages {
			flight := int64(p.oracle.groups[w].micro)
			if len(p.order[w].stages) > 1 {
				flight = int64(min(p.m, 2*len(p.workers)))
			}
			if s > 0 {
				held += (flight - 1) * p.x[c[s]]
			} else {
				held += int64(p.m-1) * p.chain.Input
			}
			stage := planner.ChainStage(p.chain, c[s], c[s+1])
			held += int64(1+p.wishes.State) * stage.Memory.Unplaced
			one, _, err := solver.Least(stage.Costs.First)
			if err != nil {
				return 0, 0, err
			}
			most = max(most, one.Peak)
		}
		if x := float64(held+most) / float64(of.bytes); x > worst {
			worst, at = x, w
		}
	}
	return worst, at, nil
}

// Enough is a number of devices like the machine's last one, more than the machine has or than wishes say,
// with which a plan fits, 0 if none is found with up to eight times as many. It tries the smallest
// micro-batches of the schedules that hold fewest, and is not always the least. It blocks until it is known, or fails with ctx.Err().
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
	if lean := slices.DeleteFunc(slices.Clone(list), func(s schedule.Schedule) bool { return s.Name != "1f1b" }); len(lean) > 0 {
		list = lean
	}
	had := len(machine.Devices)
	if wishes.Devices > 0 {
		had = wishes.Devices
	}
	for n := had + 1; n <= min(8*had, profile.units()); n += max(1, n/8) {
		wider := machine
		wider.Devices = slices.Clone(machine.Devices)
		for len(wider.Devices) < n {
			more := machine.Devices[len(machine.Devices)-1]
			more.Name = fmt.Sprint("more", len(wider.Devices))
			wider.Devices = append(wider.Devices, more)
		}
		if wider.check() != nil { // more threads than a machine may have
			return 0, nil
		}
		wishes.Devices = n
		for _, s := range list {
			spaces, _ := wishes.spaces(profile, wider, s)
			slices.SortStableFunc(spaces, func(a, b *space) int { return cmp.Compare(b.m, a.m) })
			for _, p := range spaces[:min(1, len(spaces))] { // of the smallest micro-batches
				if p.prepare() != nil || !p.limited {
					continue
				}
				if _, worst, err := p.lean(); err != nil || worst > 1 {
					continue
				}
				if lack, err := p.short(ctx); err != nil || lack == nil {
					return n, err
				}
			}
		}
	}
	return 0, ctx.Err()
}
