package train_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"penstock.example/internal/must"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/pipe"
	"penstock.example/planner"
	"penstock.example/torch"
	"penstock.example/train"
)

// budgeted makes a loop over a network under a limit for each device, by the policy optimal, with
// Adam. The pipe is not placed.
func budgeted(t *testing.T, model *nn.Sequential, balance []int, limits []int64, clip float64) *train.Loop {
	t.Helper()
	o := must.Get(optim.Adam(optim.Config{LR: 0.01}))(t)
	t.Cleanup(o.Close)
	p := must.Get(pipe.Open(model, pipe.Config{Balance: balance, Chunks: 3, Seed: 7, Checkpoint: pipe.Optimal, Budget: limits,
		Optimizer: o}))(t)
	t.Cleanup(func() {
		p.Close()
		nn.Free(model)
	})
	return &train.Loop{Pipe: p, Optimizer: o, Loss: nn.CrossEntropy(), ClipNorm: clip}
}

// TestPlanMemory: what PlanMemory says is the least that will do trains, the second update with all
// of Adam's state included, and no device holds more; with one byte less for a stage it names that
// stage. Stages whose step needs the most and stages whose update does are in one error. Nothing is
// placed meanwhile.
func TestPlanMemory(t *testing.T) {
	training, _ := dataset(t)
	for _, row := range []struct {
		reason  string
		model   func() *nn.Sequential
		balance []int
		clip    float64
		batches int      // of an update
		set     []string // what sets the least of each stage; "" is a layer
	}{
		{"one stage", network, []int{8}, 0, 1, []string{""}},
		{"one stage, and batches that find gradients", network, []int{8}, 0, 2, []string{""}},
		{"two stages, and batches that find gradients", network, []int{4, 4}, 0, 2, []string{"", ""}},
		{"the step of one stage, the update of the other", func() *nn.Sequential {
			return nn.NewSequential(nn.NewFlatten(1, -1), nn.NewDropout(0.5), nn.NewLinear(16, 40), nn.NewTanh(), nn.NewTanh(), nn.NewTanh(), nn.NewLinear(40, 300), nn.NewReLU(), nn.NewLinear(300, 3))
		}, []int{6, 3}, 0, 1, []string{"", "the optimizer's update"}},
		{"clipping", network, []int{4, 4}, 0.1, 1, []string{"the optimizer's update", "the optimizer's update"}},
	} {
		t.Run(row.reason, func(t *testing.T) {
			check(t)
			stages := len(row.balance)
			plan := func(limits ...int64) (*train.Loop, []planner.Shortage) {
				l := budgeted(t, row.model(), row.balance, limits, row.clip)
				l.Accumulate = row.batches
				err := l.PlanMemory(context.Background(), training, batch)
				var short *planner.MemoryError
				if err != nil && !errors.As(err, &short) {
					t.Fatal(err)
				}
				for i := range stages {
					if live := torch.CPU(i).Memory().Live; live != 0 {
						t.Errorf("planning with %v bytes left %d on %v", limits, live, torch.CPU(i))
					}
				}
				if err == nil {
					return l, nil
				}
				l.Pipe.Close()
				return l, short.Stages
			}
			_, short := plan(slices.Repeat([]int64{1}, stages)...)
			var least []int64
			for i, s := range short {
				if s.Stage != i || s.Limit != 1 || (row.set[i] == "") != (s.SetBy != "the optimizer's update") {
					t.Errorf("shortage %d is %+v", i, s)
				}
				least = append(least, s.Least)
			}
			if len(least) != stages {
				t.Fatalf("short are %v, want all of %d stages", short, stages)
			}
			for i := range least {
				less := slices.Clone(least)
				less[i]--
				if _, short := plan(less...); len(short) != 1 || short[0].Stage != i || short[0].Least != least[i] {
					t.Errorf("with %v bytes: short are %v", less, short)
				}
			}
			l, short := plan(least...)
			if short != nil {
				t.Fatalf("with %v bytes: short are %v", least, short)
			}
			must.Do(t, l.Pipe.Place())
			l.Loader, l.Steps = loader(t), 3
			if row.batches > 1 {
				l.Steps = 2 // later batches are short and measured anew
			}
			l.OnStep = []train.Hook{func(s train.StepInfo) error {
				for i, peak := range s.Peak {
					if peak > least[i] || s.Step > 1 && row.set[i] != "" && peak != least[i] {
						t.Errorf("step %d: %d bytes on %v, planned at most %d", s.Step, peak, torch.CPU(i), least[i])
					}
				}
				return nil
			}}
			if _, err := l.Run(context.Background()); err != nil {
				t.Errorf("with %v bytes: %v", least, err)
			}
		})
	}
}

// TestPlanMemoryOfASharedDevice: stages of one device are updated together, and what that takes is
// counted together. The least trains, and the second update takes it to the byte.
func TestPlanMemoryOfASharedDevice(t *testing.T) {
	check(t)
	training, _ := dataset(t)
	plan := func(limit int64) (*train.Loop, *planner.MemoryError) {
		o := must.Get(optim.Adam(optim.Config{LR: 0.01}))(t)
		t.Cleanup(o.Close)
		model := nn.NewSequential(nn.NewFlatten(1, -1), nn.NewLinear(16, 80), nn.NewTanh(), nn.NewLinear(80, 80), nn.NewTanh(), nn.NewLinear(80, 3))
		p := must.Get(pipe.Open(model, pipe.Config{Balance: []int{3, 3}, Devices: make([]torch.Device, 2), Chunks: 3, Seed: 7, Checkpoint: pipe.Optimal,
			Budget: []int64{limit}, Optimizer: o}))(t)
		t.Cleanup(func() {
			p.Close()
			nn.Free(model)
		})
		l := &train.Loop{Pipe: p, Optimizer: o, Loss: nn.CrossEntropy(), ClipNorm: 0.1}
		var short *planner.MemoryError
		if err := l.PlanMemory(context.Background(), training, batch); err != nil && !errors.As(err, &short) {
			t.Fatal(err)
		}
		if short != nil {
			p.Close()
		}
		return l, short
	}
	_, short := plan(1)
	if short == nil || len(short.Stages) != 1 || !slices.Equal(short.Stages[0].Others, []int{1}) || short.Stages[0].SetBy != "the optimizer's update" {
		t.Fatalf("with a byte: %v", short)
	}
	least := short.Least()
	if _, again := plan(least - 1); again == nil || again.Least() != least {
		t.Errorf("with a byte less than %d: %v", least, again)
	}
	l, short := plan(least)
	if short != nil {
		t.Fatalf("with %d bytes: %v", least, short)
	}
	must.Do(t, l.Pipe.Place())
	l.Loader, l.Steps = loader(t), 3
	l.OnStep = []train.Hook{func(s train.StepInfo) error {
		if peak := s.Peak[0]; peak > least || s.Step > 1 && peak != least {
			t.Errorf("step %d: %d bytes, planned at most %d", s.Step, peak, least)
		}
		return nil
	}}
	if _, err := l.Run(context.Background()); err != nil {
		t.Errorf("with %d bytes: %v", least, err)
	}
}
