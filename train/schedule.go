package train

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"penstock.example/balance"
	"penstock.example/internal/arg"
	"penstock.example/pipe"
	"penstock.example/profile"
	"penstock.example/schedule"
)

// ScheduleConfig says how a measured model is cut and trained.
type ScheduleConfig struct {
	Balance      []int // layers of each stage
	Worker       []int // the worker of each stage, as in schedule.Config; nil is one for each
	MicroBatches int
	Checkpoint   pipe.Checkpoint
	// State is the number of tensors of each parameter's size that the optimizer keeps
	// (optim.Slots).
	State int
	// Limit is the most bytes that each device may hold; 0 is none.
	Limit int64
}

// ScheduleCosts returns what schedule.Auto has to know of a measured model: what each stage takes,
// and what each device has left for activations. A backward in two parts is taken to last a
// twentieth longer than a whole one, each part half of that, and to hold the whole graph to its
// end. What comes and goes within a layer was not measured for this; a device keeps twice the
// largest activation with its gradient free for it. So the limits are soft. With the policy optimal
// the pipe plans by exact bytes what is recomputed, whatever the order.
func ScheduleCosts(p profile.Profile, config ScheduleConfig) (schedule.Costs, error) {
	none := schedule.Costs{}
	policies, err := config.Checkpoint.Stages(len(config.Balance))
	if err := cmp.Or(arg.Balance("train", config.Balance, len(p.Layers)), err, arg.AtLeast("train", "MicroBatches", config.MicroBatches, 1),
		arg.AtLeast("train", "State", config.State, 0), arg.AtLeast("train", "Limit", config.Limit, 0)); err != nil {
		return none, err
	}
	worker := config.Worker
	if worker == nil {
		for s := range config.Balance {
			worker = append(worker, s)
		}
	}
	if n := len(config.Balance); len(worker) != n || slices.ContainsFunc(worker, func(w int) bool { return w < 0 || w >= n }) {
		return none, &ConfigError{Of: "train", Field: "Worker", Value: config.Worker,
			Problem: fmt.Sprintf("%d for %d stages", len(worker), n), Remedy: "want one for each stage, from 0 and without gaps"}
	}
	times, err := balance.Times(p.Layers, config.Balance, balance.TimeConfig{})
	if err != nil {
		return none, err
	}
	size := balance.SizeConfig{State: float64(config.State), Skips: p.Skips, Ties: p.Ties}
	one, err := balance.Sizes(p.Layers, config.Balance, size)
	if err != nil {
		return none, err
	}
	size.Held = []balance.Held{{Graphs: 1, Inputs: 1}}
	two, err := balance.Sizes(p.Layers, config.Balance, size)
	if err != nil {
		return none, err
	}
	out := schedule.Costs{Split: true, Soft: true, Time: func(a schedule.Action) time.Duration { return stageTime(times[a.Stage], a.Kind) }}
	for s := range one {
		out.Whole = append(out.Whole, one[s].Saved)
		out.Weights = append(out.Weights, one[s].Saved)
		out.Input = append(out.Input, two[s].Inputs-one[s].Inputs)
	}
	if config.Limit > 0 {
		out.Limit = activations(p, config, worker, one)
	}
	if slices.Contains(policies, pipe.Optimal) {
		out.Spare = func(stage int) bool { return policies[stage] == pipe.Optimal }
	}
	return out, nil
}

// stageTime is how long a stage takes for a computation of a kind.
func stageTime(s balance.StageTime, kind schedule.Kind) time.Duration {
	var seconds float64
	switch kind {
	case schedule.Forward, schedule.Recompute:
		seconds = s.Forward
	case schedule.Backward:
		seconds = s.Backward
	case schedule.BackwardInput, schedule.BackwardWeight:
		seconds = s.Backward * 1.05 / 2
	}
	return time.Duration(seconds * float64(time.Second))
}

// activations is, by worker, what is left of the limit for activations.
func activations(p profile.Profile, config ScheduleConfig, worker []int, sizes []balance.StageSize) []int64 {
	var left, largest []int64 // by worker
	from := 0
	for s, count := range config.Balance {
		w := worker[s]
		for len(left) <= w {
			left, largest = append(left, config.Limit), append(largest, 0)
		}
		left[w] -= sizes[s].Parameters + sizes[s].Gradients + sizes[s].State + sizes[s].Buffers
		if s == 0 {
			left[w] -= int64(config.MicroBatches) * p.Input
		}
		for _, l := range p.Layers[from : from+count] {
			largest[w] = max(largest[w], 2*(l.Output+l.Gradient))
		}
		from += count
	}
	for w := range left {
		left[w] = max(left[w]-largest[w], 0)
	}
	return left
}
