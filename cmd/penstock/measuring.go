package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"penstock.example/pipe"
	"penstock.example/plan"
	"penstock.example/profile"
	"penstock.example/torch"
	"penstock.example/train"
)

// clock times layers; nil is the profile's own clock. Tests set another.
var clock func() time.Duration

// measureAgain is the remedy for uncertain times.
const measureAgain = "limits hold, but another plan may be faster; measure again when nothing else runs"

// warnOfTiming prints a warning and a remedy if measured times are uncertain.
func warnOfTiming(w io.Writer, t profile.Timing) (warned bool) {
	text := t.Warning()
	if text != "" {
		fmt.Fprintf(w, "measured times are uncertain: %s; %s\n", text, measureAgain)
	}
	return text != ""
}

// threadsFlag is --threads N, or all for a share of the cores. The default is a word of help.
func threadsFlag(s *pflag.FlagSet, to *int, every *bool, otherwise string) {
	*to = 1
	s.Var(&value{read: func(text string) (err error) {
		if *every = text == "all"; *every {
			return nil
		}
		if *to, err = strconv.Atoi(text); err != nil || *to < 1 || *to > pipe.MaxThreads {
			err = fmt.Errorf("want a number from 1 to %d, or all", pipe.MaxThreads)
		}
		return err
	}}, "threads", "`N` threads within an operator, on each stage; or all, as many as there are cores for "+
		"each device (default: "+otherwise+")")
}

// fewMicroBatches is how many a run has at most for which threads are not timed, as that would take
// a good part of the time that they can save. It has one thread on each device. Tests have all runs
// so, as bits depend on it.
var fewMicroBatches int64 = 100

// chooseThreads chooses the threads of each device for --threads all, or without --threads: the number
// of the checkpoint, so that results equal an uninterrupted run; an equal share of the cores if all
// are asked for, or if it is clearly faster than one. All processes use the same number.
func (j *job) chooseThreads(ctx context.Context, stderr io.Writer) error {
	if !j.allThreads && !j.anyThreads {
		return nil
	}
	cores, err := j.coresOfEach(ctx)
	if err != nil {
		return err
	}
	most, device := coresFor(cores, j.devicesOfEach()), j.config.Devices[0]
	microBatches := j.last * int64(j.accumulate*min(j.config.Chunks, j.batch, j.training.Len()))
	switch {
	case j.from != nil && (j.anyThreads || j.from.Recipe.Threads > 0):
		most = max(j.from.Recipe.Threads, 1)
		if most > 1 || j.allThreads {
			fmt.Fprintf(stderr, "--threads %d, as before\n", most)
		}
	case j.allThreads:
		fmt.Fprintf(stderr, "--threads all: %s on each device\n", counted(most, "thread"))
	case most == 1 || device.Kind != torch.KindCPU || microBatches <= fewMicroBatches:
		return nil
	default:
		t, err := train.ThreadsByTime(ctx, j.model, j.training, most,
			j.measuring(profile.Config{Device: device, Peer: device}))
		if err != nil {
			return err
		}
		device.ResetPeak()
		most, j.effective = t.N, fmt.Appendf(j.effective, "threads = %d # by measured time\n", t.N)
		fmt.Fprintf(stderr, "--threads %d, by measured time: %d are %.2f times as fast as 1\n", t.N, t.Tried,
			t.Faster)
	}
	j.config.Threads, j.recipe.Threads = most, most
	return nil
}

// coresFor returns the threads of each device in an equal share of the cores.
func coresFor(cores, devices int) int { return min(max(cores/max(devices, 1), 1), pipe.MaxThreads) }

// devicesOfEach returns how many devices a process has, where one has most.
func (j *job) devicesOfEach() int {
	devices := j.stages / max(j.virtual, 1)
	if given := j.config.Devices; len(given) > 0 {
		devices = len(j.config.DeviceNames())
	}
	members := max(j.member.Size, 1)
	return (devices*max(j.replicas, 1) + members - 1) / members
}

// highest is the most bytes of each device in any step.
type highest []int64

func (h *highest) add(s train.StepInfo) {
	*h = append(*h, make(highest, len(s.Peak)-len(*h))...)
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

// planMemory plans and prints before training which activations are recomputed.
func (j *job) planMemory(ctx context.Context, stderr io.Writer) error {
	if !slices.Contains(j.policy, pipe.Optimal) {
		return nil
	}
	if err := j.loop.PlanMemory(ctx, j.training, j.batch); err != nil {
		return err
	}
	made, spread := j.pipe.Plan(), 0.0
	for _, d := range made.Devices {
		spread = max(spread, d.Spread)
	}
	if !j.timingWarned {
		warnOfTiming(stderr, profile.Timing{Spread: spread})
	}
	for i := range made.Devices {
		fmt.Fprint(stderr, planned(made, i))
	}
	if j.limit == 0 && j.bytes == nil {
		fmt.Fprintln(stderr, "there is no --memory-limit, so nothing is recomputed")
	}
	return nil
}

// planned is a line on the planned memory and recomputation of a device; "" without a plan.
func planned(p *plan.Plan, device int) string {
	again, units := 0, 0
	var stages []string
	for i, s := range p.Stages {
		if s.Device == device && s.Policy == plan.Optimal {
			stages = append(stages, strconv.Itoa(i))
			again, units = again+s.Recomputed(), units+len(s.Units)-s.Prologue
		}
	}
	if stages == nil {
		return ""
	}
	d := p.Devices[device]
	text := fmt.Sprintf("stage %s: at most %s", strings.Join(stages, ", "), formatBytes(d.Peak))
	if d.Limit > 0 {
		text += " of " + formatBytes(d.Limit)
	}
	if again == 0 {
		return text + ", nothing recomputed\n"
	}
	return fmt.Sprintf("%s; of %s in %s, %s run again: %.1f %% more time\n", text,
		counted(p.MicroBatches(), "micro-batch"), counted(units, "unit"), counted(again, "forward"),
		100*max(d.Time-d.Once, 0)/d.Once)
}
