package main

import (
	"context"
	"fmt"
	"io"
	"slices"

	"penstock/pipe"
	"penstock/profile"
	"penstock/remat"
	"penstock/train"
)

// reserve is what the optimizer's state will take on a stage's device; nil where nothing is planned.
func (j *job) reserve() func(*pipe.Stage) int64 {
	if !slices.Contains(j.policy, pipe.Optimal) {
		return nil
	}
	return func(s *pipe.Stage) int64 { return j.loop.Optimizer.Need(s.Params()).State }
}

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

// safeLimit is, by device, the lowest limit under which the run could not fail: what its steps, the updates and, since peaks were reset, the test have taken, and what of it may wait on devices in other runs.
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
		return withLimit(err, roomForPlan)
	}
	warnOfPlans(stderr, j.pipe.Plans())
	for i, s := range j.pipe.Plans() {
		if s.Plans == nil {
			continue
		}
		fmt.Fprintf(stderr, "stage %d: %s\n", i, planned(s))
	}
	if j.limit == 0 {
		fmt.Fprintln(stderr, "there is no --memory-limit, so nothing is recomputed")
	}
	return nil
}

// warnOfPlans says that the times that plans were made by are uncertain, if they are.
func warnOfPlans(w io.Writer, stages []pipe.StagePlan) {
	var worst profile.Timing
	for _, s := range stages {
		if s.Chain.Timing.Spread > worst.Spread {
			worst = s.Chain.Timing
		}
	}
	warnOfTiming(w, worst, planAgain)
}

// planned is what a stage will hold and compute again.
func planned(s pipe.StagePlan) string {
	recomputed := 0
	var extra, all float64
	for i, p := range s.Plans {
		c := s.Chain.Later
		if i == 0 {
			c = s.Chain.Chain
		}
		report, err := remat.Check(c, p.Ops)
		if err != nil {
			return err.Error()
		}
		recomputed += report.Recomputed
		extra, all = extra+report.Extra, all+report.Time
	}
	text := fmt.Sprintf("at most %s", formatBytes(s.Peak))
	if s.Limit > 0 {
		text += " of " + formatBytes(s.Limit)
	}
	if recomputed == 0 {
		return text + ", nothing recomputed"
	}
	return fmt.Sprintf("%s; of %d micro-batches in %d units, %d forwards are run again: %.1f %% more time", text, len(s.Plans), len(s.Chain.Layers), recomputed, 100*max(extra, 0)/(all-extra))
}
