package schedule_test

import (
	"errors"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"penstock.example/schedule"
)

// A valid program stops being valid under each of these mutations, and the checker says which rule
// it breaks.

// site is the place of an action in a program.
type site struct{ worker, at int }

// drawSite draws a place whose action satisfies the condition; the test case is skipped if there is
// none.
func drawSite(t *rapid.T, p *schedule.Program, suits func(schedule.Action) bool) site {
	var sites []site
	for w, actions := range p.Workers {
		for at, a := range actions {
			if suits(a) {
				sites = append(sites, site{w, at})
			}
		}
	}
	if len(sites) == 0 {
		t.Skip("no action suits")
	}
	return rapid.SampledFrom(sites).Draw(t, "site")
}

func anyAction(schedule.Action) bool { return true }
func required(a schedule.Action) bool {
	return a.Kind != schedule.Recompute && a.Kind != schedule.Reduce
}
func mustBreak(t *rapid.T, p *schedule.Program, rules ...string) {
	t.Helper()
	var vs schedule.Violations
	if !errors.As(schedule.Check(p), &vs) {
		t.Fatalf("the mutant passed, want a breach of %v:\n%v", rules, p)
	}
	if !slices.ContainsFunc(vs, func(v schedule.Violation) bool { return slices.Contains(rules, v.Rule) }) {
		t.Fatalf("none of %v among: %v\n%v", rules, vs, p)
	}
	for _, v := range vs { // each says where it is, and why
		if v.Reason == "" || v.Position > 0 && p.Workers[v.Worker][v.Position-1] != v.Action {
			t.Fatalf("%+v is not there\n%v", v, p)
		}
		if v.Position == 0 && v.Rule != "missing" && v.Rule != "header" {
			t.Fatalf("%+v is nowhere", v)
		}
	}
}

// hops is the number of stages that a transfer passes, its own included.
func hops(a schedule.Action) int { return max(a.Peer-a.Stage, a.Stage-a.Peer) }

// isSkip reports whether the action moves something past a stage.
func isSkip(a schedule.Action) bool { return a.Kind.Transfer() && hops(a) > 1 }

// drop removes an action.
func drop(p *schedule.Program, s site) {
	p.Workers[s.worker] = slices.Delete(p.Workers[s.worker], s.at, s.at+1)
}

// mutations change a valid program so that it breaks one of the rules. Some suit only programs with skips.
var mutations = []struct {
	name   string
	skips  bool
	mutate func(t *rapid.T, p *schedule.Program)
	rules  []string
}{
	{"an action is dropped", false, func(t *rapid.T, p *schedule.Program) {
		drop(p, drawSite(t, p, required))
	}, []string{"missing"}},
	{"a skip is dropped", true, func(t *rapid.T, p *schedule.Program) { drop(p, drawSite(t, p, isSkip)) },
		[]string{"missing"}},
	{"an action is there twice", false, func(t *rapid.T, p *schedule.Program) {
		from := drawSite(t, p, anyAction)
		to := rapid.IntRange(0, len(p.Workers)-1).Draw(t, "to worker")
		at := rapid.IntRange(0, len(p.Workers[to])).Draw(t, "to")
		p.Workers[to] = slices.Insert(p.Workers[to], at, p.Workers[from.worker][from.at])
	}, []string{"duplicate"}},
	{"an action is another", false, func(t *rapid.T, p *schedule.Program) {
		s := drawSite(t, p, required)
		other := drawAction(t)
		if other == p.Workers[s.worker][s.at] {
			t.Skip("no change")
		}
		p.Workers[s.worker][s.at] = other
	}, []string{"missing"}},
	{"a skip comes from another stage", true, func(t *rapid.T, p *schedule.Program) {
		s := drawSite(t, p, isSkip)
		peer := rapid.IntRange(0, p.Stages-1).Draw(t, "peer")
		if peer == p.Workers[s.worker][s.at].Peer {
			t.Skip("no change")
		}
		p.Workers[s.worker][s.at].Peer = peer
	}, []string{"duplicate", "unknown"}},
	{"a skip is not declared", true, func(t *rapid.T, p *schedule.Program) {
		at := rapid.IntRange(0, len(p.Skips)-1).Draw(t, "skip")
		p.Skips = slices.Delete(p.Skips, at, at+1)
	}, []string{"unknown"}},
	{"a skip more is declared", false, func(t *rapid.T, p *schedule.Program) {
		edge := schedule.Edge{From: rapid.IntRange(-1, p.Stages).Draw(t, "from"),
			To: rapid.IntRange(-1, p.Stages).Draw(t, "to")}
		p.Skips = slices.Insert(p.Skips, rapid.IntRange(0, len(p.Skips)).Draw(t, "at"), edge)
	}, []string{"missing", "header"}},
	{"a skip is received after its use", true, func(t *rapid.T, p *schedule.Program) {
		s := drawSite(t, p, func(a schedule.Action) bool { return isSkip(a) && a.Kind.Receive() })
		list := p.Workers[s.worker]
		a := list[s.at]
		use := s.at + slices.IndexFunc(list[s.at:], func(b schedule.Action) bool {
			return b.Stage == a.Stage && b.MicroBatch == a.MicroBatch &&
				(b.Kind == schedule.Forward || b.Kind == schedule.Backward ||
					b.Kind == schedule.BackwardInput)
		})
		to := rapid.IntRange(use, len(list)-1).Draw(t, "to")
		p.Workers[s.worker] = slices.Insert(slices.Delete(list, s.at, s.at+1), to, a)
	}, []string{"order"}},
	{"an action is on another worker", false, func(t *rapid.T, p *schedule.Program) {
		if len(p.Workers) == 1 {
			t.Skip("there is no other worker")
		}
		count := make(map[int]int) // by stage
		for _, a := range slices.Concat(p.Workers...) {
			count[a.Stage]++
		}
		// The only action of a stage may go anywhere.
		from := drawSite(t, p, func(a schedule.Action) bool { return count[a.Stage] > 1 })
		a := p.Workers[from.worker][from.at]
		to := (from.worker + rapid.IntRange(1, len(p.Workers)-1).Draw(t, "by")) % len(p.Workers)
		at := rapid.IntRange(0, len(p.Workers[to])).Draw(t, "to")
		drop(p, from)
		p.Workers[to] = slices.Insert(p.Workers[to], at, a)
	}, []string{"placement"}},
}

func TestMutationsAreCaught(t *testing.T) {
	for _, m := range mutations {
		t.Run(m.name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				p := drawProgram(t)
				if m.skips && len(p.Skips) == 0 {
					t.Skip("no skips")
				}
				m.mutate(t, p)
				mustBreak(t, p, m.rules...)
			})
		})
	}
}

// Without its recomputation a micro-batch on a stage is one whose graph is kept.
func TestDroppedRecomputationIsAnotherPolicy(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawProgram(t)
		drop(p, drawSite(t, p, func(a schedule.Action) bool { return a.Kind == schedule.Recompute }))
		if err := schedule.Check(p); err != nil {
			t.Fatalf("%v\n%v", err, p)
		}
	})
}

// Two actions of a worker change places, of which one needs the other, directly or by way of any
// others.
func TestSwapAcrossDependencyIsCaught(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		config := drawConfig(t)
		config.Capacity = 0 // where sends meet, what waits for a receive is whatever comes next
		p := drawPart(t, gpipe(t, config))
		g := p.Graph()
		needs := transitive(g)
		second := drawSite(t, p, func(a schedule.Action) bool {
			id, _ := g.IndexOf(a)
			return slices.Contains(needs[id][g.First[g.Worker[id]]:id], true)
		})
		id := g.First[second.worker] + second.at
		var before []int
		for at := range second.at {
			if needs[id][g.First[second.worker]+at] {
				before = append(before, at)
			}
		}
		first := rapid.SampledFrom(before).Draw(t, "first")
		list := p.Workers[second.worker]
		list[first], list[second.at] = list[second.at], list[first]
		mustBreak(t, p, "order", "deadlock")
	})
}

// transitive returns, for every action, which others it needs, directly or not.
func transitive(g *schedule.Graph) [][]bool {
	all := make([][]bool, len(g.Actions))
	var visit func(id int)
	visit = func(id int) {
		if all[id] != nil {
			return
		}
		all[id] = make([]bool, len(g.Actions))
		for _, dep := range g.Deps[id] {
			visit(dep)
			all[id][dep] = true
			for i, yes := range all[dep] {
				all[id][i] = all[id][i] || yes
			}
		}
	}
	for id := range g.Actions {
		visit(id)
	}
	return all
}

// Any shuffle of a worker's list either keeps every dependency or is caught: a program that passes
// can be simulated, with no action before what it needs.
func TestShuffleIsCaughtOrHarmless(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawProgram(t)
		w := drawSite(t, p, anyAction).worker
		for range rapid.IntRange(1, 3).Draw(t, "swaps") {
			i := rapid.IntRange(0, len(p.Workers[w])-1).Draw(t, "i")
			j := rapid.IntRange(0, len(p.Workers[w])-1).Draw(t, "j")
			p.Workers[w][i], p.Workers[w][j] = p.Workers[w][j], p.Workers[w][i]
		}
		if schedule.Check(p) == nil {
			causal(t, p, simulate(t, p, schedule.Unit))
		}
	})
}
