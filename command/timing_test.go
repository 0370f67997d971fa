package command

import (
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
	"time"
)

// setClock has layers timed by a clock that goes on by a step whenever it is read.
func setClock(t *testing.T, step func() time.Duration) {
	t.Helper()
	var now time.Duration
	clock = func() time.Duration {
		now += step()
		return now
	}
	t.Cleanup(func() { clock = nil })
}

func steady() time.Duration { return time.Millisecond }

// unsteady gives steps from 1 to 100 ms, of which the lower quartile is some 25 ms and the median
// 50.
func unsteady() func() time.Duration {
	r := rand.New(rand.NewPCG(1, 2))
	return func() time.Duration { return time.Duration(1+r.IntN(100)) * time.Millisecond }
}

// TestUncertainTimesAreTold: every verb that measures times says once that they vary, with the number and a
// remedy, and nothing where they do not.
func TestUncertainTimesAreTold(t *testing.T) {
	told := regexp.MustCompile(`(?m)^measured times are uncertain: the median run took [1-9][0-9]+ % ` +
		`longer than the lower quartile; (.*)$`)
	for _, args := range []string{
		"profile --model mlp --batch 4 --format json",
		"balance --model mlp --stages 2 --batch 8",
		"train --model mlp --data synthetic --batch 8 --stages 2 --steps 1 --format json",
		"train --model mlp --data synthetic --batch 8 --chunks 2 --steps 1 --checkpoint optimal --format " +
			"json --stages 2",
	} {
		for _, noisy := range []bool{false, true} {
			if setClock(t, steady); noisy {
				setClock(t, unsteady())
			}
			r := must(t, strings.Fields(args)...)
			found := told.FindAllStringSubmatch(r.stderr, -1)
			if noisy != (len(found) == 1 && found[0][1] == measureAgain) ||
				noisy != strings.Contains(r.stderr, "uncertain") || strings.Contains(r.stdout, "uncertain") {
				t.Errorf("%s, noisy %v: stdout %q, stderr %q", args, noisy, r.stdout, r.stderr)
			}
		}
	}
	setClock(t, unsteady())
	// nothing was timed
	if r := must(t, "balance", "--model", "mlp", "--stages", "2", "--by", "size"); r.stderr != "" {
		t.Errorf("stderr %q", r.stderr)
	}
}

// TestTrainCountsRecomputation: where the layers of a run are cut by time, a stage is to take as
// long as its policy has it work. By the clock each of six layers takes a millisecond forward and,
// but for the first, which has nothing to train, one back. What crosses the border, and its
// gradient, takes 0.845 ms: half of a round trip.
func TestTrainCountsRecomputation(t *testing.T) {
	setClock(t, steady)
	cut := regexp.MustCompile(`--balance ([0-9,]+), by measured time: a micro-batch takes the stages ` +
		`([0-9.]+), ([0-9.]+) ms\n`)
	for _, test := range []struct{ policy, want string }{
		// of four micro-batches three
		{"never", "3,3 5.845 6.845"}, {"always", "3,3 8.845 9.845"}, {"except_last", "3,3 8.095 9.095"},
		{"always,never", "2,4 5.845 8.845"},
	} {
		r := must(t, with(small, "--stages", "2", "--steps", "1", "--format", "json", "--checkpoint",
			test.policy)...)
		found := cut.FindStringSubmatch(r.stderr)
		if found == nil {
			t.Fatalf("--checkpoint %s: no balance in %q", test.policy, r.stderr)
		}
		if got := strings.Join(found[1:], " "); got != test.want {
			t.Errorf("--checkpoint %s: %s, want %s", test.policy, got, test.want)
		}
	}
}
