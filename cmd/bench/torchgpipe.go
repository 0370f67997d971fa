package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"penstock.example/torch"
)

const (
	python = "/usr/bin/python3" // Debian's, which has its torch
	script = "scripts/torchgpipe/bench.py"
)

// tcmalloc is where Debian's libtcmalloc-minimal4 has it.
const tcmalloc = "/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4"

// startChildren starts torchgpipe as shipped and, if that is something else, once more as fast as it
// can be made from outside: with the BLAS kernels that we use, and with tcmalloc if it is installed.
func startChildren(ctx context.Context, checkout string) ([]*child, error) {
	shipped, err := startChild(ctx, "torchgpipe", checkout)
	if err != nil {
		return nil, err
	}
	var environment []string
	if core := torch.BLASCore(); core != "" && core != shipped.hello.BLAS {
		environment = append(environment, "OPENBLAS_CORETYPE="+core)
	}
	if _, err := os.Stat(tcmalloc); err == nil {
		environment = append(environment, "LD_PRELOAD="+tcmalloc)
	}
	if environment == nil {
		return []*child{shipped}, nil
	}
	tuned, err := startChild(ctx, "torchgpipe, tuned", checkout, environment...)
	if err != nil {
		shipped.stop()
		return nil, err
	}
	return []*child{shipped, tuned}, nil
}

func startChild(ctx context.Context, name, checkout string, env ...string) (*child, error) {
	if _, err := os.Stat(filepath.Join(checkout, "torchgpipe", "gpipe.py")); err != nil {
		return nil, fmt.Errorf("TORCHGPIPE: %s is not a torchgpipe checkout: %w", checkout, err)
	}
	if _, err := os.Stat(script); err != nil {
		return nil, fmt.Errorf("run from the repository's root: %w", err)
	}
	c := &child{name: name}
	if err := c.start(ctx, python, []string{"-B", script, checkout}, append(os.Environ(), env...)); err != nil {
		return nil, fmt.Errorf("%w (scripts/setup python installs Debian's torch)", err)
	}
	return c, nil
}

func (c *child) cell(blocks int) (cell, error) {
	request := map[string]int{"stages": cellStages, "chunks": cellChunks, "width": cellWidth, "rows": cellRows, "blocks": max(blocks/5, 5)}
	var answer struct {
		Pipe  []float64 `json:"pipe_us"`
		Plain []float64 `json:"plain_us"`
	}
	if err := c.ask(map[string]any{"cell": request}, &answer); err != nil {
		return cell{}, fmt.Errorf("%s: cell: %w", c.name, err)
	}
	return cellOf(c.name, answer.Pipe, answer.Plain), nil
}
