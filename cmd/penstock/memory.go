package main

import (
	"context"
	"fmt"
	"io"
	"slices"

	"penstock/pipe"
	"penstock/planner"
	"penstock/profile"
	"penstock/train"
)

// highest is the most bytes of each device in any step.
type highest []int64

func (h *highest) add(s train.StepInfo) {
	if *h == nil {
		*h = make(highest, len(s.Peak))
	}
	for i, peak := range s.Peak {
		(*h)[i] = max((*h)[i], peak)
	}
}

// safeLimit is, by device, the lowest limit under which the run cannot fail: the most that steps,
// updates and the test have taken, and what values that wait on a device may add in other runs.
func (h highest) safeLimit(p *pipe.Pipe) []int64 {
	if h == nil {
		return nil
	}
	out := p.SafeLimit()
	for i, d := range p.Devices() {
		out[i] = max(out[i], h[i], d.Memory().Peak)
	}
	return out
}

// planMemory plans what is recomputed before anything is trained, and says so.
func (j *job) planMemory(ctx context.Context, stderr io.Writer) error {
	if !slices.Contains(j.policy, pipe.Optimal) {
		return nil
	}
	if err := j.loop.PlanMemory(ctx, j.training, j.batch); err != nil {
		return withLimit(err, remedyForPlan)
	}
	stages := j.pipe.Plan().Stages
	if !j.told {
		warnOfPlans(stderr, stages)
	}
	for i, s := range stages {
		if s.Policy == planner.Optimal {
			fmt.Fprintf(stderr, "stage %d: %s\n", i, planned(s))
		}
	}
	if j.limit == 0 {
		fmt.Fprintln(stderr, "there is no --memory-limit, so nothing is recomputed")
	}
	return nil
}

// warnOfPlans says so if the times behind the plans are uncertain.
func warnOfPlans(w io.Writer, stages []planner.StagePlan) {
	worst := 0.0
	for _, s := range stages {
		worst = max(worst, s.Spread)
	}
	warnOfTiming(w, profile.Timing{Spread: worst}, planAgain)
}

// planned says what a stage will hold and recompute.
func planned(s planner.StagePlan) string {
	text := fmt.Sprintf("at most %s", formatBytes(s.Peak))
	if s.Limit > 0 {
		text += " of " + formatBytes(s.Limit)
	}
	again := s.Recomputed()
	if again == 0 {
		return text + ", nothing recomputed"
	}
	return fmt.Sprintf("%s; of %d micro-batches in %d units, %d forwards are run again: %.1f %% more time",
		text, len(s.MicroBatches), len(s.Units)-s.Prologue, again, 100*max(s.Time-s.Once, 0)/s.Once)
}
