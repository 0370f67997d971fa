package pipe

import (
	"slices"

	"penstock/nn"
	"penstock/schedule"
)

// Stages are joined by more than the activations that neighbours pass on. A skip that is stashed on one stage and popped on others has a port on each of them; a
// parameter that is used on several stages has a tie on each but the first. Both are found before anything runs.
//
//	stage 0          stage 1          stage 2          stage 3
//	stash s  ─────────────────────►  pop s, pop s ──── pop s        s has a port on 0, 2 and 3, and goes 0>2 and 0>3
//	                                                                 (0>1, 1>2, 2>3 with Config.RelaySkips, and a port on 1 too)

// port is where a skip enters a stage, or leaves it, or both when it is relayed.
type port struct {
	key  nn.SkipKey
	from target   // where it comes from; stage -1: it is stashed here
	pops int      // how often this stage pops what it was sent
	to   []target // where it goes, in ascending order
}

// target is a port, or a tie, of a stage.
type target struct{ stage, index int }

// tie is a handle, on a later stage, of a parameter that lives on an earlier one.
type tie struct {
	handle *nn.Param
	owner  target // index is into lent
	index  int    // of this tie among those of the lent parameter
}

// lent is a parameter of a stage that later stages use too.
type lent struct {
	param *nn.Param
	to    []target // in ascending order: the order of the handles in the model
}

// connect finds the stages' ports and ties. Stages have their layers.
func connect(stages []*Stage, routes []nn.SkipRoute, relay bool) {
	of := func(layer int) int {
		return slices.IndexFunc(stages, func(s *Stage) bool { return layer >= s.first && layer < s.first+len(s.Layers) })
	}
	for _, r := range routes {
		home := of(r.Stash)
		pops := make([]int, len(stages))
		last := home
		for _, p := range r.Pops {
			last = of(p)
			pops[last]++
		}
		if last == home {
			continue
		}
		at := stages[home].add(port{key: r.Key, from: target{-1, 0}})
		source := target{home, at}
		for s := home + 1; s <= last; s++ {
			if pops[s] == 0 && !relay {
				continue
			}
			here := target{s, stages[s].add(port{key: r.Key, from: source, pops: pops[s]})}
			from := &stages[source.stage].ports[source.index]
			from.to = append(from.to, here)
			if relay {
				source = here
			}
		}
	}
	home := map[*nn.Param]target{}
	for i, s := range stages {
		for _, l := range s.Layers {
			for _, p := range nn.Shared(l.Layer) {
				owner, known := home[p.Owner()]
				switch {
				case !known:
					home[p.Owner()] = target{i, len(s.lent)}
					s.lent = append(s.lent, lent{param: p.Param})
				case owner.stage < i:
					from := &stages[owner.stage].lent[owner.index]
					from.to = append(from.to, target{i, len(s.ties)})
					s.ties = append(s.ties, tie{handle: p.Param, owner: owner, index: len(from.to) - 1})
				}
			}
		}
	}
}

func (s *Stage) add(p port) int {
	s.ports = append(s.ports, p)
	return len(s.ports) - 1
}

// edges lists the pairs of stages that are joined by ports or ties.
func edges(stages []*Stage) []schedule.Edge {
	var out []schedule.Edge
	for i, s := range stages {
		for _, p := range s.ports {
			for _, t := range p.to {
				out = append(out, schedule.Edge{From: i, To: t.stage})
			}
		}
		for _, l := range s.lent {
			for _, t := range l.to {
				out = append(out, schedule.Edge{From: i, To: t.stage})
			}
		}
	}
	return out
}
