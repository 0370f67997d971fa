package command

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"penstock.example/internal/draws"
	noerr "penstock.example/internal/must"
	"penstock.example/train"
)

// Replicas give the same weights however they are spread over processes: each in several, each in
// one, or several in one. Standard output is that of replica 0.
func TestReplicas(t *testing.T) {
	want := map[int]string{} // the weights, by replicas
	for _, row := range []struct {
		replicas, processes, stages int
		more                        []string
		quick                       bool
	}{
		{2, 2, 1, []string{"--balance", "6"}, false}, {2, 4, 2, []string{"--balance", "3,3"}, false},
		{2, 4, 2, []string{"--balance", "2,1,1,2", "--stages", "2", "--virtual", "2", "--schedule", "zb-v"},
			true},
		{2, 0, 1, nil, true}, {2, 0, 2, []string{"--balance", "3,3", "--schedule", "1f1b"}, true},
		{2, 0, 2, []string{"--balance", "2,1,1,2", "--stages", "2", "--virtual", "2", "--schedule", "zb-v",
			"--devices", "cpu:2,cpu:1"}, true},
		{2, 0, 2, []string{"--stages", "2", "--checkpoint", "optimal", "--memory-limit", "1GiB"}, true},
		{4, 4, 1, nil, false}, {4, 0, 2, []string{"--balance", "2,4"}, true}, {4, 1, 1, nil, false},
		{4, 2, 1, nil, false}, {4, 2, 2, []string{"--balance", "3,3"}, true},
	} {
		if !row.quick && !draws.Full {
			continue
		}
		run := with(small, "--replicas", fmt.Sprint(row.replicas), "--chunks", "2", "--steps", "3",
			"--format", "json", "--clip-norm", "0.5")
		if run = with(run, row.more...); row.processes > 0 {
			run = launched(row.processes, run...)
		}
		steps, done := lines(t, mustTrain(t, run...).stdout)
		if want[row.replicas] == "" {
			want[row.replicas] = done.ParamsSHA256
		}
		if len(steps) != 3 || done.ParamsSHA256 != want[row.replicas] ||
			len(steps[0].PeakBytes) != row.stages {
			t.Errorf("%q: got %d steps, %+v, peaks of %d devices; want the weights %s, and the devices "+
				"of one replica",
				run, len(steps), done, len(steps[0].PeakBytes), want[row.replicas])
		}
	}
}

// A run with replicas that a signal ends goes on with them spread otherwise.
func TestReplicasOfOneProcessGoOn(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	training := with(small, "--replicas", "2", "--chunks", "2", "--format", "json")
	p := begin(t, nil, with(training, "--balance", "3,3", "--steps", "1000000", "--out", out)...)
	p.after(t, 2)
	noerr.Do(t, p.Process.Signal(os.Interrupt))
	code := p.end(t)
	steps, err := train.Store{Dir: out}.Steps()
	if code != exitFailed || err != nil || len(steps) != 1 {
		t.Fatalf("exit code %d, checkpoints of %v, %v; stderr:\n%s", code, steps, err, p.stderr)
	}
	if got := p.stderr.String(); !strings.HasPrefix(got,
		fmt.Sprintf("\nfinishing the step; Ctrl-C again ends at once\npenstock: interrupted after step "+
			"%d; saved in %s/step-", steps[0], out)) ||
		!strings.HasSuffix(got, goOn+"\n") ||
		strings.Count(got, "penstock: ") != 1 {
		t.Errorf("it says %q", got)
	}
	var sums []string
	for i, run := range [][]string{launched(2, with(training, "--balance", "6")...),
		with(training, "--balance", "2,4"), with(training, "--balance", "3,3")} {
		args := with(run, "--steps", fmt.Sprint(steps[0]+2))
		if i < 2 {
			args = with(args, "--steps", fmt.Sprint(steps[0]+int64(i)+1), "--out", out, "--resume")
		}
		_, done := lines(t, mustTrain(t, args...).stdout)
		sums = append(sums, done.ParamsSHA256)
	}
	if sums[1] != sums[2] {
		t.Errorf("going on in two processes and in one gives the weights %s, want %s", sums[1], sums[2])
	}
}

// What fails in one replica ends all, and is said once.
func TestAFailureInOneOfTheReplicas(t *testing.T) {
	args := with(small, "--replicas", "2", "--chunks", "1", "--steps", "3", "--balance", "3,3",
		"--memory-limit")
	r := command(t, with(args, "1KiB")...)
	if r.code != exitUsage || strings.Count(r.stderr, "penstock: ") != 1 ||
		!strings.Contains(r.stderr, "--memory-limit") || r.stdout != "" {
		t.Errorf("placing: exit code %d, stdout %q, stderr %q", r.code, r.stdout, r.stderr)
	}
	r = command(t, with(args, "2200KiB")...)
	if r.code != exitFailed || strings.Count(r.stderr, "penstock: ") != 1 ||
		!strings.Contains(r.stderr, "stage ") || !strings.Contains(r.stderr, "out of memory") {
		t.Errorf("a step: exit code %d, stdout %q, stderr %q", r.code, r.stdout, r.stderr)
	}
}
