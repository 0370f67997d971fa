package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"penstock.example/data"
	"penstock.example/group"
	"penstock.example/internal/option"
	"penstock.example/internal/progress"
	"penstock.example/internal/system"
	"penstock.example/models"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/plan"
	"penstock.example/profile"
	"penstock.example/torch"
	"penstock.example/train"
)

// clock times layers. Tests set it; nil is the profile's own clock.
var clock func() time.Duration

const measureAgain = "limits hold, but another plan may be faster; measure again when nothing else runs"

func warnOfTiming(w io.Writer, t profile.Timing) (warned bool) {
	text := t.Warning()
	if text != "" {
		fmt.Fprintf(w, "measured times are uncertain: %s; %s\n", text, measureAgain)
	}
	return text != ""
}

// A run of at most fewMicroBatches has one thread on each device: timing threads would take longer than more
// threads can save. Tests raise it, as bits depend on threads.
var fewMicroBatches int64 = 100

// chooseThreads chooses the threads of each device unless --threads gives a number. A resumed run keeps its
// number, for the same results. All processes use the same number.
func (j *job) chooseThreads(ctx context.Context, stderr io.Writer) error {
	if !j.allThreads && !j.defaultThreads {
		return nil
	}
	cores, err := j.coresPerProcess(ctx)
	if err != nil {
		return err
	}
	most, device := coresFor(cores, j.devicesPerProcess()), j.config.Devices[0]
	microBatches := j.last * int64(j.accumulate*min(j.config.Chunks, j.batch, j.training.Len()))
	switch {
	case j.from != nil && (j.defaultThreads || j.from.Recipe.Threads > 0):
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
			j.measureConfig(profile.Config{Device: device, Peer: device}))
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

func coresFor(cores, devices int) int { return min(max(cores/max(devices, 1), 1), system.MaxThreads) }

// devicesPerProcess returns the largest number of devices of a process.
func (j *job) devicesPerProcess() int {
	devices := j.stages / max(j.virtual, 1)
	if given := j.config.Devices; len(given) > 0 {
		devices = len(j.config.DeviceNames())
	}
	members := max(j.member.Size, 1)
	return (devices*max(j.replicas, 1) + members - 1) / members
}

type peakBytes []int64

func (h *peakBytes) add(s train.StepInfo) {
	*h = append(*h, make(peakBytes, len(s.Peak)-len(*h))...)
	for i, peak := range s.Peak {
		(*h)[i] = max((*h)[i], peak)
	}
}

// safeLimit returns a memory limit of each device that is enough for the run, whichever stage runs ahead.
func (h peakBytes) safeLimit(p *pipe.Pipe) []int64 {
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

func (j *job) planMemory(ctx context.Context, stderr io.Writer) error {
	if !slices.Contains(j.policy, pipe.Optimal) {
		return nil
	}
	err := j.loop.PlanMemory(ctx, j.training, j.mostRows())
	if err != nil && j.lighter != nil {
		err = j.lighten(ctx, stderr, err)
	}
	if err != nil {
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
		fmt.Fprint(stderr, describePlanned(made, i))
	}
	if j.limit == 0 && len(j.deviceLimits) == 0 {
		fmt.Fprintln(stderr, "there is no --memory-limit, so nothing is recomputed")
	}
	return nil
}

// mostRows returns the rows of the largest batch. In an evaluation each replica has all samples.
func (j *job) mostRows() int {
	most := max(j.training.Len(), j.replicas*j.test.Len())
	if j.heldOut != nil {
		most = max(most, j.replicas*j.heldOut.Len())
	}
	return min(most, j.batch)
}

// lighten plans with lighter cuts until one fits, or returns the error with the least limit.
func (j *job) lighten(ctx context.Context, stderr io.Writer, err error) error {
	least, best, list, tried := int64(math.MaxInt64), err, j.lighter, map[string]bool{}
	note := func(err error) {
		var short *plan.MemoryError
		if tried[option.Joined(j.config.Balance)] = true; errors.As(err, &short) && short.Least() < least {
			least, best = short.Least(), err
			list = append(lighterCuts(j.config.Balance, short), list...)
		}
	}
	if slices.Equal(j.lighter[0], j.config.Balance) {
		note(err)
	}
	for {
		list = slices.DeleteFunc(list, func(cut []int) bool { return tried[option.Joined(cut)] })
		// the first process alone knows what all stages lack
		next, failed := group.FromFirst(ctx, j.group, "cut", func() ([][]int, error) {
			if len(list) == 0 {
				return nil, best
			}
			return list, nil
		})
		if failed != nil {
			return failed
		}
		j.config.Balance = next[0]
		j.loop.Loader.Close()
		j.loop.Optimizer.Close()
		if err = cmp.Or(j.pipe.Close(), j.openPipe(ctx, stderr)); err == nil {
			err = j.openLoop(ctx, stderr)
		}
		if err != nil {
			return err
		}
		if err = j.loop.PlanMemory(ctx, j.training, j.mostRows()); err == nil {
			fmt.Fprintf(stderr, "--balance %s instead, which fits\n", option.Joined(j.config.Balance))
			return nil
		}
		note(err)
	}
}

// lighterCuts returns cuts with a layer moved off a stage of the device that needs the most memory.
func lighterCuts(balance []int, short *plan.MemoryError) (list [][]int) {
	worst := slices.MaxFunc(short.Stages,
		func(a, b plan.Shortage) int { return cmp.Compare(a.Least, b.Least) })
	for _, s := range append([]int{worst.Stage}, worst.Others...) {
		for _, to := range []int{s - 1, s + 1} {
			if balance[s] > 1 && to >= 0 && to < len(balance) {
				cut := slices.Clone(balance)
				cut[s]--
				cut[to]++
				list = append(list, cut)
			}
		}
	}
	return list
}

// describePlanned describes the memory and recomputation of a device in a line; "" without a plan.
func describePlanned(p *plan.Plan, device int) string {
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

// fittedModel is a model without weights that fits samples.
type fittedModel struct {
	*nn.Sequential
	options models.Options
	chosen  map[string]any // options for the recipe
	samples data.Info
}

// fitModel makes the model of checked flags for these samples; nil is the model's usual samples.
func (f *modelFlags) fitModel(samples *data.Info) (m fittedModel, err error) {
	if samples == nil {
		samples = f.usualSamples()
	}
	m.samples = *samples
	if m.options, m.chosen, err = f.fit(m.samples); err != nil {
		return m, err
	}
	switch m.Sequential, err = newModel(f.folder, m.options, f.lora); {
	case err == nil, errors.As(err, new(*usageError)):
	case f.dataName == "":
		err = badUsage("--set %s: %s", strings.Join(f.settings, ","), message(err))
	default:
		err = badUsage("--model %s with --data %s: %s", f.modelName, f.dataName, message(err))
	}
	return m, err
}

// usualSamples describes the samples of the model without a data set: text or images.
func (f *modelFlags) usualSamples() *data.Info {
	o := f.options
	s := &data.Info{Classes: cmp.Or(o.Classes, f.info.Defaults.Classes),
		Input: data.Spec{Shape: slices.Clone(f.info.Input)}, Target: data.Spec{Kind: data.Int64}}
	for at, size := range map[int]int{0: o.Context + o.Channels, 1: o.Size, 2: o.Size} {
		if size != 0 && at < len(s.Input.Shape) {
			s.Input.Shape[at] = int64(size)
		}
	}
	switch f.info.Kind {
	case models.Text:
		s.Input.Kind, s.Target.Shape = data.Int64, s.Input.Shape
	case models.Segmentation:
		s.Target.Shape = s.Input.Shape[1:]
	}
	return s
}

func (m fittedModel) measure(cmd *cobra.Command, rows int, config profile.Config) (profile.Profile, error) {
	show := progress.New(cmd.ErrOrStderr(), "measuring", "layers")
	config.Progress = show.At
	measured, err := train.Measure(cmd.Context(), m.Sequential, train.MadeUp(m.samples, rows, config.Seed),
		train.MeasureConfig{Batch: rows, Profile: config})
	show.End()
	if err == nil {
		warnOfTiming(cmd.ErrOrStderr(), measured.Timing)
	}
	return measured, err
}
