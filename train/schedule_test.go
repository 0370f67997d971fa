package train_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"penstock.example/balance"
	"penstock.example/pipe"
	"penstock.example/profile"
	"penstock.example/schedule"
	"penstock.example/train"
)

// TestScheduleCosts: what stages take and what devices have left, added up by hand.
func TestScheduleCosts(t *testing.T) {
	layer := func(forward, backward float64, output, saved, parameters int64) balance.Layer {
		return balance.Layer{Forward: forward, Backward: backward, Output: output, Gradient: output, Saved: saved, Parameters: parameters, Trainable: parameters}
	}
	p := profile.Profile{Input: 7, Layers: []balance.Layer{
		layer(.001, .002, 10, 100, 1000), layer(.003, .004, 20, 200, 2000), layer(.005, .010, 30, 400, 4000), layer(.002, .004, 5, 50, 500),
	}}
	p.Layers[2].Enter, p.Layers[1].Leave = 20, 3
	config := train.ScheduleConfig{Balance: []int{2, 1, 1}, Worker: []int{0, 1, 0}, MicroBatches: 4, Checkpoint: "always,optimal,never", State: 1, Limit: 20000}
	got, err := train.ScheduleCosts(p, config)
	if err != nil {
		t.Fatal(err)
	}
	if want := []int64{303, 420, 50}; !slices.Equal(got.Whole, want) || !slices.Equal(got.Weights, want) {
		t.Errorf("graphs of %v and %v bytes, want %v", got.Whole, got.Weights, want)
	}
	if want := []int64{0, 20, 30}; !slices.Equal(got.Input, want) {
		t.Errorf("inputs of %v bytes, want %v", got.Input, want)
	}
	// Parameters, gradients and one state of 3,500 bytes on worker 0 and 4,000 on worker 1, the batch,
	// and twice the largest activation with its gradient.
	if want := []int64{20000 - 3*3500 - 4*7 - 2*40, 20000 - 3*4000 - 2*60}; !slices.Equal(got.Limit, want) {
		t.Errorf("%v bytes are left, want %v", got.Limit, want)
	}
	for _, tt := range []struct {
		kind  schedule.Kind
		stage int
		want  time.Duration
	}{
		{schedule.Forward, 0, 4 * time.Millisecond}, {schedule.Recompute, 0, 4 * time.Millisecond}, {schedule.Backward, 1, 10 * time.Millisecond},
		{schedule.BackwardInput, 1, 5250 * time.Microsecond}, {schedule.BackwardWeight, 1, 5250 * time.Microsecond}, {schedule.SendActivation, 1, 0},
	} {
		if took := got.Time(schedule.Action{Kind: tt.kind, Stage: tt.stage}); took != tt.want {
			t.Errorf("%v of stage %d takes %v, want %v", tt.kind, tt.stage, took, tt.want)
		}
	}
	if got.Spare(0) || !got.Spare(1) || got.Spare(2) {
		t.Error("recomputations of the policy optimal alone are taken out")
	}
	config.Limit, config.Worker = 0, nil
	if got, err := train.ScheduleCosts(p, config); err != nil || got.Limit != nil {
		t.Errorf("without a limit %v bytes are left; %v", got.Limit, err)
	}
	config.Limit = 1
	if got, err := train.ScheduleCosts(p, config); err != nil || !slices.Equal(got.Limit, []int64{0, 0, 0}) {
		t.Errorf("%v bytes are left; %v", got.Limit, err)
	}
}

// TestBalanceThatIsGiven is measured and not changed.
func TestBalanceThatIsGiven(t *testing.T) {
	check(t)
	set, _ := dataset(t)
	clock := &fakeClock{}
	config := train.BalanceConfig{Balance: []int{5, 3}, Batch: 8, Chunks: 2, Checkpoint: pipe.Always, Profile: profile.Config{Repeats: 1, Clock: clock.read}}
	cut, err := train.BalanceByTime(context.Background(), network(), set, config)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(cut.Counts, []int{5, 3}) || len(cut.Times) != 2 || cut.Times[0].Forward <= 0 || cut.Times[0].Recomputation != cut.Times[0].Forward || cut.Profile.Layers == nil {
		t.Errorf("%+v", cut)
	}
	config.Balance = []int{3}
	var wrong *train.ConfigError
	if _, err := train.BalanceByTime(context.Background(), network(), set, config); !errors.As(err, &wrong) || wrong.Field != "Balance" {
		t.Errorf("%v", err)
	}
}
