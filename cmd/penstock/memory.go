package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"penstock.example/pipe"
	"penstock.example/planner"
	"penstock.example/profile"
	"penstock.example/train"
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
		if out[i] = max(out[i], h[i]); p.DeviceHere(i) {
			out[i] = max(out[i], d.Memory().Peak)
		}
	}
	return out
}

// planMemory plans what is recomputed before anything is trained, and says so.
func (j *job) planMemory(ctx context.Context, stderr io.Writer) error {
	if !slices.Contains(j.policy, pipe.Optimal) {
		return nil
	}
	err := j.loop.PlanMemory(ctx, j.training, j.batch)
	bytes, limit := j.pipe.MeasuredBeyond()
	tellBeyond(stderr, bytes, limit)
	if err != nil {
		return withLimit(err, remedyForPlan)
	}
	plan := j.pipe.Plan()
	if !j.told {
		warnOfPlans(stderr, plan.Devices)
	}
	for i := range plan.Devices {
		if text := planned(plan, i); text != "" {
			fmt.Fprintln(stderr, text)
		}
	}
	if j.limit == 0 && j.bytes == nil {
		fmt.Fprintln(stderr, "there is no --memory-limit, so nothing is recomputed")
	}
	return nil
}

// tellBeyond says so if measuring took so many bytes, more than a limit.
func tellBeyond(w io.Writer, bytes, limit int64) {
	if limit > 0 && bytes > limit {
		fmt.Fprintf(w, "measuring held %s for a while, and the limit is %s: a layer that is measured takes more than it\n", formatBytes(bytes), formatBytes(limit))
	}
}

// warnOfPlans says so if the times behind the plans are uncertain.
func warnOfPlans(w io.Writer, devices []planner.DevicePlan) {
	worst := 0.0
	for _, d := range devices {
		worst = max(worst, d.Spread)
	}
	warnOfTiming(w, profile.Timing{Spread: worst}, planAgain)
}

// planned says what a device will hold and recompute, or nothing if its memory is not planned.
func planned(p *planner.Plan, device int) string {
	again, units, name := 0, 0, "stage "
	for i, s := range p.Stages {
		if s.Device != device || s.Policy != planner.Optimal {
			continue
		}
		if name != "stage " {
			name = strings.Replace(name, "stage ", "stages ", 1) + ", "
		}
		name += strconv.Itoa(i)
		again, units = again+s.Recomputed(), units+len(s.Units)-s.Prologue
	}
	if name == "stage " {
		return ""
	}
	d := p.Devices[device]
	text := fmt.Sprintf("%s: at most %s", name, formatBytes(d.Peak))
	if d.Limit > 0 {
		text += " of " + formatBytes(d.Limit)
	}
	if again == 0 {
		return text + ", nothing recomputed"
	}
	are := "are"
	if again == 1 {
		are = "is"
	}
	return fmt.Sprintf("%s; of %s in %s, %s %s run again: %.1f %% more time", text, counted(p.MicroBatches(), "micro-batch"),
		counted(units, "unit"), counted(again, "forward"), are, 100*max(d.Time-d.Once, 0)/d.Once)
}
