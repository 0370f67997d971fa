package pipe_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"penstock/internal/torchtest"
	"penstock/pipe"
	"penstock/schedule"
	"penstock/torch"
)

func TestProgramIsWhatStepRuns(t *testing.T) {
	torchtest.Check(t)
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	batch := pipe.Batch{Input: pipe.Rows(normal(5, 4)(c, 0)), Target: pipe.Rows(normal(5, 3)(c, 1))}
	for _, row := range []struct {
		reason string
		config pipe.Config
	}{
		{"the default", pipe.Config{Balance: []int{2, 2}, Chunks: 4}},
		{"stages that share a worker", pipe.Config{
			Balance: []int{1, 2, 1}, Chunks: 4, Checkpoint: pipe.Always, Devices: []torch.Device{torch.CPU(0),
				torch.CPU(1), torch.CPU(0)},
		}},
		{"a schedule of the user's", pipe.Config{Balance: []int{2, 2}, Chunks: 4, Checkpoint: pipe.Always, Schedule: oneAtATime}},
	} {
		row.config.Record = true
		p := started(t, small(), row.config)
		result, err := p.Step(context.Background(), batch, squares{})
		if err != nil {
			t.Fatal(err)
		}
		program, err := p.Program(result.MicroBatches)
		if err != nil {
			t.Fatal(err)
		}
		if err := schedule.Check(program, schedule.Limits{}); err != nil {
			t.Errorf("%s: %v", row.reason, err)
		}
		got := schedule.Program{
			Stages: program.Stages, MicroBatches: result.MicroBatches, Skips: program.Skips, Capacity: program.Capacity,
			Workers: make([][]schedule.Action, result.Timeline.Workers),
		}
		for _, e := range result.Timeline.Events {
			got.Workers[e.Worker] = append(got.Workers[e.Worker], e.Action)
		}
		if got.String() != program.String() {
			t.Errorf("%s: the step ran\n%v, want\n%v", row.reason, &got, program)
		}
	}
}

// oneAtATime is GPipe with links on which one value may wait.
func oneAtATime(c schedule.Config) (*schedule.Program, error) {
	c.Capacity = 1
	return schedule.GPipe(c)
}

// A schedule whose program cannot run is refused before anything runs, with what is wrong with it.
func TestScheduleThatCannotRun(t *testing.T) {
	torchtest.Check(t)
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	batch := pipe.Batch{Input: pipe.Rows(normal(4, 4)(c, 0)), Target: pipe.Rows(normal(4, 3)(c, 1))}
	p := started(t, small(), pipe.Config{Balance: []int{2, 2}, Chunks: 2,
		Schedule: func(c schedule.Config) (*schedule.Program, error) {
			program, err := schedule.GPipe(c)
			if err == nil {
				program.Workers[0] = program.Workers[0][1:]
			}
			return program, err
		}})
	_, err := p.Step(context.Background(), batch, squares{})
	var found schedule.Violations
	if !errors.As(err, &found) || !strings.Contains(err.Error(), "missing: 0F0 is on no worker") {
		t.Errorf("got %v", err)
	}
}

func TestProgramOfNothing(t *testing.T) {
	torchtest.Check(t)
	p := started(t, small(), pipe.Config{Balance: []int{2, 2}})
	if program, err := p.Program(0); err == nil {
		t.Errorf("a program of 0 micro-batches is %v", program)
	}
}
