package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"penstock.example/pipe"
	"penstock.example/planner"
	"penstock.example/profile"
	"penstock.example/torch"
	"penstock.example/train"
)

// clock times layers. Nil is the profile's own clock. Tests set one that does not depend on the machine.
var clock func() time.Duration

// What to do about uncertain times.
const (
	measureAgain = "measure again when nothing else runs, or with more --repeats"
	profileAgain = "penstock profile again when nothing else runs, or with more --repeats"
	cutAgain     = "the balance may not be the best; train when nothing else runs, or give a --balance"
	bothAgain    = "the balance may not be the best, and more than needed may be recomputed; limits hold; " +
		"train when nothing else runs"
	searchAgain = "limits hold, but another plan may be faster; plan when nothing else runs, or with " +
		"more --repeats"
	planAgain = "limits hold, but more than needed may be recomputed; train when nothing else runs"
)

// warnOfTiming says that measured times are uncertain, if they are, and what to do about it.
func warnOfTiming(w io.Writer, t profile.Timing, remedy string) (warned bool) {
	text := t.Warning()
	if text != "" {
		fmt.Fprintf(w, "measured times are uncertain: %s; %s\n", text, remedy)
	}
	return text != ""
}

// threadsFlag is --threads N, or all for a share of the cores. Otherwise says what it is where it is
// left out.
func threadsFlag(s *pflag.FlagSet, to *int, every *bool, otherwise string) {
	whole(s, to, "threads", 1, 1, pipe.MaxThreads, "`N` threads within an operator, on each stage; or "+
		"all, as many as there are cores for each device (default: "+otherwise+")")
	flag := s.Lookup("threads")
	flag.DefValue = "0" // which is none to pflag
	number := flag.Value.(*value)
	read := number.read
	number.read = func(text string) error {
		if *every = text == "all"; *every {
			return nil
		}
		if err := read(text); err != nil {
			return errors.New(err.Error() + ", or all")
		}
		return nil
	}
}

// fewMicroBatches is how many a run has at most for which threads are not timed, as that would take a
// good part
// of the time that they can save. It has one thread on each device. Tests have all runs so, as bits
// depend on it.
var fewMicroBatches int64 = 100

// chooseThreads makes a number of --threads all, or of --threads left out: that of the checkpoint, so
// that results
// are those of a run that was never interrupted; or the cores of a process shared out over the devices
// that it
// has, if all are asked for, or if as many are clearly faster. All processes get the same, that of the
// one with the
// fewest cores.
func (j *job) chooseThreads(ctx context.Context, stderr io.Writer) error {
	if !j.allThreads && !j.anyThreads {
		return nil
	}
	cores, err := j.coresOfEach(ctx)
	if err != nil {
		return err
	}
	most := coresFor(cores, j.devicesOfEach())
	gpus := slices.ContainsFunc(j.config.Devices, func(d torch.Device) bool { return d.Kind != torch.KindCPU })
	microBatches := j.last * int64(j.accumulate*min(j.config.Chunks, j.batch, j.training.Len()))
	switch {
	case j.from != nil && (j.anyThreads || j.from.Recipe.Threads > 0):
		most = max(j.from.Recipe.Threads, 1)
		if most > 1 || j.allThreads {
			fmt.Fprintf(stderr, "--threads %d, as before\n", most)
		}
	case j.allThreads:
		fmt.Fprintf(stderr, "--threads all: %s on each device\n", counted(most, "thread"))
	case most == 1 || gpus || microBatches <= fewMicroBatches:
		return nil
	default:
		if most, err = j.timeThreads(ctx, stderr, most); err != nil {
			return err
		}
	}
	j.config.Threads, j.recipe.Threads = most, most
	return nil
}

// timeThreads returns the number of threads that is fastest, and writes it down.
func (j *job) timeThreads(ctx context.Context, stderr io.Writer, most int) (int, error) {
	device := j.config.Devices[0]
	t, err := train.ThreadsByTime(ctx, j.model, j.training, train.ThreadsConfig{
		Group: j.group, Most: most, Batch: j.rowsOfEach(), Chunks: j.config.Chunks,
		Loss: trainingLoss(j.training.Info().Task()),
		Profile: profile.Config{Device: device, Peer: device, Seed: j.config.Seed, Autocast: j.config.Autocast,
			Clock: clock},
	})
	if err != nil {
		return 0, withFlags(err, remedyForTiming)
	}
	device.ResetPeak()
	j.effective = fmt.Appendf(j.effective, "threads = %d # by measured time\n", t.N)
	switch {
	case t.N > 1:
		fmt.Fprintf(stderr, "--threads %d, by measured time: %.2f times as fast as 1\n", t.N, t.Faster)
	case t.Faster < 1:
		fmt.Fprintf(stderr, "--threads 1, by measured time: %d are slower\n", t.Tried)
	default:
		fmt.Fprintf(stderr, "--threads 1, by measured time: with %d it is not clearly faster\n", t.Tried)
	}
	return t.N, nil
}

// coresFor returns how many threads each of so many devices gets of the cores.
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
		return withLimit(err, remedyForModel)
	}
	plan := j.pipe.Plan()
	spread := 0.0
	for _, d := range plan.Devices {
		spread = max(spread, d.Spread)
	}
	if !j.timingWarned {
		warnOfTiming(stderr, profile.Timing{Spread: spread}, planAgain)
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
		fmt.Fprintf(w, "measuring held %s for a while, and the limit is %s: a layer that is measured takes "+
			"more than it\n",
			formatBytes(bytes), formatBytes(limit))
	}
}

// planned says what a device will hold and recompute, or nothing if its memory is not planned.
func planned(p *planner.Plan, device int) string {
	again, units := 0, 0
	var stages []string
	for i, s := range p.Stages {
		if s.Device == device && s.Policy == planner.Optimal {
			stages = append(stages, strconv.Itoa(i))
			again, units = again+s.Recomputed(), units+len(s.Units)-s.Prologue
		}
	}
	if stages == nil {
		return ""
	}
	d, name, are := p.Devices[device], "stage ", "are"
	if len(stages) > 1 {
		name = "stages "
	}
	text := fmt.Sprintf("%s%s: at most %s", name, strings.Join(stages, ", "), formatBytes(d.Peak))
	if d.Limit > 0 {
		text += " of " + formatBytes(d.Limit)
	}
	if again == 0 {
		return text + ", nothing recomputed"
	}
	if again == 1 {
		are = "is"
	}
	return fmt.Sprintf("%s; of %s in %s, %s %s run again: %.1f %% more time", text, counted(p.MicroBatches(),
		"micro-batch"),
		counted(units, "unit"), counted(again, "forward"), are, 100*max(d.Time-d.Once, 0)/d.Once)
}
