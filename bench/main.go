// Command bench compares Penstock with PyTorch and torchgpipe, and prints one table. In each
// comparison both sides alternate. `make TORCH=2.15.0 bench` runs it, in the folder bench:
//
//	go run . [--quick] [--only PART,...] [--devices DEVICE] [--trial] [--format text|json]
//
// docs/benchmarks.md says what each number means.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"penstock.example/torch"
)

// bench is a run.
type bench struct {
	effort
	report
	device torch.Device // of the parts core, limits, memory and plain
	large  bool         // use the workloads and precisions for GPUs
}

// parts are the comparisons that --only can name.
var parts = map[string]func(*bench, context.Context) error{
	"core": (*bench).measureCore, "memory": (*bench).measureMemory, "plain": (*bench).measurePlain,
	"processes": (*bench).measureProcesses, "torchgpipe": (*bench).measureTorchgpipe,
	"compile": (*bench).compileAhead, "limits": (*bench).measureLimits, // not in --only's default
}

var deterministic = flag.Bool("deterministic", true, "GPUs compute the same bits each time")

func main() {
	quick := flag.Bool("quick", false, "fewer and shorter rounds and fewer models; noisier")
	only := flag.String("only", "core,memory,plain,processes,torchgpipe", "parts to measure")
	on := flag.String("devices", "cpu:0", "the device of core, limits, memory and plain, such as cuda:0")
	trial := flag.Bool("trial", false, "measure as on a GPU, with small models")
	format := flag.String("format", "text", "text or json")
	flag.Parse()
	if flag.NArg() == 2 && flag.Arg(0) == memberArg {
		end(1, beMember(context.Background(), flag.Arg(1)))
		return
	}
	device, err := torch.ParseDevice(*on)
	end(2, cmp.Or(err, device.Usable()))
	if flag.NArg() > 0 || *format != "text" && *format != "json" {
		end(2, errors.New("want flags only, and text or json for --format"))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	torch.SetDeterministic(*deterministic)
	b := &bench{effortOf(*quick), report{Machine: describeMachine()}, device, *trial ||
		device.Kind != torch.KindCPU}
	if torch.SetTF32(b.large); b.large {
		b.effort = effortOnGPUs
	}
	end(1, b.run(ctx, strings.Split(*only, ","), *format, os.Stdout))
}

// end exits if there is an error.
func end(code int, err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(code)
	}
}

func (b *bench) run(ctx context.Context, chosen []string, format string, w io.Writer) error {
	begin, others := time.Now(), othersTime()
	for _, part := range chosen {
		measure := parts[part]
		if measure == nil {
			return fmt.Errorf("--only: no part %q; want some of %v", part, slices.Sorted(maps.Keys(parts)))
		}
		fmt.Fprintln(os.Stderr, "bench:", part)
		var err error
		failed := torch.Try(func() { err = measure(b, ctx) })
		if err := errors.Join(failed, err); err != nil {
			return fmt.Errorf("%s: %w", part, err)
		}
	}
	b.Machine.OtherCores = (othersTime() - others).Seconds() / time.Since(begin).Seconds()
	if format == "json" {
		j := json.NewEncoder(w)
		j.SetIndent("", "  ")
		return j.Encode(b.report)
	}
	return b.text(w)
}
