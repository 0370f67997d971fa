package search

import (
	"cmp"
	"slices"

	"penstock.example/schedule"
)

// Alone is what a device needs that has a single unit, for one micro-batch.
type Alone struct {
	Unit  int
	Name  string
	Rows  int   // of the micro-batch
	Bytes int64 // no plan needs fewer for the unit, whatever it recomputes
	Kept  int64 // of them for parameters, their gradients and the optimizer's state
	State int64 // of them for the optimizer's state
	Limit int64 // the most that a device may hold
}

// TooLarge is the unit that needs most of those that no device has room for, by itself: then more devices do not
// help. The second result is false if each unit has room on some device, as far as is known without planning.
func TooLarge(profile Profile, machine Machine, wishes Wishes) (most Alone, found bool) {
	list, err := wishes.named()
	for _, wrong := range []error{err, profile.check(), machine.check(), wishes.check()} {
		if wrong != nil {
			return most, false
		}
	}
	whole, limit := whole(list), machine.Largest(wishes.Limit)
	for u := range profile.units() {
		var least Alone
		for _, m := range profile.Measured {
			one, err := m.alone(wishes, u, whole)
			if err != nil {
				return most, false
			}
			if least.Bytes == 0 || one.Bytes < least.Bytes {
				least = one
			}
		}
		if least.Bytes > max(limit, most.Bytes) {
			most, found = least, limit > 0
		}
	}
	most.Limit = limit
	return most, found
}

// whole says that all backwards of the schedules are in one part.
func whole(list []schedule.Schedule) bool {
	return !slices.ContainsFunc(list, func(s schedule.Schedule) bool { return s.Split })
}

// margin is the part of a limit by which a unit's bytes for rows that were not measured must be above it: kernels
// for other sizes may let go of some earlier.
const margin = 1. / 16

// TooManyRows is a unit for which no device has room with micro-batches of so many rows, by itself: then no plan has
// such micro-batches. The profile is of fewer rows; of two sizes at least, as activations and their gradients grow with
// the rows. The second result is false if there may be room.
func TooManyRows(profile Profile, machine Machine, wishes Wishes, rows int) (one Alone, found bool) {
	named, err := wishes.named()
	list := slices.Clone(profile.Measured)
	slices.SortStableFunc(list, func(a, b Measured) int { return cmp.Compare(a.Rows, b.Rows) })
	list = slices.CompactFunc(list, func(a, b Measured) bool { return a.Rows == b.Rows }) // with other threads
	limit := machine.Largest(wishes.Limit)
	if err != nil || len(list) < 2 || limit == 0 {
		return one, false
	}
	m := grown(list[len(list)-2], list[len(list)-1], rows)
	for u := range m.Chain.Layers {
		one, err := m.alone(wishes, u, whole(named))
		if err == nil && float64(one.Bytes) > (1+margin)*float64(limit) {
			one.Limit = limit
			return one, true
		}
	}
	return Alone{}, false
}

// grown is about what is held of micro-batches of so many rows, of which few and more are two smaller sizes: the line
// through both. What is a view of few rows may be a copy of more. What kernels take for a moment is not known of more.
func grown(few, more Measured, rows int) Measured {
	on := func(a, b int64) int64 {
		line := b + (b-a)*int64(rows-more.Rows)/int64(more.Rows-few.Rows)
		return max(0, min(line, b*int64(rows)/int64(more.Rows)))
	}
	a, b, out := few.Chain, more.Chain, more
	out.Rows, out.Chain.Input, out.Chain.InputGradient = rows, on(a.Input, b.Input), on(a.InputGradient, b.InputGradient)
	out.Chain.Layers = slices.Clone(b.Layers)
	for u := range out.Chain.Layers {
		l, x, y := &out.Chain.Layers[u], a.Layers[u], b.Layers[u]
		l.Output, l.Saved, l.Gradient = on(x.Output, y.Output), on(x.Saved, y.Saved), on(x.Gradient, y.Gradient)
		l.ForwardTmp, l.ForwardNoGradTmp, l.BackwardTmp = 0, 0, 0
		if x.BackwardEarly > 0 || y.BackwardEarly > 0 { // as much may be gone as is made
			_, made := out.given(u)
			l.BackwardEarly = made + l.WeightGradient
		}
	}
	return out
}

// held is what is there of unit u without a gradient.
func (m Measured) held(u int) int64 {
	if m.Held == nil {
		return 0
	}
	return m.Held[u]
}

// given is the bytes of the input of unit u and of its gradient.
func (m Measured) given(u int) (input, gradient int64) {
	if u == 0 {
		return m.Chain.Input, m.Chain.InputGradient
	}
	return m.Chain.Layers[u-1].Output, m.Chain.Layers[u-1].Gradient
}

// atBackward is what is there in every plan while a backward of unit u runs: its input, what it has saved, the gradients
// of its output and input, its weights and so many states of the optimizer. That of the input counts only where the
// whole backward is one part and nothing of the rest may be gone by then.
func (m Measured) atBackward(u, states int, whole bool) int64 {
	l := m.Chain.Layers[u]
	given, gradient := m.given(u)
	if !whole || l.BackwardEarly > 0 {
		gradient = 0
	}
	return given + l.Saved + l.Gradient + gradient + int64(1+states)*l.WeightGradient + m.held(u)
}

// Largest is the most bytes that a device may hold where none may hold more than a limit; 0 is no limit.
func (m Machine) Largest(limit int64) (most int64) {
	for _, d := range m.Devices {
		switch {
		case d.Bytes == 0 && limit == 0:
			return 0
		case d.Bytes == 0 || limit > 0 && limit < d.Bytes:
			most = max(most, limit)
		default:
			most = max(most, d.Bytes)
		}
	}
	return most
}

// alone is what unit u needs by itself. Whole says that all backwards are in one part.
func (m Measured) alone(wishes Wishes, u int, whole bool) (out Alone, err error) {
	s, err := schedule.Named("gpipe")
	if err != nil {
		return out, err
	}
	p, err := newSpace(wishes, s, m.Chain, 1, 1, 1, []worker{{speed: 1}}, nil)
	if err != nil {
		return out, err
	}
	p.measure(m)
	p.oracle = &oracle{p: p, takes: p.takes()}
	var n needs
	n.add(p, u, u)
	out = Alone{Unit: u, Name: m.Chain.Layers[u].Name, Rows: m.Rows, State: int64(wishes.State) * n.weights}
	step := max(n.input+n.forward, n.input+n.backward, n.weights)
	if whole {
		step = max(step, n.input+n.makes)
	}
	if u == 0 {
		step += m.Chain.Input
	}
	out.Kept = out.State + 2*n.weights + n.held
	out.Bytes = max(n.weights+out.State+n.held+step, m.atBackward(u, wishes.State, whole))
	return out, nil
}

// another is the machine with one more device like its last one.
func (m Machine) another() Machine {
	d := m.Devices[len(m.Devices)-1]
	for taken := true; taken; {
		d.Name += "+"
		taken = slices.ContainsFunc(m.Devices, func(o Device) bool { return o.Name == d.Name })
	}
	return Machine{append(slices.Clone(m.Devices), d), m.Links}
}
