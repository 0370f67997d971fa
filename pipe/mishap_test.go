package pipe_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"pgregory.net/rapid"

	"penstock.example/group"
	"penstock.example/internal/draws"
	"penstock.example/internal/linktest"
	"penstock.example/internal/proctest"
	"penstock.example/internal/torchtest"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// mishap is what happens to one process of a pipe in the middle of a step.
type mishap struct {
	Kind  string // one of mishaps
	Rank  int
	Step  int     // layouts are known from step 1 on, and other ones in that of the short batch
	Share float64 // of the actions of a step, or of the bytes that a step takes beyond those before it
}

// errOutOfReach is of a process whose step had fewer actions than the mishap was to wait for, as that of a
// short batch has.
var errOutOfReach = errors.New("the mishap was out of reach")

var mishaps = []string{"no memory", "no memory", "cancelled", "left"}

// trouble makes steps in a process up to that of the mishap. reached says whether it has happened.
func (h mishap) trouble(m process) (reached bool, err error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	mine := m.group.Rank() == h.Rank
	var here []torch.Device
	for _, s := range m.Stages() {
		if s.Here {
			here = append(here, s.Device)
		}
	}
	var calls, at atomic.Int64
	m.Hold(func(int, int) {
		if calls.Add(1) != at.Load() {
			return
		}
		reached = true
		switch h.Kind {
		case "cancelled":
			cancel()
		case "left":
			m.group.Close()
		case "killed":
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
	})
	defer m.Hold(nil)
	more := make([]int64, len(here)) // bytes that a step takes
	for i := range more {
		more[i] = 20_000
	}
	for step := range h.Step {
		for _, d := range here {
			d.ResetPeak()
		}
		calls.Store(0)
		if err := m.train(ctx, step); err != nil {
			return false, fmt.Errorf("step %d, before the mishap: %w", step, err)
		}
		for i, d := range here {
			more[i] = d.Memory().Peak - d.Memory().Live
		}
	}
	if mine && h.Kind == "no memory" {
		for i, d := range here {
			d.SetLimit(d.Memory().Live + 1 + int64(h.Share*float64(more[i])))
			defer d.SetLimit(0)
		}
	} else if mine {
		at.Store(1 + int64(h.Share*float64(max(calls.Swap(0), 10))))
	}
	err = m.train(ctx, h.Step)
	return reached, err
}

// wrong says what is wrong with the errors of processes after a mishap.
func (h mishap) wrong(reached bool, errs []error) string {
	var failed *pipe.Error
	all := fmt.Sprint(errs)
	switch first := errs[h.Rank]; {
	case h.Kind == "no memory" && first == nil || h.Kind == "cancelled" && !reached:
		if errors.Join(errs...) != nil {
			return "nothing has happened, and there are errors: " + all
		}
		return ""
	case h.Kind == "no memory" && (!errors.Is(first, torch.ErrOutOfMemory) || !errors.As(first, &failed) && !strings.Contains(first.Error(), "gathering")):
		return fmt.Sprintf("the process itself says: %v", first)
	case h.Kind == "cancelled" && first != nil && !errors.Is(first, context.Canceled):
		return fmt.Sprintf("the process itself says: %v", first)
	}
	for rank, err := range errs {
		if rank == h.Rank {
			continue
		}
		var other *group.FailedError
		var lost *group.LostError
		switch h.Kind {
		case "no memory":
			if !errors.As(err, &other) || other.Rank != h.Rank || !strings.Contains(err.Error(), "out of memory") ||
				!strings.Contains(err.Error(), fmt.Sprintf("stage %d, micro-batch %d", failed.Stage, failed.MicroBatch)) || !strings.Contains(err.Error(), "use more chunks") {
				return fmt.Sprintf("process %d says: %v; the one that failed: %v", rank, err, errs[h.Rank])
			}
		case "cancelled":
			if err != nil && (!errors.As(err, &other) || !strings.Contains(err.Error(), "context canceled")) {
				return fmt.Sprintf("process %d says: %v", rank, err)
			}
		case "left":
			if reached && err == nil || err != nil && !errors.As(err, &lost) && !errors.As(err, &other) {
				return fmt.Sprintf("process %d says: %v", rank, err)
			}
		}
	}
	return ""
}

// overGloo is each, of a group whose messages Gloo carries.
func overGloo[T any](t *testing.T, processes int, f func(g *group.Group) (T, error)) ([]T, []error) {
	out, errs := make([]T, processes), make([]error, processes)
	address := proctest.Address(t)
	var all sync.WaitGroup
	for rank := range processes {
		all.Go(func() {
			g, err := group.Join(context.Background(), group.Config{Rank: rank, Size: processes, Address: address})
			if err == nil {
				out[rank], err = f(g)
				g.Close()
			}
			errs[rank] = err
		})
	}
	all.Wait()
	return out, errs
}

// Whatever happens to one of several processes anywhere in a step, whose receives are begun ahead: all
// end, with an error that says what and where it was, and nothing is left behind.
//
//	go test ./pipe -run MishapInOneOfSeveral -rapid.checks=1000 -timeout 1h
func TestMishapInOneOfSeveralProcesses(t *testing.T) {
	torchtest.Check(t)
	draws.Checks(t, 12, 100)
	var asked atomic.Int32
	rapid.Check(t, func(rt *rapid.T) {
		goroutines := runtime.NumGoroutine()
		d := drawRun(rt, 2)
		processes := rapid.IntRange(2, d.devices()).Draw(rt, "processes")
		kinds := mishaps
		if d.Budget != nil { // limits are the plan's
			kinds = []string{"cancelled", "left"}
		}
		h := mishap{rapid.SampledFrom(kinds).Draw(rt, "mishap"), rapid.IntRange(0, processes-1).Draw(rt, "rank"),
			rapid.IntRange(0, 2).Draw(rt, "step"), rapid.Float64Range(0, 1).Draw(rt, "share")}
		q, ways := d.problem(), rapid.SampledFrom([]string{"local", "gloo", "direct"}).Draw(rt, "ways")
		replicas := min(d.Rows, d.Short) >= int64(processes) && d.Budget == nil && rapid.IntRange(0, 2).Draw(rt, "replicas") == 0
		run := func(g *group.Group) (happened bool, err error) {
			cfg := d.config()
			if replicas { // each process is one, with devices of its own
				cfg.Replicas = processes
				for i := range cfg.Devices {
					cfg.Devices[i].Index += 8 * g.Rank()
				}
			}
			err = q.on(g, cfg, func(m process) error { happened, err = h.trouble(m); return err })
			return happened, err
		}
		var happened []bool
		var errs []error
		_ = within(func() error {
			switch {
			case ways == "gloo":
				happened, errs = overGloo(t, processes, run)
			case ways == "direct" && d.Order.Name != "":
				q.reach = reached(&linktest.Fabric{}, torch.Device.String, &asked)
				fallthrough
			default:
				happened, errs = each(processes, run)
			}
			return nil
		})
		if text := h.wrong(slices.Contains(happened, true), errs); text != "" {
			rt.Fatal(text)
		}
		if err := nothingLeft(goroutines); err != nil {
			rt.Fatal(err)
		}
	})
}

// A process that is killed anywhere in a step, or fails there, is named by the other one, which leaves
// nothing behind.
func TestProcessThatEndsInTheMiddleOfAStep(t *testing.T) {
	torchtest.Check(t)
	draws.Checks(t, 4, 25)
	rapid.Check(t, func(rt *rapid.T) {
		d := drawRun(rt, 2)
		rank := rapid.IntRange(0, 1).Draw(rt, "rank")
		d.Mishap = mishap{rapid.SampledFrom([]string{"killed", "cancelled"}).Draw(rt, "mishap"), rank,
			rapid.IntRange(1, 2).Draw(rt, "step"), rapid.Float64Range(0, 0.8).Draw(rt, "share")}
		c := start(t, 2)
		_, _, err := c.run(d)
		if err != nil && err.Error() == fmt.Sprintf("process %d: %v", rank, errOutOfReach) {
			return
		}
		// The other process may still be in the step before.
		told := fmt.Sprintf(`process %d: (step \d, before the mishap: )?rank %d `, 1-rank, rank)
		want := told + "is lost"
		if d.Mishap.Kind == "cancelled" { // at the end of the step, too late for both processes or for the other one
			want = fmt.Sprintf(`^$|%sfailed: (.*: )?context canceled|^process %d: .*context canceled$`, told, rank)
		}
		text := fmt.Sprint(cmp.Or(err, errors.New("")))
		if !regexp.MustCompile(want).MatchString(text) || strings.Contains(text, "freed") || strings.Contains(text, "there were") {
			rt.Fatalf("%q; want %s", text, want)
		}
	})
}
