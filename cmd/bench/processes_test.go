package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"penstock.example/models"
)

// The test binary is a member if it is started as one.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == memberArg {
		if err := beMember(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// tinyPairings are small, and of all models and schedules of the comparison.
func tinyPairings() (list []pairing) {
	for _, p := range pairings() {
		p.Batch = 8
		switch p.Model {
		case "gpt":
			p.Options = models.Options{Width: 8, Heads: 2, Context: 4}
		case "resnet20":
			p.Options.Width, p.Options.Size = 4, 8
		}
		list = append(list, p)
	}
	return list
}

// Two processes train as one does, and where a chroot is given PyTorch trains the same: from the same
// weights with the same losses.
func TestProcesses(t *testing.T) {
	chroot, list := os.Getenv("PIPELINING"), tinyPairings()
	if chroot == "" { // a schedule of each kind of balance
		list = list[len(list)-2:]
	} else {
		t.Chdir("../..")
	}
	results, err := measureProcesses(t.Context(), effort{rounds: 2, round: time.Millisecond}, list, chroot)
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range results {
		p := list[i]
		if r.Model != p.Model || r.Schedule != p.Schedule {
			t.Fatalf("result %d is of %s, %s; want %s, %s", i, r.Model, r.Schedule, p.Model, p.Schedule)
		}
		if !(r.Threads.Min > 0 && r.Processes.Min > 0 && r.Slower.Min > 0 && r.Costlier.Min > 0) {
			t.Errorf("%s, %s: %+v", r.Model, r.Schedule, r)
		}
		if math.Abs(r.LastLoss-r.FirstLoss) < 100*lossesApart {
			t.Errorf("%s, %s: the loss goes from %v to %v: nothing was learnt that could differ", r.Model, r.Schedule, r.FirstLoss, r.LastLoss)
		}
		if chroot == "" {
			continue
		}
		if o := r.Theirs; o.Error != "" || o.Apart > lossesApart || !(o.Faster.Min > 0 && o.Cheaper.Min > 0) {
			t.Errorf("%s, %s: %+v", r.Model, r.Schedule, *o)
		}
		t.Logf("%s, %s: %v to %v, apart %g", r.Model, r.Schedule, r.FirstLoss, r.LastLoss, r.Theirs.Apart)
	}
}

// A member answers what it cannot do, and goes on.
func TestMemberAnswersErrors(t *testing.T) {
	c, err := startMembers(t.Context(), "one", 1)
	if err != nil {
		t.Fatal(err)
	}
	defer c.stop()
	x := tinyPairings()[len(pairings())-1].exercise
	x.Steps = 2
	bad := x
	bad.Schedule = "none"
	var out trained
	if err := c.ask(bad, &out); err == nil || !strings.Contains(err.Error(), `"none"`) {
		t.Errorf("got %v, want that there is no schedule none", err)
	}
	if err := c.ask(x, &out); err != nil || len(out.Losses) != 2 {
		t.Errorf("got %v and %v, want two losses", out, err)
	}
	first := out.Losses[1]
	if err := c.ask(x, &out); err != nil || out.Losses[0] == first {
		t.Errorf("got %v and %v, want that it goes on", out, err)
	}
}

// The balances of both sides have as many stages, and ours has all layers.
func TestPairingsAreSound(t *testing.T) {
	for _, p := range pairings() {
		layers := 0
		for _, n := range p.Balance {
			layers += n
		}
		if want := len(mustBuild(t, p.workload()).Layers()); layers != want || len(p.Modules) != len(p.Balance) {
			t.Errorf("%s, %s: %v and %v of %d layers", p.Model, p.Schedule, p.Balance, p.Modules, want)
		}
	}
}

func TestApart(t *testing.T) {
	for _, row := range []struct {
		a, b []float64
		want float64
	}{
		{[]float64{1, 2}, []float64{1, 2}, 0},
		{[]float64{1, 2.5, 3}, []float64{1.25, 2, 3}, 0.5},
		{[]float64{1}, []float64{math.NaN()}, math.Inf(1)},
	} {
		if got := apart(row.a, row.b); got != row.want {
			t.Errorf("%v and %v are %v apart, want %v", row.a, row.b, got, row.want)
		}
	}
}

// The targets and the line of a pairing, with and without the other side.
func TestProcessesReport(t *testing.T) {
	alone := processesResult{Model: "gpt", Schedule: "gpipe", Slower: spread{Median: 1.06}, Costlier: spread{Median: 1.04}, faster: 1.5}
	beside := alone
	beside.Slower.Median, beside.Costlier.Median = 1.05, 1.07
	beside.Theirs = &theirs{Name: "PyTorch 2.6", Faster: spread{Median: 1.6}, Cheaper: spread{Median: 1.4}, Apart: 2e-5}
	broken := alone
	broken.Theirs = &theirs{Error: "RuntimeError: no"}
	r := &report{Processes: []processesResult{alone, beside, broken}}
	var met []bool
	for _, x := range processesTargets(r.Processes) {
		met = append(met, x.Met)
	}
	if want := []bool{false, true, true, false, true, false, false, false, true, false, false}; fmt.Sprint(met) != fmt.Sprint(want) {
		t.Errorf("met are %v, want %v", met, want)
	}
	var b strings.Builder
	if err := r.write(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"2 processes", "2.0e-05", "failed: RuntimeError: no"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
}

func TestRunRefusesWhatIsNoChroot(t *testing.T) {
	t.Chdir("../..")
	empty, temporary := t.TempDir(), t.TempDir()
	t.Setenv("TMPDIR", temporary)
	err := run(context.Background(), selection{processesPart}, effort{}, "text", opponents{chroot: empty}, io.Discard)
	if err == nil || !strings.Contains(err.Error(), empty+" has no python3-torch") {
		t.Errorf("got %v", err)
	}
	if left, err := os.ReadDir(temporary); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
