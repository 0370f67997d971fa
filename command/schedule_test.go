package command

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	noerr "penstock.example/internal/must"
	"penstock.example/schedule"
)

// What is printed is read back by check, in either form.
func TestScheduleFormats(t *testing.T) {
	for _, s := range schedule.Schedules() {
		args := []string{"schedule", s.Name, "--stages", "3", "--chunks", "5"}
		for _, format := range []string{"text", "csv"} {
			text := must(t, with(args, "--format", format)...).stdout
			got := piped(t, text, "schedule", "check", "-")
			if got.code != exitDone || !strings.HasPrefix(got.stdout, "the program can run: ") ||
				!strings.Contains(got.stdout, "on 3 devices, 5 micro-batches\nheld at most: ") {
				t.Errorf("%s as %s: %+v", s.Name, format, got)
			}
		}
		svg := must(t, with(args, "--format", "svg")...).stdout
		if !strings.HasPrefix(svg, "<svg") || !strings.Contains(svg, s.Name+": ") {
			t.Errorf("%s: no picture, or no title", s.Name)
		}
	}
}

func TestScheduleGrid(t *testing.T) {
	got := must(t, "schedule", "1f1b", "--stages", "2", "--chunks", "3").stdout
	want := `1f1b: a step takes 12, of which devices are idle for 25.0 %
worker 0  F0 F1 .  .  B0--- F2 B1--- .  B2---
worker 1  .  F0 B0--- F1 B1--- F2 B2--- .  .
held at most: 2 1
`
	if got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}

func TestScheduleCheck(t *testing.T) {
	stuck := textFile(t, "stuck.csv", "0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n")
	refuses(t, []string{"schedule", "check", stuck}, exitFailed, "stuck.csv: the program cannot run",
		"deadlock: worker 0, action 3, 1>0B0: it waits for 1B0>0 on worker 1")
	broken := textFile(t, "broken.txt", "program whole stages=2 micro-batches=1\nworker 0: 0F0 0X0\n")
	refuses(t, []string{"schedule", "check", broken}, exitUsage, `broken.txt: line 2, word 4: action "0X0"`)
}

// What links cost delays what needs them: 1F1B on two devices with 10 + 20 ms for each of 2
// micro-batches, a latency of 1 ms and 4 ms for 5 MB at 1.25 GB/s, so that values arrive 5 ms after
// they were sent:
//
//	device 0  0 F0 10 F1 20                  50 B0 70     80 B1 100
//	device 1             15 F0 25 B0 45 F1 55 B1 75
func TestScheduleLinks(t *testing.T) {
	args := []string{"schedule", "1f1b", "--stages", "2", "--chunks", "2", "--times", "f=10,i=14,w=6"}
	for flags, want := range map[string]string{
		"":               "takes 90, of which devices are idle for 33.3 %",
		"--latency 1ms ": "takes 92, of which devices are idle for 34.8 %",
		"--latency 1000us --bandwidth 10Gbit/s --activation 5MB": "takes 100, of which devices are idle " +
			"for 40.0 %",
	} {
		if got := must(t, with(args, strings.Fields(flags)...)...).stdout; !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %s", flags, got, want)
		}
	}
}

// The fastest comes first, also with the times of a chain, whose stages are cut evenly.
func TestScheduleCompare(t *testing.T) {
	compared := func(args ...string) (lines []comparedSchedule) {
		got := must(t, with([]string{"schedule", "compare", "--format", "json"}, args...)...)
		noerr.Do(t, json.Unmarshal([]byte(got.stdout), &lines))
		return lines
	}
	names := func(lines []comparedSchedule) (out []string) {
		for i, l := range lines {
			out = append(out, l.Schedule)
			if i > 0 && l.Makespan < lines[i-1].Makespan {
				t.Errorf("%+v comes after %+v", l, lines[i-1])
			}
		}
		return out
	}
	// Bubbles of 24, 27, 28, 36, 45, 54 and 90 in 480, as an independent simulator has them.
	lines := compared("--stages", "4", "--chunks", "16", "--times", "f=10,i=14,w=6")
	if got, want := strings.Join(names(lines),
		" "), "zb-v interleaved-zb dualpipe-v zb-h2 interleaved bfs zb-h1 1f1b 1f1b-2x gpipe"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if l := lines[0]; l.Makespan != 504 || l.Virtual != 2 || !slices.Equal(l.Held, []float64{4, 4, 4, 4}) {
		t.Errorf("%+v", l)
	}
	// Six layers of 1 + 2 ms on 2 devices, and a loss of 0.1 ms.
	for _, l := range compared("--stages", "2", "--chunks", "3", "--profile", chainFile(t)) {
		if len(l.Peak) != 2 || slices.Min(l.Peak) <= 0 {
			t.Errorf("%+v", l)
		}
		if l.Schedule == "gpipe" && (l.Makespan != 36300 || !slices.Equal(l.Balance, []int{3, 3})) {
			t.Errorf("%+v", l)
		}
	}
	// Of six layers four devices have one stage each and no more; what is left out is said.
	got := must(t, "schedule", "compare", "--stages", "4", "--chunks", "3", "--profile", chainFile(t))
	if !strings.HasPrefix(got.stderr, "bfs is left out, as the chain has 6 layers\n") ||
		strings.Count(got.stderr, "\n") != 5 || strings.Count(got.stdout, "\n") != 6 {
		t.Errorf("%+v", got)
	}
	table := must(t, "schedule", "compare", "--stages", "2", "--chunks", "3").stdout
	if !strings.HasPrefix(table, "SCHEDULE") || strings.Count(table, "\n") != len(schedule.Schedules())+1 {
		t.Error(table)
	}
}
