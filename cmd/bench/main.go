// Command bench measures what the pipeline costs and gains, and prints one table: the matrix
// product against the core's peak, the overhead of a cell, steps of whole models over one, two and
// four stages, beside the schedule's simulation, all schedules, what parts of the machine are
// worth, two processes beside two threads, plans beside what their steps take, one stage beside plain
// PyTorch, plans of what to recompute, and, when TORCHGPIPE names a torchgpipe checkout or PIPELINING a
// Debian 13 chroot with python3-torch, the same models there, in alternation. `make bench` runs it.
//
//	go run ./cmd/bench [--quick] [--only PART,...] [--devices LIST] [--deterministic=false] [--format text|json]
//
// The part devices is for GPUs: one stage and a pipe on --devices, beside plain PyTorch and PyTorch's
// pipelining there. It runs only where --only names it.
//
// docs/benchmarks.md says what each number means.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"time"

	"penstock.example/torch"
)

func main() {
	quick := flag.Bool("quick", false, "fewer and shorter rounds: seconds instead of minutes, and noisier")
	only := flag.String("only", "", "measure only these parts, separated by commas (default all but "+devicesPart+"): "+strings.Join(parts(), ", "))
	on := flag.String("devices", "cpu:0", "the devices of the part "+devicesPart+", separated by commas, such as cuda:0,cuda:1")
	deterministic := flag.Bool("deterministic", true, "GPUs compute the same bits each time")
	format := flag.String("format", "text", "text or json")
	flag.Parse()
	if flag.NArg() == 1 && flag.Arg(0) == memberArg {
		if err := beMember(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, "bench: member:", err)
			os.Exit(1)
		}
		return
	}
	beside := opponents{torchgpipe: os.Getenv("TORCHGPIPE"), chroot: os.Getenv("PIPELINING")}
	chosen, err := choose(*only)
	if err == nil {
		beside.devices, err = parseDevices(*on)
	}
	switch {
	case err != nil:
	case flag.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q; want flags only", flag.Arg(0))
	case *format != "text" && *format != "json":
		err = fmt.Errorf("--format %s: want text or json", *format)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	torch.SetDeterministic(*deterministic)
	err = run(ctx, chosen, effortOf(*quick), *format, beside, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// effort is how long to measure.
type effort struct {
	products int           // repetitions of the matrix product
	blocks   int           // pairs of blocks of the cell's overhead
	profile  int           // timed runs of each layer before it is cut
	rounds   int           // of each workload
	round    time.Duration // of one side of a round; at least one step
	// Of plans of what to recompute:
	seeds       int  // of random chains
	steps       int  // of each plan that is run, one a round
	fewNetworks bool // run only the quick ones
}

func effortOf(quick bool) effort {
	if quick {
		return effort{products: 10, blocks: 20, profile: 5, rounds: 3, round: 150 * time.Millisecond, seeds: 1, steps: 2, fewNetworks: true}
	}
	return effort{products: 50, blocks: 200, profile: 9, rounds: 7, round: 400 * time.Millisecond, seeds: 3, steps: 5}
}

// opponents are those that a run compares with; "" is none.
type opponents struct {
	torchgpipe string         // the folder of a torchgpipe checkout
	chroot     string         // of a Debian 13 with python3-torch
	devices    []torch.Device // of the part devices, on which PyTorch runs too
}

func run(ctx context.Context, chosen selection, e effort, format string, beside opponents, w io.Writer) error {
	usage := startUsage()
	r := &report{Machine: describeMachine()}
	var others []*child
	if beside.torchgpipe != "" {
		var err error
		if others, err = startChildren(ctx, beside.torchgpipe); err != nil {
			return err
		}
		defer func() {
			for _, c := range others {
				c.stop()
			}
		}()
	}
	if err := measure(ctx, chosen, e, others, beside, r); err != nil {
		return err
	}
	for _, c := range others {
		c.stop()
	}
	r.Machine.OtherCores = usage.others()
	r.Targets, r.Notes = targets(r), r.notes(beside.torchgpipe != "", torch.KernelsInUse())
	if format == "json" {
		j := json.NewEncoder(w)
		j.SetIndent("", "  ")
		return j.Encode(r)
	}
	return r.write(w)
}
