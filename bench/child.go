package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// rest is the pause after a process has worked. Idle threads of OpenMP and OpenBLAS spin before
// they sleep.
const rest = 100 * time.Millisecond

// patience is the time limit of an answer. torch.compile takes minutes for large models.
const patience = 15 * time.Minute

// child is a process that answers requests.
type child struct {
	last    answer
	command *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Reader
	log     bytes.Buffer
}

// answer is the answer of a child. Each request fills some of the fields.
type answer struct {
	Error    string    `json:"error"`
	Torch    string    `json:"torch"` // the first answer has the versions
	BLAS     string    `json:"blas"`
	MS       []float64 `json:"ms"`
	Threads  int       `json:"threads"`
	Losses   []float64 `json:"losses"`
	Peak     int64     `json:"peak"`
	Live     int64     `json:"live"`
	Segments []float64 `json:"segments"`
	Pipe     []float64 `json:"pipe_us"`
	Plain    []float64 `json:"plain_us"`
	Flops    float64   `json:"flops"`   // of a step
	Product  float64   `json:"product"` // flops a second of a large product; 0 is not measured
}

// startPython starts a script of bench/python with the interpreter PYTHON, and reads its first
// answer.
func (b *bench) startPython(ctx context.Context, script string, args ...string) (*child, error) {
	args = append([]string{"-B", "python/" + script}, args...)
	c := &child{command: exec.CommandContext(ctx, cmp.Or(os.Getenv("PYTHON"), "python3"), args...)}
	c.command.Stderr, c.command.WaitDelay = &c.log, time.Second
	in, inErr := c.command.StdinPipe()
	out, outErr := c.command.StdoutPipe()
	if err := errors.Join(inErr, outErr, c.command.Start()); err != nil {
		return nil, err
	}
	c.in, c.out = in, bufio.NewReader(out)
	hello, err := c.read()
	if err != nil {
		c.stop()
		return nil, err
	}
	if name := strings.TrimSpace(hello.Torch + " " + hello.BLAS); !slices.Contains(b.PyTorch, name) &&
		name != "" {
		b.PyTorch = append(b.PyTorch, name)
	}
	return c, nil
}

// stop closes the input, and kills a process that does not end then.
func (c *child) stop() {
	c.in.Close()
	defer time.AfterFunc(10*time.Second, func() { _ = c.command.Process.Kill() }).Stop()
	_ = c.command.Wait() // its answers are complete
}

func (c *child) read() (a answer, err error) {
	timer := time.AfterFunc(patience, func() { _ = c.command.Process.Kill() })
	defer timer.Stop()
	line, err := c.out.ReadBytes('\n')
	if err != nil {
		c.in.Close()
		_ = c.command.Wait()
		return a, fmt.Errorf("the process ended: %s", lastLine(c.log.String()))
	}
	if err = json.Unmarshal(line, &a); err == nil && a.Error != "" {
		err = errors.New(a.Error)
	}
	return a, err
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.TrimSpace(lines[len(lines)-1])
}

// ask sends a request and reads the answer. If the answer is an error, the process lives on.
func (c *child) ask(request any) (answer, error) {
	if err := json.NewEncoder(c.in).Encode(request); err != nil {
		return answer{}, err
	}
	a, err := c.read()
	c.last = a
	time.Sleep(rest)
	return a, err
}

// side returns a side that asks for steps. The request has its further fields.
func (c *child) side(request map[string]any) side {
	return func(_ context.Context, length time.Duration) (float64, error) {
		request["seconds"] = length.Seconds()
		a, err := c.ask(request)
		return median(a.MS), err
	}
}
