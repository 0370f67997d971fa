// Command bench measures what the pipeline costs and gains, and prints one table: the matrix product against the core's peak, the overhead of a cell, steps of
// whole models over one and two stages, and, when TORCHGPIPE names a torchgpipe checkout, the same models there, in alternation. `make bench` runs it.
//
//	go run ./cmd/bench [--quick] [--format text|json]
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
	"time"

	"penstock/torch"
)

func main() {
	quick := flag.Bool("quick", false, "fewer and shorter rounds: seconds instead of minutes, and noisier")
	format := flag.String("format", "text", "text or json")
	flag.Parse()
	if flag.NArg() > 0 || *format != "text" && *format != "json" {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, effortOf(*quick), *format, os.Getenv("TORCHGPIPE"), os.Stdout)
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
	rounds   int           // of each workload
	round    time.Duration // of one side of a round; at least one step
}

func effortOf(quick bool) effort {
	if quick {
		return effort{products: 10, blocks: 20, rounds: 3, round: 200 * time.Millisecond}
	}
	return effort{products: 50, blocks: 200, rounds: 9, round: 600 * time.Millisecond}
}

func run(ctx context.Context, e effort, format, torchgpipe string, w io.Writer) error {
	usage := startUsage()
	r := &report{Machine: describeMachine()}
	var others []*child
	if torchgpipe == "" {
		r.Note = "torchgpipe: not compared; set TORCHGPIPE to the folder of a torchgpipe checkout"
	} else {
		var err error
		if others, err = startChildren(ctx, torchgpipe); err != nil {
			return err
		}
		defer func() {
			for _, c := range others {
				c.stop()
			}
		}()
	}
	if err := measure(ctx, e, others, r); err != nil {
		return err
	}
	for _, c := range others {
		c.stop()
	}
	r.Machine.OtherCores = usage.others()
	r.Targets = targets(r)
	if format == "json" {
		j := json.NewEncoder(w)
		j.SetIndent("", "  ")
		return j.Encode(r)
	}
	return r.write(w)
}

// measure fills the report. What fails in libtorch comes back as an error.
func measure(ctx context.Context, e effort, others []*child, r *report) error {
	var err error
	if failed := torch.Try(func() { err = measureAll(ctx, e, others, r) }); failed != nil {
		return failed
	}
	return err
}

func measureAll(ctx context.Context, e effort, others []*child, r *report) error {
	r.Product = measureProduct(e.products)
	ours, err := measureCell(ctx, e.blocks)
	if err != nil {
		return err
	}
	r.Cells = append(r.Cells, ours)
	for _, c := range others {
		theirs, err := c.cell(e.blocks)
		if err != nil {
			return err
		}
		r.Cells = append(r.Cells, theirs)
	}
	for _, w := range workloads {
		result, err := w.measure(ctx, e, others)
		if err != nil {
			return fmt.Errorf("%s in %d micro-batches: %w", w.Model, w.Chunks, err)
		}
		r.Workloads = append(r.Workloads, result)
	}
	return nil
}
