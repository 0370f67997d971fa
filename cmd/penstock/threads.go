package main

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/pflag"

	"penstock.example/pipe"
	"penstock.example/profile"
	"penstock.example/torch"
	"penstock.example/train"
)

// threadsFlag is --threads N, or all for a share of the cores. Otherwise says what it is where it is left out.
func threadsFlag(s *pflag.FlagSet, to *int, every *bool, otherwise string) {
	const name = "threads"
	usage := fmt.Sprintf("`N` threads within an operator, on each stage, at most %d; or all, as many as there are cores for each device (default: %s)", pipe.MaxThreads, otherwise)
	whole(s, to, name, 1, 1, pipe.MaxThreads, usage)
	flag := s.Lookup(name)
	flag.DefValue = "0" // which is none to pflag
	number := flag.Value.(*value)
	read := number.read
	number.read = func(text string) error {
		if *every = text == "all"; *every {
			return nil
		}
		if err := read(text); err != nil {
			return fmt.Errorf("%w, or all", err)
		}
		return nil
	}
}

// chooseThreads makes a number of --threads all, or of --threads left out: that of the checkpoint, so that results
// are those of a run that was never interrupted; or the cores of a process shared out over the devices that it
// has, if all are asked for, or if as many are clearly faster. All processes get the same, that of the one with the
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
	switch {
	case j.from != nil && (j.anyThreads || j.from.Recipe.Threads > 0):
		was, why := max(j.from.Recipe.Threads, 1), ""
		if was != most && j.allThreads {
			why = fmt.Sprintf("; there are cores for %d, and --threads %[1]d takes them", most)
		}
		j.setThreads(was)
		if j.allThreads {
			fmt.Fprintf(stderr, "--threads all: %s on each device, as before%s\n", counted(was, "thread"), why)
		} else if was > 1 {
			fmt.Fprintf(stderr, "--threads %d, as before\n", was)
		}
	case j.allThreads:
		j.setThreads(most)
		fmt.Fprintf(stderr, "--threads all: %s on each device\n", counted(most, "thread"))
	case most > 1 && j.worthTiming():
		return j.threadsByTime(ctx, stderr, most)
	}
	return nil
}

func (j *job) setThreads(n int) { j.config.Threads, j.recipe.Threads = n, n }

// fewMicroBatches is how many a run has at most for which threads are not timed, as that would take a good part
// of the time that they can save. It has one thread on each device. Tests have all runs so, as bits depend on it.
var fewMicroBatches int64 = 100

// worthTiming says whether it pays to time threads.
func (j *job) worthTiming() bool {
	each := min(j.config.Chunks, j.batch, j.training.Len())
	gpus := slices.ContainsFunc(j.config.Devices, func(d torch.Device) bool { return d.Kind != torch.KindCPU })
	return !gpus && j.last*int64(j.accumulate*each) > fewMicroBatches
}

// threadsByTime takes the number of threads that is fastest, and writes it down.
func (j *job) threadsByTime(ctx context.Context, stderr io.Writer, most int) error {
	device := j.config.Devices[0]
	t, err := train.ThreadsByTime(ctx, j.model, j.training, train.ThreadsConfig{
		Group: j.group, Most: most, Batch: (j.batch + j.replicas - 1) / j.replicas, Chunks: j.config.Chunks, Loss: trainingLoss(j.training.Info().Task()),
		Profile: profile.Config{Device: device, Peer: device, Seed: j.config.Seed, Autocast: j.config.Autocast, Clock: clock},
	})
	if err != nil {
		return withFlags(err, remedyForTiming)
	}
	device.ResetPeak()
	j.setThreads(t.N)
	j.effective = fmt.Appendf(j.effective, "threads = %d # by measured time\n", t.N)
	switch {
	case t.N > 1:
		fmt.Fprintf(stderr, "--threads %d, by measured time: %.2f times as fast as 1\n", t.N, t.Faster)
	case t.Faster < 1:
		fmt.Fprintf(stderr, "--threads 1, by measured time: %d are slower\n", t.Tried)
	default:
		fmt.Fprintf(stderr, "--threads 1, by measured time: with %d it is not clearly faster\n", t.Tried)
	}
	return nil
}

// coresFor is how many threads each of so many devices gets of the cores.
func coresFor(cores, devices int) int { return min(max(cores/max(devices, 1), 1), pipe.MaxThreads) }

// devicesOfEach is how many devices a process has, where one has most.
func (j *job) devicesOfEach() int {
	devices := j.stages / max(j.virtual, 1)
	if given := j.config.Devices; len(given) > 0 {
		devices = len(j.config.DeviceNames())
	}
	members := max(j.member.Size, 1)
	return (devices*max(j.replicas, 1) + members - 1) / members
}
