package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"penstock.example/optim"
	"penstock.example/pipe"
	"penstock.example/planner"
	"penstock.example/schedule"
	"penstock.example/torch"
	"penstock.example/train"
)

// chooseSchedule makes the schedule auto by what was measured, and says what it is to take. Stages go
// round the devices, or to and fro where that is faster.
func (j *job) chooseSchedule(_ context.Context, stderr io.Writer) error {
	if j.plan.schedule != auto {
		return nil
	}
	config := train.ScheduleConfig{Balance: j.config.Balance, Checkpoint: j.config.Checkpoint, Limit: j.limit,
		MicroBatches: min(j.config.Chunks, j.batch, j.training.Len())}
	var err error
	if config.State, err = optim.Slots(j.optimizerName, j.update); err != nil {
		return err
	}
	places := [][]torch.Device{j.config.Devices}
	if j.movable {
		devices := j.stages / j.virtual
		workers, err := schedule.V(j.stages, devices)
		if err != nil {
			return err
		}
		var folded []torch.Device
		for _, w := range workers {
			folded = append(folded, j.config.Devices[w])
		}
		places = append(places, folded)
	}
	var best autoSchedule
	for _, devices := range places {
		found, unable := j.scheduleOn(devices, config)
		if unable != nil {
			err = unable
		} else if best.generate == nil || found.step < best.step {
			best = found
		}
	}
	if best.generate == nil {
		return fmt.Errorf("--schedule auto: %s", message(err))
	}
	j.config.Schedule, j.config.Devices = best.generate, best.devices
	text := fmt.Sprintf("a step takes %s ms, of which devices are idle for %.1f %%", ms(best.step.Seconds()), 100*best.idle)
	if best.gpipe > 0 {
		text += fmt.Sprintf("; gpipe %s ms", ms(best.gpipe.Seconds()))
	}
	if best.over {
		text += "; by estimate that takes more than --memory-limit, as every order does"
	}
	fmt.Fprintf(stderr, "--schedule auto, by measured time: %s\n", text)
	return nil
}

// autoSchedule is the schedule auto with stages on devices, and what it is to take beside what the policy
// optimal recomputes.
type autoSchedule struct {
	generate schedule.Generator
	devices  []torch.Device // of each stage
	step     time.Duration
	idle     float64
	over     bool          // it holds more than the limits, as far as they can be told
	gpipe    time.Duration // of a step; 0 if that holds more
}

// scheduleOn makes the schedule auto for stages on devices.
func (j *job) scheduleOn(devices []torch.Device, config train.ScheduleConfig) (out autoSchedule, err error) {
	config.Worker = pipe.Config{Devices: devices, Ranks: j.config.Ranks}.Workers()
	costs, err := train.ScheduleCosts(*j.config.Profile, config)
	if err != nil {
		return out, err
	}
	shape := schedule.Config{Stages: len(devices), MicroBatches: config.MicroBatches, Worker: config.Worker, Time: costs.Time,
		Recompute: func(stage, microBatch int) bool {
			policy := planner.Policy(j.policy[stage])
			return policy == planner.Optimal || policy.Recomputes(microBatch)
		}}
	out.generate, out.devices = schedule.Auto(costs), devices
	predict := func(g schedule.Generator) (step time.Duration, idle float64, over bool, err error) {
		p, err := g(shape)
		if err != nil {
			return 0, 0, false, err
		}
		if costs.Spare != nil {
			p = p.Without(func(a schedule.Action) bool { return costs.Spare(a.Stage) })
		}
		for w, held := range costs.Held(p) {
			over = over || costs.Spare == nil && costs.Limit != nil && held > costs.Limit[w]
		}
		step, idle, err = schedule.Predict(p, costs.Time)
		return step, idle, over, err
	}
	if out.step, out.idle, out.over, err = predict(out.generate); err != nil {
		return out, err
	}
	gpipe, _, over, err := predict(schedule.GPipe)
	if !over {
		out.gpipe = gpipe
	}
	return out, err
}
