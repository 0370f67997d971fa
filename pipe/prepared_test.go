package pipe

import (
	"testing"

	"penstock.example/schedule"
)

// A worker waits for its own sends alone. Those that nothing in the run waits for, such as a skip to the
// last stage in a run of forwards, are nobody's to wait for.
func TestSettledSendsAreTheWorkersOwn(t *testing.T) {
	waited := 0
	for _, s := range schedule.Schedules() {
		workers, err := s.Workers(4, s.Usual())
		if err != nil {
			t.Fatal(err)
		}
		p, err := s.Generate(schedule.Config{Stages: len(workers), Worker: workers, MicroBatches: 3, Skips: []schedule.Edge{{From: 0, To: len(workers) - 1}, {From: 0, To: 2}}})
		if err != nil {
			t.Fatal(err)
		}
		for _, phase := range []schedule.Phase{schedule.Whole, schedule.ForwardOnly} {
			g := newProgram(p.Part(phase))
			for id, sends := range g.settled {
				for _, send := range sends {
					from, ok := g.IndexOf(send)
					if !ok || id == len(g.Actions) || g.Worker[id] != g.Worker[from] || id <= from {
						t.Errorf("%s: before action %d worker %d waits for %v", s.Name, id, g.Worker[min(id, len(g.Actions)-1)], send)
					}
					waited++
				}
			}
		}
	}
	if waited == 0 {
		t.Error("no worker waits for anything")
	}
}
