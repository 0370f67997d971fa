package pipe

import (
	"slices"

	"penstock/nn"
	"penstock/schedule"
)

// Stages are joined by more than the activations that neighbours pass on. A skip that is stashed on
// one stage and popped on others has a port on each of them; a parameter that is used on several
// stages has a tie on each. Both are found before anything runs.
//
//	stage 0          stage 1          stage 2          stage 3
//	stash s  ─────────────────────►  pop s, pop s ──── pop s        s has a port on 0, 2 and 3, and goes 0>2 and 0>3
//
//	uses w           .                uses w, w        uses w       w has a tie on 0, 2 and 3: its gradients go 3>2 and 2>0
//
// A tie hands its gradient to the one before, where backward starts from it. Sending all of them
// straight to where the parameter lives would sum as quickly, but in another order than autograd on
// an uncut model, which adds use after use to one sum: what stage 2 uses twice would be summed by
// itself first.

// port is where a skip leaves the stage that stashes it, or enters one that pops it.
type port struct {
	key   nn.SkipKey
	from  target   // where it comes from; stage -1: it is stashed here
	place int      // among the stage's ports that are stashed here
	pops  int      // how often this stage pops what it was sent
	to    []target // where it goes, in ascending order
}

// target is a port, or a tie, of a stage.
type target struct{ stage, index int }

// connect finds the stages' ports and ties. Stages have their layers.
func connect(stages []*Stage, routes []nn.SkipRoute) {
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
		at := stages[home].add(port{key: r.Key, from: target{-1, 0}, place: stages[home].leaving})
		stages[home].leaving++
		source := target{home, at}
		for s := home + 1; s <= last; s++ {
			if pops[s] == 0 {
				continue
			}
			here := target{s, stages[s].add(port{key: r.Key, from: source, pops: pops[s]})}
			from := &stages[home].ports[at]
			from.to = append(from.to, here)
		}
	}
	last := map[*nn.Param]target{} // the tie on the last stage so far
	for i, s := range stages {
		for _, l := range s.Layers {
			for _, p := range nn.Shared(l.Layer) {
				before, known := last[p.Owner()]
				if known && before.stage == i {
					t := &s.ties[before.index]
					t.handles = append(t.handles, p.Param)
					continue
				}
				here := target{i, len(s.ties)}
				if known {
					stages[before.stage].ties[before.index].to = here
				} else {
					before = target{-1, 0}
				}
				s.ties = append(s.ties, tie{handles: []*nn.Param{p.Param}, from: before, to: target{-1, 0}})
				last[p.Owner()] = here
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
		for _, t := range s.ties {
			if t.to.stage >= 0 {
				out = append(out, schedule.Edge{From: i, To: t.to.stage})
			}
		}
	}
	return out
}
