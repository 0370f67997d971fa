package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/pflag"

	"penstock.example/pipe"
)

// threadsFlag is --threads N, or all for a share of the cores.
func threadsFlag(s *pflag.FlagSet, to *int, every *bool) {
	const name = "threads"
	usage := fmt.Sprintf("`N` threads within an operator, on each stage, at most %d; or all, as many as there are cores for each device", pipe.MaxThreads)
	whole(s, to, name, 1, 1, pipe.MaxThreads, usage)
	number := s.Lookup(name).Value.(*value)
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

// shareCores makes a number of --threads all: that of the checkpoint, so that results are those of a run that
// was never interrupted, or the cores of a process shared out over the devices that it has. All processes
// get the same, that of the one with the fewest cores.
func (j *job) shareCores(ctx context.Context, stderr io.Writer) error {
	if !j.allThreads {
		return nil
	}
	cores, err := j.coresOfEach(ctx)
	if err != nil {
		return err
	}
	n, why := coresFor(cores, j.devicesOfEach()), ""
	if j.from != nil && j.from.Threads() > 0 {
		if was := j.from.Threads(); was != n {
			why = fmt.Sprintf(", as before; there are cores for %d, and --threads %[1]d takes them", n)
			n = was
		}
	}
	j.config.Threads, j.recipe.Threads = n, n
	fmt.Fprintf(stderr, "--threads all: %s on each device%s\n", counted(n, "thread"), why)
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
