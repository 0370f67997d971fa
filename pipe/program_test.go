package pipe_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/schedule"
	"penstock.example/torch"
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

// A schedule whose program cannot run is refused before anything is made, with what is wrong with it.
func TestScheduleThatCannotRun(t *testing.T) {
	torchtest.Check(t)
	program, err := schedule.GPipe(schedule.Config{Stages: 3, MicroBatches: 2})
	if err != nil {
		t.Fatal(err)
	}
	incomplete := func(c schedule.Config) (*schedule.Program, error) {
		p, err := schedule.GPipe(c)
		if err == nil {
			p.Workers[0] = p.Workers[0][1:]
		}
		return p, err
	}
	with := func(change func(*schedule.Config)) schedule.Generator {
		return func(c schedule.Config) (*schedule.Program, error) { change(&c); return schedule.GPipe(c) }
	}
	for _, row := range []struct {
		schedule schedule.Generator
		chunks   int
		want     string
	}{
		{with(func(c *schedule.Config) { c.Stages, c.Worker = 3, nil }), 2, "stages on the workers [0 1 2]; want"},
		{with(func(c *schedule.Config) { c.MicroBatches = 1 }), 2, "for 1 micro-batches"},
		{with(func(c *schedule.Config) { c.Worker = []int{1, 0} }), 2, "stages on the workers [1 0]; want"},
		{incomplete, 2, "missing: 0F0 is on no worker"},
		{schedule.Fixed(program), 2, "it is whole, for 3 stages and 2 micro-batches"},
	} {
		model := small()
		p, err := pipe.New(model, pipe.Config{Balance: []int{2, 2}, Chunks: row.chunks, Schedule: row.schedule})
		var refused *pipe.ConfigError
		if !errors.As(err, &refused) || refused.Field != "Schedule" || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%v, %v; want %q", p, err, row.want)
		}
		if nn.Params(model)[0].Exists() {
			t.Error("a parameter was made")
		}
	}
}

// The text of a program runs as it stands, on the placement that it has. A batch with fewer rows runs
// its first micro-batches.
func TestProgramFromAFile(t *testing.T) {
	torchtest.Check(t)
	const text = "program whole stages=4 micro-batches=2\n" +
		"worker 0: 0F0 0F0>1 0F1 0F1>1 2>3F0 3F0 3B0 3B0>2 2>3F1 3F1 3B1 3B1>2 1>0B0 0B0 1>0B1 0B1\n" +
		"worker 1: 0>1F0 1F0 1F0>2 1>2F0 2F0 2F0>3 0>1F1 1F1 1F1>2 1>2F1 2F1 2F1>3 " +
		"3>2B0 2B0 2B0>1 2>1B0 1B0 1B0>0 3>2B1 2B1 2B1>1 2>1B1 1B1 1B1>0\n"
	program, err := schedule.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	p := started(t, small(), pipe.Config{Balance: []int{1, 1, 1, 1}, Chunks: 2, Checkpoint: pipe.Never, Schedule: schedule.Fixed(program),
		Devices: []torch.Device{torch.CPU(0), torch.CPU(1), torch.CPU(1), torch.CPU(0)}})
	for rows := int64(1); rows <= 2; rows++ {
		batch := pipe.Batch{Input: pipe.Rows(normal(rows, 4)(c, 0)), Target: pipe.Rows(normal(rows, 3)(c, 1))}
		if _, err := p.Step(context.Background(), batch, squares{}); err != nil {
			t.Fatal(err)
		}
		if got, want := p.Plan().Program.String(), program.Fewer(int(rows)).String(); got != want {
			t.Errorf("%d rows: the step ran\n%s, want\n%s", rows, got, want)
		}
	}
}

// Forward has all outputs before the first backward, which other schedules than GPipe are not for.
func TestForwardNeedsAScheduleInTwoParts(t *testing.T) {
	torchtest.Check(t)
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	batch := pipe.Batch{Input: pipe.Rows(normal(4, 4)(c, 0)), Target: pipe.Rows(normal(4, 3)(c, 1))}
	p := started(t, small(), pipe.Config{Balance: []int{2, 2}, Chunks: 4, Schedule: schedule.OneFOneB})
	_, err := p.Forward(context.Background(), batch)
	var refused *pipe.ConfigError
	if !errors.As(err, &refused) || refused.Field != "Schedule" || !strings.Contains(err.Error(), "want one such as schedule.GPipe, or Step") {
		t.Errorf("Forward under 1F1B: %v", err)
	}
	if _, err := p.Step(context.Background(), batch, squares{}); err != nil {
		t.Error(err)
	}
	if y, err := eval(p, context.Background(), batch.Input[0].Tensor); err != nil {
		t.Error(err)
	} else {
		y.Free()
	}
}
