package plan_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"penstock.example/internal/draws"
	"penstock.example/internal/must"
	"penstock.example/plan"
	"penstock.example/remat"
)

// What is solved is valid and within its limits, and its text is read back as it was. What is short
// of memory is solved under the least limits that the error names, and hardly ever with a byte less.
func TestSolve(t *testing.T) {
	draws.Checks(t, 100, 1000)
	short := 0
	rapid.Check(t, func(t *rapid.T) {
		p := problem(t)
		device := func(s plan.Shortage) *plan.ProblemDevice { return &p.Devices[p.Stages[s.Stage].Device] }
		found, err := plan.Solve(context.Background(), p)
		var lack *plan.MemoryError
		if errors.As(err, &lack) {
			short++
			for _, s := range lack.Stages {
				if s.Least <= s.Limit || s.Limit != device(s).Limit ||
					!strings.Contains(err.Error(), s.String()) {
					t.Fatalf("%+v of %v", s, err)
				}
				device(s).Limit = s.Least - 1
			}
			lower, refused := plan.Solve(context.Background(), p)
			if refused == nil { // the least is now and then some bytes too high; see Shortage
				for _, s := range lack.Stages {
					at := p.Stages[s.Stage].Device
					if d := lower.Devices[at]; d.Peak > d.Limit ||
						float64(s.Least-d.Peak) > 0.1*float64(s.Least-d.Base) {
						t.Fatalf("%d bytes do where %d are said to be the least", d.Peak, s.Least)
					}
				}
			} else if lack.Stages[0].Least > 1 && !errors.As(refused, new(*plan.MemoryError)) {
				t.Fatalf("with a byte less than the least: %v", refused)
			}
			for _, s := range lack.Stages {
				device(s).Limit = s.Least
			}
			found, err = plan.Solve(context.Background(), p)
		}
		must.Do(t, err)
		if err := found.Check(); err != nil {
			t.Fatalf("%v\n%v", err, found)
		}
		for i, s := range found.Stages {
			d := found.Devices[s.Device]
			if s.Policy == plan.Optimal &&
				(d.Limit != p.Devices[s.Device].Limit || d.Limit > 0 && d.Peak > d.Limit ||
					d.Base < p.Devices[s.Device].Live) {
				t.Errorf("stage %d: %+v", i, d)
			}
		}
		again, err := plan.Parse(found.String())
		if err != nil {
			t.Fatalf("%v\n%v", err, found)
		}
		if diff := cmp.Diff(found.String(), again.String()); diff != "" {
			t.Error(diff)
		}
		for n := 1; n < p.MicroBatches; n++ {
			// A device with two stages may send earlier than with more micro-batches, and another then
			// hold more: 2 of 12,000 problems.
			if err := found.Fewer(n).Check(); err != nil && len(p.Devices) == len(p.Stages) {
				t.Errorf("for %d micro-batches: %v", n, err)
			}
		}
	})
	if short == 0 {
		t.Error("no problem was short of memory")
	}
}

// A plan holds in other memory as long as it fits and no more than a hundredth of the limit has
// become free.
func TestRefit(t *testing.T) {
	c := remat.Chain{Input: 10, Loss: remat.Loss{Backward: 1},
		Layers: []remat.Layer{{Name: "a", Forward: 1, ForwardNoGrad: 1, Backward: 2, Output: 10, Saved: 20,
			Gradient: 10}}}
	p := plan.Problem{MicroBatches: 2, Devices: []plan.ProblemDevice{{Name: "cpu:0", Limit: 1000,
		Live: 500}}, Stages: []plan.Stage{{
		Layers: 1, Policy: plan.Optimal, Costs: plan.CostsOf(c),
	}}}
	made := must.Get(plan.Solve(context.Background(), p))(t)
	peak := made.Devices[0].Peak
	for _, tt := range []struct {
		live, limit int64
		fits        bool
	}{
		{500, 1000, true}, {500 + 1000 - peak, 1000, true}, {500 + 1000 - peak + 1, 1000, false}, {490, 1000,
			true}, {489, 1000, false}, {500, 1001, false},
	} {
		p.Devices[0].Live, p.Devices[0].Limit = tt.live, tt.limit
		now := made.Refit(p)
		if (now != nil) != tt.fits {
			t.Errorf("%+v: %v", tt, now)
		}
		if now != nil && (now.Devices[0].Peak != peak+tt.live-500 || now.Devices[0].Base != tt.live ||
			made.Devices[0].Peak != peak) {
			t.Errorf("%+v: %+v", tt, now.Devices[0])
		}
	}
}

// Every fault of a plan is found, and the error says where it is.
func TestCheckFindsFaults(t *testing.T) {
	whole := `device cpu:0
device cpu:1 limit=900 base=400 peak=880 time=25 once=22
stage 0 device=cpu:0 layers=2 policy=except_last
  0 S0 L B0
  1 K0 L S0 B0
stage 1 device=cpu:1 layers=3 policy=optimal units=1,1,1 prologue=1
  0-1 times=4.5/1/7 F0 S1 K2 L S2 B2 B1
program whole stages=2 micro-batches=2
worker 0: 0F0 0F0>1 0F1 0F1>1 1>0B0 0B0 0R1 1>0B1 0B1
worker 1: 0>1F0 1F0 0>1F1 1F1 1R0 1B0 1B0>0 1R1 1B1 1B1>0
`
	p := must.Get(plan.Parse(whole))(t)
	if diff := cmp.Diff(whole, p.String()); diff != "" {
		t.Fatal(diff)
	}
	for _, tt := range []struct{ from, to, want string }{
		{"0 S0 L B0\n", "0 K0 L S0 B0\n", "the program has 0R0: false"},
		{"1 K0 L S0 B0\n", "1 S0 L B0\n", "the program has 0R1: true"},
		{"1 K0 L S0 B0", "1 K0 L B0", "stage 0: micro-batch 1: "},
		{"  1 K0 L S0 B0\n", "", "operations of 1 micro-batches"},
		{"policy=except_last", "policy=sometimes", `policy "sometimes"`},
		{"layers=3", "layers=5", "units of 3 layers, and the stage has 5"},
		{"units=1,1,1", "units=1,0,2", "unit 1 has 0 layers"},
		{"prologue=1", "prologue=4", "a prologue of 4 units, and there are 3"},
		{"F0 S1", "K0 S1", "operation 0 is K0; want F0"},
		{"peak=880", "peak=901", "a peak of 901 bytes with a limit of 900"},
		{"1>0B0 0B0", "0B0 1>0B0", "worker 0"},
		{"stages=2 micro-batches=2\nworker 0", "stages=3 micro-batches=2\nworker 0",
			"missing: 2F0 is on no worker"},
		{"0-1 times", "1-1 times", `line 7: micro-batches "1-1"; want those from 0 on`},
		{"times=4.5/1/7", "times=4.5/1", "line 7: times=4.5/1: want three numbers"},
		{"times=4.5/1/7", "times=4.5/1/NaN", `"NaN" is no number of microseconds`},
		{"time=25", "time=-1", `line 2: time=-1: "-1" is no number`},
		{"time=25", "tim=25", `line 2: "tim=25"; want limit`},
		{"device cpu:0\n", "device cpu:0\ndevice cpu:0\n",
			"2 stages on 3 devices, and a program for 2 stages on 2"},
		{"device=cpu:1", "device=cpu:0", "want optimal for all stages of a device"},
		{"device=cpu:1", "device=cpu:2", `line 6: stage 1 is on device "cpu:2", and no line before`},
		{"device=cpu:1 ", "", `line 6: stage 1 is on device ""`},
		{"time=25", "time=25 time=25", "line 2: time is given twice"},
		{"limit=900", "limit=many", "line 2: limit=many"},
		{"stage 1", "stage 2", "or stage 1, next"},
		{"S2 B2 B1\n", "S2 B2 X1\n", `"X1"`},
		{"program whole", "program backward-only", "backward-only"},
	} {
		if strings.Count(whole, tt.from) == 0 {
			t.Fatalf("%q is not in the text", tt.from)
		}
		_, err := plan.Parse(strings.Replace(whole, tt.from, tt.to, 1))
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q for %q: got %v, want %q", tt.to, tt.from, err, tt.want)
		}
	}
	if _, err := plan.Parse(strings.Split(whole, "program")[0]); err == nil || !strings.Contains(err.Error(),
		"without a program") {
		t.Errorf("got %v", err)
	}
	if err := (*plan.Plan)(nil).Check(); err == nil {
		t.Error("a nil plan is valid")
	}
	if _, err := plan.Solve(context.Background(), plan.Problem{MicroBatches: 0}); err == nil ||
		!strings.Contains(err.Error(), "MicroBatches is 0; want at least 1") {
		t.Errorf("got %v", err)
	}
	if _, predicted, err := p.Timeline(); predicted || err != nil {
		t.Errorf("stage 0 has no times, and a step has: %v", err)
	}
}

// The simulated step of one stage is the sum of its actions.
func TestStep(t *testing.T) {
	for _, worker := range []string{"0F0 0F1 0B0 0B1", "0F0 0F1 0I0 0I1 0W0 0W1"} {
		p := must.Get(plan.Parse(`device cpu:0 limit=900 base=400 peak=880 time=30 once=28
stage 0 device=cpu:0 layers=1 policy=optimal units=1
  0-1 times=4000/0/11000 S0 L B0
program whole stages=1 micro-batches=2
worker 0: ` + worker + "\n"))(t)
		if got := stepOf(t, p); got.Milliseconds() != 30 {
			t.Errorf("%s: got %v", worker, got)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("device cpu:0 peak=3\nstage 0 device=cpu:0 layers=1 policy=never\n  0 S0 L B0\nprogram whole " +
		"stages=1 micro-batches=1\nworker 0: 0F0 0B0\n")
	f.Fuzz(func(t *testing.T, text string) {
		p, err := plan.Parse(text)
		if err != nil {
			return
		}
		again, err := plan.Parse(p.String())
		if err != nil || again.String() != p.String() {
			t.Errorf("%v\n%v\n%v", err, p, again)
		}
	})
}

// A stage whose units take next to nothing, and less than what runs in front of them, is refused
// with what that takes.
func TestThePrologueTakesMost(t *testing.T) {
	c := remat.Chain{Loss: remat.Loss{Backward: 1},
		Layers: []remat.Layer{{Name: "a", Forward: 1, ForwardNoGrad: 1, Backward: 1}}}
	s := plan.Stage{Layers: 2, Policy: plan.Optimal,
		Costs:  withPrologue(c, 1, 200),
		Memory: plan.Memory{BatchInput: true}}
	p := plan.Problem{MicroBatches: 2, Devices: []plan.ProblemDevice{{Name: "cpu:0", Limit: 100}},
		Stages: []plan.Stage{s}}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_, err := plan.Solve(ctx, p)
	var lack *plan.MemoryError
	if !errors.As(err, &lack) || lack.Least() != 200 {
		t.Errorf("got %v, want a shortage of 200 bytes", err)
	}
}
