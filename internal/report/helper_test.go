package report_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"penstock.example/internal/metrics"
	"penstock.example/internal/must"
	"penstock.example/internal/report"
	"penstock.example/plan"
	"penstock.example/remat"
	"penstock.example/schedule"
)

// oneFOneBPlan is the plan of a step under 1F1B where every other micro-batch is recomputed, with
// predictions if they are wanted.
func oneFOneBPlan(t testing.TB, stages, microBatches int, predicted bool) *plan.Plan {
	t.Helper()
	program := must.Get(schedule.OneFOneB(schedule.Config{Stages: stages, MicroBatches: microBatches,
		Recompute: func(stage, microBatch int) bool { return microBatch%2 == 0 }}))(t)
	var b strings.Builder
	for d := range stages {
		fmt.Fprintf(&b, "device cpu:%d limit=%d base=1000 peak=%d", d, 64<<20, (50+d)<<20)
		if predicted {
			b.WriteString(" time=100 once=90 bound=95")
		}
		b.WriteByte('\n')
	}
	for s := range stages {
		fmt.Fprintf(&b, "stage %d device=cpu:%d layers=3 policy=optimal units=1,1,1\n", s, s)
		for m := range microBatches {
			times, ops := "", "S0 S1 S2 L B2 B1 B0"
			if m%2 == 0 {
				ops = "K0 F1 F2 L S0 S1 S2 B2 B1 B0"
			}
			if predicted {
				times = fmt.Sprintf("times=%d/0/%d ", 1000+100*s, 2000+200*s)
			}
			if m%2 == 0 && predicted {
				times = fmt.Sprintf("times=%d/500/%d ", 1000+100*s, 2000+200*s)
			}
			fmt.Fprintf(&b, "  %d %s%s\n", m, times, ops)
		}
	}
	b.WriteString(program.String())
	p, err := plan.Parse(b.String())
	if err != nil {
		t.Fatalf("%v in\n%s", err, b.String())
	}
	return p
}

// ran is a recorded step of a plan: longer than planned, with bytes.
func ran(t testing.TB, p *plan.Plan) *schedule.Timeline {
	t.Helper()
	random := rand.New(rand.NewPCG(1, 2))
	out := must.Get(schedule.Simulate(p.Program, func(a schedule.Action) time.Duration {
		base := map[schedule.Kind]float64{schedule.Forward: 1000, schedule.Recompute: 500,
			schedule.Backward: 2000}[a.Kind]
		if a.Kind.Transfer() {
			base = 30
		}
		return time.Duration(base * (1 + 0.3*random.Float64()) * float64(time.Microsecond))
	}))(t)
	live := make([]int64, out.Workers)
	for i := range out.Events {
		e := &out.Events[i]
		e.Start, e.End = e.Start+time.Second, e.End+time.Second // since some moment
		switch e.Action.Kind {
		case schedule.Forward:
			live[e.Worker] += 5 << 20
		case schedule.Backward:
			live[e.Worker] -= 5 << 20
		}
		e.Live = 12<<20 + live[e.Worker]
	}
	return &out
}

// chain is one of three units, as the plan has them.
func chain() remat.Chain {
	layer := func(name string, us float64) remat.Layer {
		return remat.Layer{Name: name, Forward: us, ForwardNoGrad: us, Backward: 2 * us, Output: 1 << 20,
			Saved: 4 << 20, Gradient: 1 << 20}
	}
	return remat.Chain{Input: 1 << 20, InputGradient: 1 << 20,
		Layers: []remat.Layer{layer("a", 500), layer("b", 400), layer("c", 300)}}
}

// sample is a run with all that a page shows.
func sample(t testing.TB, stages, microBatches int) report.Run {
	t.Helper()
	p := oneFOneBPlan(t, stages, microBatches, true)
	r := report.Run{
		Title: "gpt on text", Last: 400, Plan: p, Step: 3, Rows: 128, Ran: ran(t,
			p), Chains: []report.Chain{{Stage: 0, Chain: chain()}},
		Facts: []report.Fact{{Name: "Command", Value: "penstock train --model gpt"},
			{Name: "Schedule", Value: "1f1b"}},
	}
	for i := range 3 * stages {
		r.Layers = append(r.Layers, report.Layer{Name: fmt.Sprintf("block%d.mlp", i), Type: "Linear",
			Parameters: 1 << 20,
			Forward:    0.001 + 0.0001*float64(i%5), Backward: 0.002, Saved: 3 << 20})
	}
	return r
}

// numbers is so many steps with a test every twenty.
func numbers(steps int64, devices int) (h metrics.History) {
	random := rand.New(rand.NewPCG(3, 4))
	for n := int64(1); n <= steps; n++ {
		norm := 1 + random.Float64()
		s := metrics.Step{Step: n, Epoch: int(n / 100), Time: 1763838000 + float64(n),
			Loss: 2*math.Exp(-float64(n)/100) + 0.2*random.Float64(),
			LR:   0.05 * (1 + math.Cos(math.Pi*float64(n)/float64(steps))), GradNorm: &norm,
			SamplesPerSecond: 900 + 100*random.Float64()}
		for d := range devices {
			s.PeakBytes = append(s.PeakBytes, int64(40+d)<<20)
		}
		h.Steps = append(h.Steps, s)
		if n%20 == 0 {
			h.Tests = append(h.Tests, metrics.Test{Step: n, Time: s.Time,
				Accuracy: new(0.95 - 0.8*math.Exp(-float64(n)/80))})
		}
	}
	return h
}

// planPage is the page of a plan that has not run.
func planPage(t testing.TB, stages, microBatches int) report.Page {
	t.Helper()
	r := sample(t, stages, microBatches)
	planned := *ran(t, r.Plan)
	r.Title, r.Planned, r.Ran, r.Step, r.Last = "gpt, planned", &planned, nil, 0, 0
	r.Others = []report.Other{
		{Schedule: "gpipe", MicroBatches: microBatches, Step: 0.05, Bound: 0.05, Peak: 60 << 20,
			Lost: "time: 12.0 % more"},
		{Schedule: "1f1b", MicroBatches: microBatches, Step: 0.04, Bound: 0.04, Peak: 53 << 20},
		{Schedule: "zb-v", Lost: "2 stages on each device are more than there are units"},
	}
	return report.Page{Run: r, Curves: []report.Curve{report.NewCurve(0, chain(), best(t), r.Plan)}}
}

// page is a complete page.
func page(t testing.TB, stages, microBatches int) report.Page {
	t.Helper()
	r := sample(t, stages, microBatches)
	return report.Page{Run: r, History: numbers(400, stages),
		Curves: []report.Curve{report.NewCurve(0, chain(), best(t), r.Plan)}}
}
