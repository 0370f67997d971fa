package search

import (
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
	whole := !slices.ContainsFunc(list, func(s schedule.Schedule) bool { return s.Split })
	limit := machine.Largest(wishes.Limit)
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
	out.Bytes = n.weights + out.State + n.held + step
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
