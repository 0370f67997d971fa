package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"time"
)

// rest is how long a process is left alone after it worked: idle threads of OpenBLAS spin for some
// 2^26 cycles before they sleep.
const rest = 100 * time.Millisecond

// child is a process that trains when asked to. It lives as long as the run, so that rounds
// alternate with ours without starting it anew.
type child struct {
	name  string
	hello struct {
		BLAS  string `json:"blas"`
		Torch string `json:"torch"`
	}
	command *exec.Cmd
	others  []*exec.Cmd // that work with it, and end when it does
	in      io.WriteCloser
	out     *bufio.Reader
	log     bytes.Buffer
	ended   bool
}

// start starts a process, which writes a line about itself first.
func (c *child) start(ctx context.Context, path string, args, env []string) error {
	c.command = exec.CommandContext(ctx, path, args...)
	c.command.Env = env
	c.command.Stderr = &c.log
	var err error
	if c.in, err = c.command.StdinPipe(); err != nil {
		return err
	}
	out, err := c.command.StdoutPipe()
	if err != nil {
		return err
	}
	c.out = bufio.NewReader(out)
	if err := c.command.Start(); err != nil {
		return fmt.Errorf("%s: %w", c.name, err)
	}
	return c.read(&c.hello)
}

func (c *child) stop() {
	if !c.ended {
		c.ended = true
		c.in.Close()
		_ = c.command.Wait() // whatever it says, it has answered
		for _, o := range c.others {
			_ = o.Wait()
		}
	}
}

func (c *child) read(answer any) error {
	line, err := c.out.ReadBytes('\n')
	if err != nil {
		c.stop()
		return fmt.Errorf("%s: the process ended: %s", c.name, bytes.TrimSpace(c.log.Bytes()))
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
