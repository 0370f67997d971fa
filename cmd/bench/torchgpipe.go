package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"penstock/torch"
)

const (
	python = "/usr/bin/python3" // Debian's, which has its torch
	script = "scripts/torchgpipe/bench.py"
)

// rest is how long a process is left alone after it worked: idle threads of OpenBLAS spin for some
// 2^26 cycles before they sleep.
const rest = 100 * time.Millisecond

// child is a Python process that trains on torchgpipe when asked to. It lives as long as the run,
// so that rounds alternate with ours without starting it anew.
type child struct {
	name  string
	hello struct {
		BLAS string `json:"blas"`
	}
	command *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Reader
	log     bytes.Buffer
	ended   bool
}

// startChildren starts torchgpipe as shipped and, if it would use other BLAS kernels than we do,
// once more with ours.
func startChildren(ctx context.Context, checkout string) ([]*child, error) {
	shipped, err := startChild(ctx, "torchgpipe", checkout)
	if err != nil {
		return nil, err
	}
	core := torch.BLASCore()
	if core == "" || shipped.hello.BLAS == core {
		return []*child{shipped}, nil
	}
	same, err := startChild(ctx, "torchgpipe, our kernels", checkout, "OPENBLAS_CORETYPE="+core)
	if err != nil {
		shipped.stop()
		return nil, err
	}
	return []*child{shipped, same}, nil
}

func startChild(ctx context.Context, name, checkout string, env ...string) (*child, error) {
	if _, err := os.Stat(filepath.Join(checkout, "torchgpipe", "gpipe.py")); err != nil {
		return nil, fmt.Errorf("TORCHGPIPE: %s is not a torchgpipe checkout: %w", checkout, err)
	}
	if _, err := os.Stat(script); err != nil {
		return nil, fmt.Errorf("run from the repository's root: %w", err)
	}
	c := &child{name: name, command: exec.CommandContext(ctx, python, "-B", script, checkout)}
	c.command.Env = append(os.Environ(), env...)
	c.command.Stderr = &c.log
	var err error
	if c.in, err = c.command.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := c.command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.out = bufio.NewReader(out)
	if err := c.command.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if err := c.read(&c.hello); err != nil {
		return nil, fmt.Errorf("%w (scripts/setup python installs Debian's torch)", err)
	}
	return c, nil
}

func (c *child) stop() {
	if !c.ended {
		c.ended = true
		c.in.Close()
		_ = c.command.Wait() // whatever it says, it has answered
	}
}

func (c *child) read(answer any) error {
	line, err := c.out.ReadBytes('\n')
	if err != nil {
		c.stop()
		return fmt.Errorf("%s: %s ended: %s", c.name, script, bytes.TrimSpace(c.log.Bytes()))
	}
	return json.Unmarshal(line, answer)
}

// ask sends a request, a line, and reads the answer, another. An error in the answer leaves the
// process alive.
func (c *child) ask(request, answer any) error {
	line, err := json.Marshal(request)
	if err != nil {
		return err
	}
	if _, err := c.in.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("%s: %w", c.name, err)
	}
	var raw json.RawMessage
	if err := c.read(&raw); err != nil {
		return err
	}
	var failure struct{ Error string }
	if err := json.Unmarshal(raw, &failure); err != nil {
		return err
	}
	if failure.Error != "" {
		return errors.New(failure.Error)
	}
	time.Sleep(rest)
	return json.Unmarshal(raw, answer)
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
