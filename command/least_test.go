package command

import (
	"fmt"
	"math"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"penstock.example/internal/draws"
	noerr "penstock.example/internal/must"
)

// told finds the limit that a refusal says will do. The refusal is one line that names one limit,
// and no operator; before it there may be warnings of uncertain times.
func told(t *testing.T, r ran) int64 {
	t.Helper()
	all := regexp.MustCompile(`--memory-limit (\d+)`).FindAllStringSubmatch(r.stderr, -1)
	_, refusal, _ := strings.Cut("\n"+r.stderr, "\npenstock: ")
	if r.code != exitUsage || len(all) != 1 || strings.Contains(r.stderr, "aten::") ||
		strings.Count(refusal, "\n") != 1 {
		t.Fatalf("exit code %d, want %d and a line that names one limit; stderr:\n%s", r.code, exitUsage,
			r.stderr)
	}
	return noerr.Get(strconv.ParseInt(all[0][1], 10, 64))(t)
}

// TestLeastLimit: a limit that is too low is refused with one number for all devices, whichever
// stages it is too low for and whether or not the parameters alone fit. The run succeeds with
// exactly that number, the optimizer's state, its updates and the test included, and with one byte
// less it is refused with the same number.
func TestLeastLimit(t *testing.T) {
	quick := []string{"the second stage needs more than the first", "the update needs more than the step",
		"clipping needs more than the update", "the test needs outputs of the whole batch",
		"the test has more rows than a replica", "the validation has more rows than the training",
		"layers are timed, with a limit below what that takes"}
	for _, row := range []struct {
		reason string
		args   string
	}{
		{"the second stage needs more than the first",
			"--model resnet20 --set width=8 --balance 5,6 --chunks 4 --batch 32"},
		{"one stage", "--model resnet20 --set width=8 --chunks 2 --batch 8"},
		{"three stages", "--model resnet20 --set width=8 --balance 3,4,4 --chunks 3 --batch 12 " +
			"--optimizer sgd --momentum 0"},
		{"parameters and state outweigh activations",
			"--model mlp --set width=256 --batch 4 --optimizer adam"},
		{"activations outweigh parameters, and the state comes on top",
			"--model mlp --set width=64 --balance 3,3 --chunks 4 --batch 512 --optimizer adam"},
		{"the update needs more than the step",
			"--model mlp --set width=256 --balance 3,3 --chunks 2 --batch 4 --optimizer adamw"},
		{"the update of one stage and the step of the other",
			"--model mlp --set width=256 --balance 4,2 --chunks 2 --batch 400 --optimizer adam"},
		{"clipping needs more than the update",
			"--model mlp --set width=64 --balance 3,3 --batch 2 --clip-norm 0.1 --momentum 0"},
		{"the test needs outputs of the whole batch",
			"--model gpt --set width=16,depth=2,heads=2,context=16 --window 16 --data text --data-dir " +
				"../README.md --balance 23,7 --chunks 4 --batch 8"},
		{"the test has more rows than a replica",
			"--model gpt --set width=16,depth=1,heads=2,context=16 --window 16 --data text --data-dir " +
				"../README.md --replicas 8 --chunks 1 --batch 8"},
		{"the validation has more rows than the training",
			"--model gpt --set width=16,depth=1,heads=2,context=16 --window 16 --data text --data-dir " +
				"../README.md --validate 0.9 --chunks 2"},
		{"layers are timed, with a limit below what that takes",
			"--model mlp --set width=64 --stages 2 --chunks 2 --batch 16"},
	} {
		t.Run(row.reason, func(t *testing.T) {
			if !slices.Contains(quick, row.reason) { // train's PlanMemory has these
				full(t)
			}
			args := with(strings.Fields("train --data synthetic --checkpoint optimal --steps 2"),
				strings.Fields(row.args)...)
			limited := func(n int64) ran { return command(t, with(args, "--memory-limit", fmt.Sprint(n))...) }
			least := told(t, limited(1))
			for _, limit := range []int64{least - 1, least / 2, least / 8} {
				if limit < least-1 && !draws.Full {
					break
				}
				if n := told(t, limited(limit)); n != least {
					t.Errorf("--memory-limit %d: %d will do, and with 1 it is %d", limit, n, least)
				}
			}
			if r := limited(least); r.code != exitDone {
				t.Errorf("--memory-limit %d, which was to do: exit code %d, stderr:\n%s", least, r.code,
					r.stderr)
			}
		})
	}
}

// TestLeastLimitOfAllCuts: without --balance the limit that is told is the least of all cuts, however long
// layers take when they are timed. Within it the run finds the cut.
func TestLeastLimitOfAllCuts(t *testing.T) {
	args := strings.Fields("train --data synthetic --checkpoint optimal --steps 1 --model mlp --set " +
		"width=64 --chunks 2 --batch 16")
	within := func(limit int64, more ...string) ran {
		r := rand.New(rand.NewPCG(uint64(limit), uint64(len(more))))
		now := time.Duration(0)
		defer func(was func() time.Duration) { clock = was }(clock)
		clock = func() time.Duration {
			now += time.Duration(r.IntN(1_000_000))
			return now
		}
		return command(t, with(with(args, more...), "--memory-limit", fmt.Sprint(limit))...)
	}
	least := int64(math.MaxInt64)
	for first := 1; first < 6; first++ {
		least = min(least, told(t, within(1, "--balance", fmt.Sprint(first, ",", 6-first))))
	}
	for _, limit := range []int64{1, least / 2, least - 1} {
		if n := told(t, within(limit, "--stages", "2")); n != least {
			t.Errorf("--memory-limit %d: %d will do, the least of all cuts is %d", limit, n, least)
		}
	}
	for n := range int64(3) {
		if r := within(least+n, "--stages", "2"); r.code != exitDone {
			t.Errorf("--memory-limit %d, which was to do: exit code %d, stderr:\n%s", least+n, r.code,
				r.stderr)
		}
	}
}

// TestLeastLimitResumes: weights and the optimizer's state are restored within the least limit,
// too.
func TestLeastLimitResumes(t *testing.T) {
	args := strings.Fields("train --data synthetic --checkpoint optimal --model mlp --set width=64 " +
		"--balance 3,3 --chunks 2 --batch 64 --optimizer adam")
	least := fmt.Sprint(told(t, command(t, with(args, "--steps", "1", "--memory-limit", "1")...)))
	out := t.TempDir()
	must(t, with(args, "--steps", "1", "--memory-limit", least, "--out", out)...)
	must(t, with(args, "--steps", "3", "--memory-limit", least, "--out", out, "--resume")...)
}

// TestMemoryLimitHoldsOnEveryDevice: each device has the limit, not the first alone.
func TestMemoryLimitHoldsOnEveryDevice(t *testing.T) {
	args := strings.Fields("train --data synthetic --model mlp --set width=64 --balance 1,4,1 " +
		"--optimizer adam --devices cpu:4,cpu:2,cpu:3 --checkpoint never --chunks 2 --batch 64 --steps 2 " +
		"--format json")
	steps, _ := lines(t, must(t, args...).stdout)
	first, second := steps[0].PeakBytes[0], steps[0].PeakBytes[1]
	if second < 2*first {
		t.Fatalf("the second stage needs %d bytes and the first %d: nothing to see", second, first)
	}
	limit := (first + second) / 2
	if r := command(t, with(args, "--memory-limit", fmt.Sprint(limit))...); r.code != exitFailed ||
		!strings.Contains(r.stderr, "cpu:2") {
		t.Errorf("with %d bytes: exit code %d, stderr:\n%s", limit, r.code, r.stderr)
	}
}

// TestParametersAloneDoNotFit: without a plan as well, one error lists the devices.
func TestParametersAloneDoNotFit(t *testing.T) {
	r := command(t, strings.Fields("train --data synthetic --model mlp --set width=64 --balance 3,3 "+
		"--steps 1 --memory-limit 1000")...)
	for _, want := range []string{"stage 0 on cpu:0 needs ", "; stage 1 on cpu:1 needs ",
		"parameters and buffers alone", "use more than --memory-limit "} {
		if r.code != exitUsage || strings.Count(r.stderr, "\n") != 1 ||
			strings.Contains(r.stderr, "aten::") || !strings.Contains(r.stderr, want) {
			t.Errorf("exit code %d, no %q in stderr:\n%s", r.code, want, r.stderr)
		}
	}
}

// TestPlanIsTold: what is recomputed is said before the first step, or that there is no limit to
// recompute for.
func TestPlanIsTold(t *testing.T) {
	args := strings.Fields("train --data synthetic --checkpoint optimal --model resnet20 --set width=8 " +
		"--balance 5,6 --chunks 2 --batch 8 --steps 1 --format json")
	free := must(t, args...)
	for _, want := range []string{"stage 0: at most ", "stage 1: at most ", ", nothing recomputed\n",
		"there is no --memory-limit, so nothing is recomputed\n"} {
		if !strings.Contains(free.stderr, want) {
			t.Errorf("no %q in stderr:\n%s", want, free.stderr)
		}
	}
	tight := must(t, with(args, "--memory-limit",
		fmt.Sprint(told(t, command(t, with(args, "--memory-limit", "1")...))))...)
	if !regexp.MustCompile(`stage \d: at most [^\n]* of [^\n]*; of 2 micro-batches in \d+ units?, \d+ `+
		`forwards? run again: [0-9.]+ % more time\n`).MatchString(tight.stderr) ||
		strings.Contains(tight.stderr, "there is no") {
		t.Errorf("stderr:\n%s", tight.stderr)
	}
	if _, a := lines(t, free.stdout); true {
		if _, b := lines(t, tight.stdout); a.ParamsSHA256 != b.ParamsSHA256 {
			t.Error("other weights under the least limit than without one")
		}
	}
}

// TestSafeLimitIsTold: the limit that a run ends with is enough for the same run, for any policy,
// and at least what its steps have taken.
func TestSafeLimitIsTold(t *testing.T) {
	for _, row := range []string{
		"--model resnet20 --set width=8 --balance 2,3,6 --chunks 4 --batch 16 --checkpoint always",
		"--model resnet20 --set width=8 --balance 5,6 --chunks 4 --batch 16 --checkpoint never,except_last",
		"--model resnet20 --set width=8 --balance 5,6 --chunks 4 --batch 16 --checkpoint optimal",
		"--model mlp --set width=64 --balance 1,5 --chunks 16 --batch 256 --checkpoint except_last " +
			"--optimizer adam --clip-norm 0.1",
	} {
		args := with(strings.Fields("train --data synthetic --steps 2"), strings.Fields(row)...)
		steps, done := lines(t, must(t, with(args, "--format", "json")...).stdout)
		if len(done.SafeLimitBytes) != len(steps[0].PeakBytes) {
			t.Fatalf("%s: %+v", row, done)
		}
		for _, s := range steps {
			for i, peak := range s.PeakBytes {
				if peak > done.SafeLimitBytes[i] {
					t.Errorf("%s: step %d takes %v bytes, and %v are safe", row, s.Step, s.PeakBytes,
						done.SafeLimitBytes)
				}
			}
		}
		text := must(t, with(args, "--memory-limit", fmt.Sprint(slices.Max(done.SafeLimitBytes)))...)
		if !regexp.MustCompile(`\nsafe limit     --memory-limit \d+ \(.* MiB\) is enough, whichever ` +
			`stage runs ahead\n`).MatchString(text.stdout) {
			t.Errorf("%s: stdout:\n%s", row, text.stdout)
		}
	}
}
