package pipe_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// ways are all the ways in which a user's Go code can end without a result.
var ways = []struct {
	name string
	do   func()
	want string
	is   func(error) bool
}{
	{"a string", func() { panic("out of luck") }, "panic: out of luck", nil},
	{"an error", func() { panic(errBoom) }, "panic: boom", func(err error) bool { return errors.Is(err, errBoom) }},
	{"a value of its own", func() { panic(struct{ code int }{7}) }, "panic: {7}", nil},
	{"nil", func() { panic(nil) }, "panic called with nil argument", nil},
	{"a runtime error", func() { var m map[string]int; m["a"] = 1 }, "assignment to entry in nil map", isRuntime},
	{"an index", func() { _ = []int{}[len(os.Args)] }, "index out of range", isRuntime},
	{"a nil pointer", func() { var l *nn.Linear; l.Weight = nil }, "nil pointer dereference", isRuntime},
	{"Goexit", runtime.Goexit, "runtime.Goexit", func(err error) bool { return errors.Is(err, pipe.ErrGoexit) }},
}

var errBoom = errors.New("boom")

func isRuntime(err error) bool {
	var e runtime.Error
	return errors.As(err, &e)
}

// stackApart checks that an error is one line, and that the stack of a panic is in a field.
func stackApart(t *testing.T, err error, goexit bool) {
	t.Helper()
	var p *pipe.PanicError
	if found := errors.As(err, &p); found == goexit || found && !strings.Contains(string(p.Stack), "pipe/panic_test.go") {
		t.Errorf("the stack of %v does not show the panic: %v", err, p)
	}
	if err != nil && strings.Contains(err.Error(), "\n") {
		t.Errorf("an error of several lines: %v", err)
	}
}

// The same for what runs on the stages' workers beside runs.
func TestPanicsOnStages(t *testing.T) {
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			torchtest.Check(t)
			model := small()
			p := started(t, model, pipe.Config{Balance: []int{1, 1, 2}})
			done := make([]bool, 3)
			err := p.OnStages(context.Background(), func(stage int, c *torch.Ctx) error {
				c.Ones(torch.Float32, 100)
				if stage == 1 {
					way.do()
				}
				done[stage] = true
				return nil
			})
			if err == nil || !strings.Contains(err.Error(), way.want) || way.is != nil && !way.is(err) {
				t.Errorf("got %v, want %q", err, way.want)
			}
			stackApart(t, err, way.name == "Goexit")
			if err != nil && !strings.Contains(err.Error(), "pipe: stage 1: ") {
				t.Errorf("the stage is not in: %v", err)
			}
			if !done[0] || done[1] || !done[2] {
				t.Errorf("stages done: %v, want all but 1", done)
			}
			if err := p.OnStages(context.Background(), func(int, *torch.Ctx) error { return nil }); err != nil {
				t.Errorf("the workers are of no use any more: %v", err)
			}
		})
	}
}

// After a failure no action starts: with all stages on one device, whose worker has one order,
// exactly those before it have run.
func TestNothingStartsAfterAFailure(t *testing.T) {
	torchtest.Check(t)
	var ran []string
	note := func(c *nn.Ctx) bool {
		ran = append(ran, fmt.Sprint(c.Path(), "F", c.MicroBatch))
		return c.Path() == "1" && c.MicroBatch == 1
	}
	stop := func(*nn.Ctx, *torch.Tensor) *torch.Tensor { panic("stop") }
	model := nn.NewSequential(&saboteur{when: note, how: stop}, &saboteur{when: note, how: stop}, &saboteur{when: note, how: stop})
	p := started(t, model, pipe.Config{Balance: []int{1, 1, 1}, Chunks: 4, Devices: make([]torch.Device, 3)})
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	if _, err := eval(p, context.Background(), normal(4, 2)(c, 0)); err == nil {
		t.Fatal("no failure")
	}
	if got, want := fmt.Sprint(ran), "[0F0 1F0 0F1 2F0 1F1]"; got != want {
		t.Errorf("ran %s, want %s", got, want)
	}
}
