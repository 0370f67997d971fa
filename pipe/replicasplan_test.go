package pipe_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"penstock.example/group"
	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/planner"
	"penstock.example/torch"
)

// asReplicas trains with two replicas in this process and returns what each has.
func (q problem) asReplicas(t *testing.T, cfg pipe.Config) ([]trained, error) {
	t.Helper()
	stages := len(cfg.Balance)
	if cfg.Plan != nil {
		stages = len(cfg.Plan.Stages)
	}
	all, errs := each(2, func(g *group.Group) (trained, error) {
		cfg := cfg
		cfg.Group, cfg.Replicas, cfg.Devices = g, 2, nil
		for i := range stages {
			cfg.Devices = append(cfg.Devices, torch.CPU(10+stages*g.Rank()+i))
		}
		return q.planned(cfg)
	})
	return all, errors.Join(errs...)
}

// A plan that replicas have made, or a pipe alone, is run by replicas: to the bits of a plain loop,
// within the bytes that it then predicts, with the sums.
func TestGivenPlanOfReplicas(t *testing.T) {
	torchtest.Check(t)
	q := deepProblem()
	q.steps = 1
	half := q // of one replica
	half.rows /= 2
	half.input, half.target = normal(half.rows, 12), classes(half.rows, 3)
	for _, balance := range [][]int{{9}, {4, 5}} {
		cfg := pipe.Config{Balance: balance, Chunks: 3, Checkpoint: pipe.Optimal, Seed: 1}
		want := q.plainReplicas(2, 3, 1)
		check := func(name string, all []trained, err error) {
			t.Helper()
			if err != nil {
				t.Fatalf("%v, %s: %v", balance, name, err)
			}
			for i, d := range all[0].plan.Devices {
				most := max(all[0].peaks[0][i], all[1].peaks[0][i])
				if most > d.Peak || len(balance) == 1 && most != d.Peak {
					t.Errorf("%v, %s: device %d takes %d bytes, and %d are predicted", balance, name, i, most, d.Peak)
				}
			}
			for _, r := range all {
				if d := want.differs(r.record); d != "" {
					t.Errorf("%v, %s: %s differs from the plain loop", balance, name, d)
				}
			}
			if !all[0].plan.Program.Reduces() {
				t.Errorf("%v, %s: the program sums nothing:\n%v", balance, name, all[0].plan.Program)
			}
		}
		free, err := q.asReplicas(t, cfg)
		check("no limit", free, err)
		cfg.Budget = nil
		for _, d := range free[0].plan.Devices {
			cfg.Budget = append(cfg.Budget, d.Peak)
		}
		tight, err := q.asReplicas(t, cfg)
		check("a limit", tight, err)
		read, err := planner.Parse(tight[0].plan.String())
		if err != nil {
			t.Fatal(err)
		}
		again, err := q.asReplicas(t, pipe.Config{Plan: read, Seed: 1})
		check("the plan of replicas, read", again, err)
		for i, d := range again[0].plan.Devices { // check has compared them with those that were measured
			if want := tight[0].plan.Devices[i].Peak; d.Peak != want {
				t.Errorf("%v: a plan takes %d bytes on device %d, and %d when it was read", balance, want, i, d.Peak)
			}
		}
		cfg.Budget, cfg.Devices = nil, []torch.Device{torch.CPU(10), torch.CPU(11)} // the batch is on cpu:0, and none of the plan
		alone, err := half.planned(cfg)
		if err != nil {
			t.Fatal(err)
		}
		text := alone.plan.String()
		all, err := q.asReplicas(t, pipe.Config{Plan: alone.plan, Seed: 1})
		check("the plan of a pipe alone", all, err)
		if alone.plan.String() != text {
			t.Errorf("%v: the caller's plan has changed", balance)
		}
	}
}

// A plan of a pipe alone is refused where the sums of replicas do not fit in its limits.
func TestGivenPlanWithoutRoomForSums(t *testing.T) {
	torchtest.Check(t)
	q := problem{model: func() *nn.Sequential {
		return nn.NewSequential(nn.NewLinear(12, 300), nn.NewTanh(), nn.NewLinear(300, 3))
	},
		rows: 4, steps: 1, loss: nn.CrossEntropy(), input: normal(4, 12), target: classes(4, 3)}
	alone, err := q.planned(pipe.Config{Chunks: 2, Checkpoint: pipe.Optimal, Seed: 1, Devices: []torch.Device{torch.CPU(10)}})
	if err != nil {
		t.Fatal(err)
	}
	plan := *alone.plan
	plan.Devices = slices.Clone(plan.Devices)
	for _, room := range []int64{0, 4 * 12 * 300} {
		plan.Devices[0].Limit = plan.Devices[0].Peak + room
		read, err := planner.Parse(plan.String())
		if err != nil {
			t.Fatal(err)
		}
		for name, given := range map[string]*planner.Plan{"made": &plan, "read": read} {
			_, err := q.asReplicas(t, pipe.Config{Plan: given, Seed: 1})
			var refused *pipe.ConfigError
			switch {
			case room > 0 && err != nil:
				t.Errorf("%s, with room: %v", name, err)
			case room == 0 && (!errors.As(err, &refused) || refused.Field != "Plan" || !strings.Contains(err.Error(), "the sums over replicas take")):
				t.Errorf("%s, without room: %v", name, err)
			}
		}
	}
}
