package plan_test

import (
	"context"
	"testing"

	"pgregory.net/rapid"

	"penstock.example/plan"
	"penstock.example/remat"
)

// The peak of one micro-batch on one stage, of which only chains are known, is that which package remat
// finds for the operations, whatever is computed again.
func TestPeakOfOneMicroBatchIsThatOfItsOperations(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		first := chain(t, rapid.IntRange(1, 6).Draw(t, "layers"))
		n := len(first.Layers)
		if from := rapid.IntRange(-1, n-1).Draw(t, "from"); rapid.Bool().Draw(t, "carry") { // a skip
			made := first.Input
			if from >= 0 {
				made = first.Layers[from].Output
			}
			first.Carries = []remat.Carry{{From: from, To: rapid.IntRange(from+1, n).Draw(t, "to"),
				Bytes: rapid.Int64Range(0, made).Draw(t, "carried")}}
		}
		p := plan.Problem{
			Devices: []plan.ProblemDevice{{Name: "cpu:0"}}, MicroBatches: 1,
			Stages: []plan.Stage{{Layers: n, Policy: plan.Optimal, Costs: plan.CostsOf(first)}},
		}
		found, err := plan.Solve(context.Background(), p)
		for err == nil {
			report, wrong := remat.Check(first, found.Stages[0].MicroBatches[0].Ops)
			if wrong != nil {
				t.Fatal(wrong)
			}
			if d := found.Devices[0]; d.Peak != d.Base+report.Peak {
				t.Fatalf("the plan says %d bytes beside %d, its operations take %d:\n%v", d.Peak-d.Base,
					d.Base, report.Peak, found)
			}
			p.Devices[0].Limit = found.Devices[0].Peak - 1
			if p.Devices[0].Limit == 0 {
				return
			}
			found, err = plan.Solve(context.Background(), p)
		}
	})
}
