package search

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"penstock/planner"
)

// short says what devices lack with a cut that has about the fewest bytes too few: bytes are balanced
// evenly, then borders are moved away from the device that lacks most as long as that helps. It lists no
// device if a cut fits.
func (p *space) short(ctx context.Context) (*planner.MemoryError, error) {
	c, err := p.light()
	if err != nil {
		return nil, err
	}
	worst, at, err := p.lack(ctx, c)
	if err != nil {
		return nil, err
	}
	for tries := 4 * p.stages(); worst > 1 && tries > 0; {
		better := false
		for _, s := range p.order[at].stages {
			for _, moved := range []cut{p.moved(c, s, 1), p.moved(c, s+1, -1)} {
				if moved == nil || better {
					continue
				}
				tries--
				now, on, err := p.lack(ctx, moved)
				if err != nil {
					return nil, err
				}
				if now < worst {
					c, worst, at, better = moved, now, on, true
				}
			}
		}
		if !better {
			break
		}
	}
	_, err = planner.Solve(ctx, p.problem(c))
	var lack *planner.MemoryError
	if err == nil || errors.As(err, &lack) {
		if lack == nil {
			lack = &planner.MemoryError{}
		}
		return lack, nil
	}
	return nil, err
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

// lack is how many times its limit the device needs that needs most, and which it is.
func (p *space) lack(ctx context.Context, c cut) (worst float64, at int, err error) {
	for w, of := range p.workers {
		if of.bytes == 0 {
			continue
		}
		fixed := int64(0)
		for _, s := range p.order[w].stages {
			fixed += p.fixed(s, c[s], c[s+1])
		}
		x := float64(fixed) / float64(of.bytes)
		if fixed <= of.bytes {
			one, err := p.oracle.ask(ctx, w, c, c[1:])
			if err != nil {
				return 0, 0, err
			}
			x = float64(max(one.peak, one.least)) / float64(of.bytes)
		}
		if x > worst {
			worst, at = x, w
		}
	}
	return worst, at, nil
}

// Enough is a number of devices like the machine's last one, more than the machine has or than wishes say,
// with which a plan fits, 0 if none is found with up to eight times as many. It is not always the
// fewest. It blocks until it is known, or fails with ctx.Err().
func Enough(ctx context.Context, profile Profile, machine Machine, wishes Wishes) (int, error) {
	list, err := wishes.named()
	if err != nil {
		return 0, err
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
		wishes.Devices = n
		for _, s := range list {
			spaces, _ := wishes.spaces(profile, wider, s)
			for _, p := range spaces {
				if p.prepare() != nil || !p.limited {
					continue
				}
				lack, err := p.short(ctx)
				if err != nil {
					return 0, err
				}
				if len(lack.Stages) == 0 {
					return n, nil
				}
			}
		}
	}
	return 0, ctx.Err()
}
