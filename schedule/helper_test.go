package schedule_test

import (
	"fmt"
	"slices"
	"time"

	"pgregory.net/rapid"

	_ "penstock.example/internal/draws" // sets the number of draws
	"penstock.example/internal/must"
	"penstock.example/schedule"
)

// The checkpoint policies that a pipeline offers; the one that is never is nil.
func always(int, int) bool              { return true }
func exceptLast(_, microBatch int) bool { return microBatch > 0 }

func gpipe(t rapid.TB, config schedule.Config) *schedule.Program {
	t.Helper()
	return must.Get(schedule.GPipe(config))(t)
}

func parse(t rapid.TB, text string) *schedule.Program {
	t.Helper()
	return must.Get(schedule.Parse(text))(t)
}

func action(t rapid.TB, text string) schedule.Action {
	t.Helper()
	return must.Get(schedule.ParseAction(text))(t)
}

func simulate(t rapid.TB, p *schedule.Program,
	duration func(schedule.Action) time.Duration) schedule.Timeline {
	t.Helper()
	return must.Get(schedule.Simulate(p, duration))(t)
}

// runs returns an error unless a program runs on links that hold any number of values, on links that
// hold one or meet, and on links in order.
func runs(p *schedule.Program) error {
	for _, capacity := range []int{0, 1, schedule.Meet} {
		on := *p
		if on.Capacity = capacity; schedule.Check(&on) != nil {
			return fmt.Errorf("capacity %d: %w", capacity, schedule.Check(&on))
		}
	}
	home, order := p.Placement(), map[[2]int][2][]schedule.Action{} // by way: what is sent, and received
	for w, a := range p.Workers {
		for _, a := range a {
			way, both := [2]int{w, home[a.Peer]}, 0
			if a.Kind.Receive() {
				way, both, a = [2]int{home[a.Peer], w}, 1, a.Matching()
			}
			if a.Kind.Transfer() && way[0] != way[1] {
				lists := order[way]
				lists[both] = append(lists[both], a)
				order[way] = lists
			}
		}
	}
	for way, lists := range order {
		if !slices.Equal(lists[0], lists[1]) {
			return fmt.Errorf("on %v %v are received as %v", way, lists[0], lists[1])
		}
	}
	return nil
}

// drawConfig draws any valid config of up to 6 stages and 6 micro-batches: all policies,
// placements, capacities and skips.
func drawConfig(t *rapid.T) schedule.Config {
	n := rapid.IntRange(1, 6).Draw(t, "stages")
	m := rapid.IntRange(1, 6).Draw(t, "micro-batches")
	recomputed := rapid.SliceOfN(rapid.Bool(), n*m, n*m).Draw(t, "recomputed")
	config := schedule.Config{
		Stages:       n,
		MicroBatches: m,
		Recompute:    func(stage, microBatch int) bool { return recomputed[stage*m+microBatch] },

		Skips: drawSkips(t, n),
	}
	if rapid.Bool().Draw(t, "share") {
		config.Worker = drawPlacement(t, n)
	}
	config.Capacity = rapid.IntRange(schedule.Meet, 3).Draw(t, "capacity")
	return config
}

// drawPart draws a phase of a program.
func drawPart(t *rapid.T, p *schedule.Program) *schedule.Program {
	return p.Part(rapid.SampledFrom([]schedule.Phase{schedule.Whole, schedule.ForwardOnly,
		schedule.BackwardOnly}).Draw(t, "phase"))
}

// drawProgram draws a program of any schedule, or a phase of one.
func drawProgram(t *rapid.T) *schedule.Program {
	if rapid.Bool().Draw(t, "placed anyhow") {
		return drawGPipe(t)
	}
	_, _, p := drawScheduled(t)
	if rapid.Bool().Draw(t, "replicas") {
		p = schedule.AddReduce(p)
	}
	return drawPart(t, p)
}

// drawGPipe draws a program of GPipe, or a phase of one.
func drawGPipe(t *rapid.T) *schedule.Program { return drawPart(t, gpipe(t, drawConfig(t))) }

// drawSkips draws edges as a caller may declare them: in any order, some between neighbours, some
// twice.
func drawSkips(t *rapid.T, stages int) []schedule.Edge {
	if stages == 1 {
		return nil
	}
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) schedule.Edge {
		from := rapid.IntRange(0, stages-2).Draw(t, "from")
		return schedule.Edge{From: from, To: rapid.IntRange(from+1, stages-1).Draw(t, "to")}
	}), 0, 5).Draw(t, "skips")
}

// drawPlacement puts the stages on any number of workers, in any order, each worker having at least
// one.
func drawPlacement(t *rapid.T, stages int) []int {
	workers := rapid.IntRange(1, stages).Draw(t, "workers")
	var placement []int
	for s := range stages {
		if s < workers {
			placement = append(placement, s)
		} else {
			placement = append(placement, rapid.IntRange(0, workers-1).Draw(t, "worker"))
		}
	}
	return rapid.Permutation(placement).Draw(t, "placement")
}

// drawDurations draws a duration for every kind of action on every stage, transfers being allowed
// to take none.
func drawDurations(t *rapid.T, stages int) func(schedule.Action) time.Duration {
	const kinds = int(schedule.Reduce) + 1
	ms := rapid.SliceOfN(rapid.IntRange(1, 20), stages*kinds, stages*kinds).Draw(t, "durations")
	return func(a schedule.Action) time.Duration {
		d := time.Duration(ms[a.Stage*kinds+int(a.Kind)]) * time.Millisecond
		if a.Kind.Transfer() {
			d -= time.Millisecond
		}
		return d
	}
}
