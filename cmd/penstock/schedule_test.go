package main

import (
	"encoding/json"
	"encoding/xml"
	"io"
	"math"
	"slices"
	"strings"
	"testing"

	"penstock.example/schedule"
)

func TestScheduleJSON(t *testing.T) {
	for _, test := range []struct {
		args             []string
		held             []int
		makespan, bubble float64
		first            string // of device 0, at the beginning
	}{
		{[]string{"gpipe", "--stages", "4", "--chunks", "8"}, []int{8, 8, 8, 8}, 33, 3. / 11, "0F0 0F1 0F2 0F3"},
		{[]string{"1f1b", "--stages", "4", "--chunks", "8"}, []int{4, 3, 2, 1}, 33, 3. / 11, "0F0 0F1 0F2 0F3 0B0 0F4"},
		{[]string{"zb-h1", "--stages", "4", "--chunks", "8"}, []int{4, 4, 4, 4}, 27, 1. / 9, "0F0 0F1 0F2 0F3 0I0 0W0"},
		{[]string{"zb-v", "--stages", "4", "--chunks", "16"}, []int{8, 8, 8, 8}, 99, 3. / 99, "0F0 0F1"},
		{[]string{"interleaved", "--stages", "4", "--virtual", "2", "--chunks", "16", "--times", "f=10,i=14,w=6"},
			[]int{11, 9, 7, 5}, 1050, 90. / 1050, "0F0 0F1 0F2 0F3 4F0"},
		{[]string{"1f1b", "--stages", "2", "--chunks", "1", "--times", "f=0.25,w=0"}, []int{1, 1}, 2.5, 0.5, "0F0 0B0"},
	} {
		got := must(t, with([]string{"schedule"}, with(test.args, "--format", "json")...)...)
		var line scheduleLine
		d := json.NewDecoder(strings.NewReader(got.stdout))
		d.DisallowUnknownFields()
		if err := d.Decode(&line); err != nil {
			t.Fatal(err)
		}
		if line.Schedule != test.args[0] || !slices.Equal(line.Held, test.held) || line.Makespan != test.makespan || math.Abs(line.Bubble-test.bubble) > 1e-12 {
			t.Errorf("%v: %+v, want %v, %v, %v", test.args, line, test.held, test.makespan, test.bubble)
		}
		if list := strings.Join(line.Workers[0], " "); !strings.HasPrefix(list, test.first) || strings.Contains(list, ">") {
			t.Errorf("%v: device 0 does %s, want %s first", test.args, list, test.first)
		}
	}
}

// What is printed is read back by check, in either form.
func TestScheduleFormats(t *testing.T) {
	for _, s := range schedule.Schedules() {
		args := []string{"schedule", s.Name, "--stages", "3", "--chunks", "5"}
		for _, format := range []string{"text", "csv"} {
			text := must(t, with(args, "--format", format)...).stdout
			got := piped(t, text, "schedule", "check", "-")
			if got.code != exitDone || !strings.HasPrefix(got.stdout, "the program can run on links of any kind: ") || !strings.Contains(got.stdout, "on 3 devices, 5 micro-batches\nheld at most: ") {
				t.Errorf("%s as %s: %+v", s.Name, format, got)
			}
		}
		svg := must(t, with(args, "--format", "svg")...).stdout
		d := xml.NewDecoder(strings.NewReader(svg))
		for {
			_, err := d.Token()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v", s.Name, err)
			}
		}
		if !strings.Contains(svg, s.Name+": 3 devices") {
			t.Errorf("%s: no title", s.Name)
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
	refuses(t, []string{"schedule", "check", stuck}, exitFailed, "stuck.csv: the program cannot run", "deadlock: worker 0, action 3, 1>0B0: it waits for 1B0>0 on worker 1")
	broken := textFile(t, "broken.txt", "program whole stages=2 micro-batches=1\nworker 0: 0F0 0X0\n")
	refuses(t, []string{"schedule", "check", broken}, exitUsage, `broken.txt: line 2, word 4: action "0X0"`)
	// Links that meet or keep order ask for more than links that hold values by name.
	got := piped(t, "program whole stages=2 micro-batches=2\nworker 0: 0F0 0F0>1 0F1 0F1>1 1>0B0 0B0 1>0B1 0B1\n"+
		"worker 1: 0>1F0 1F0 1B0 1B0>0 0>1F1 1F1 1B1 1B1>0\n", "schedule", "check", "-")
	if got.code != exitDone || !strings.HasPrefix(got.stdout, "the program can run on links that hold values, not on links that meet: 2 stages") {
		t.Errorf("%+v", got)
	}
}

// What links cost delays what needs them: 1F1B on two devices with 10 + 20 ms for each of 2
// micro-batches, a latency of 1 ms and 4 ms for 5 MB at 1.25 GB/s, so that values arrive 5 ms after
// they were sent:
//
//	device 0  0 F0 10 F1 20                  50 B0 70     80 B1 100
//	device 1             15 F0 25 B0 45 F1 55 B1 75
//
// At 100 Mbit/s a value takes 400 ms, and the second leaves when the first has. Device 1 receives F1
// before it sends B0, so that links may meet: at 810. So B0 arrives at 1210, and B1 at 1610.
func TestScheduleLinks(t *testing.T) {
	args := []string{"schedule", "1f1b", "--stages", "2", "--chunks", "2", "--times", "f=10,i=14,w=6"}
	for _, tt := range []struct {
		flags []string
		want  float64
	}{
		{nil, 90}, {[]string{"--latency", "1ms"}, 92}, {[]string{"--latency", "1ms", "--bandwidth", "1.25GB/s", "--activation", "5MB"}, 100},
		{[]string{"--latency", "1000us", "--bandwidth", "10Gbit/s", "--activation", "5MB"}, 100},
		{[]string{"--latency", "0s", "--bandwidth", "100Mbit/s", "--activation", "5MB"}, 1630},
	} {
		got := must(t, with(with(args, "--format", "json"), tt.flags...)...).stdout
		var line scheduleLine
		if err := json.Unmarshal([]byte(got), &line); err != nil {
			t.Fatal(err)
		}
		if math.Abs(line.Makespan-tt.want) > 1e-9 || math.Abs(line.Bubble-(1-120/(2*tt.want))) > 1e-9 {
			t.Errorf("%v: %v ms, bubble %v, want %v", tt.flags, line.Makespan, line.Bubble, tt.want)
		}
	}
	flags := []string{"--latency", "1ms", "--bandwidth", "1.25GB/s", "--activation", "5MB"}
	if got := must(t, with(args, flags...)...).stdout; !strings.HasPrefix(got, "1f1b, links of 1ms and 1.25 GB/s: a step takes 100, of which devices are idle for 40.0 %\n") {
		t.Error(got)
	}
}

// Replicas reduce the gradients of each stage after its last backward, beside what its device does
// next. On 2 devices of GPipe with 2 micro-batches device 1 has ended at 7 and device 0 at 9; a
// reduction takes 4.
func TestScheduleReplicas(t *testing.T) {
	args := []string{"schedule", "gpipe", "--stages", "2", "--chunks", "2"}
	replicas := with(args, "--replicas", "4", "--times", "r=4")
	var line scheduleLine
	if err := json.Unmarshal([]byte(must(t, with(replicas, "--format", "json")...).stdout), &line); err != nil {
		t.Fatal(err)
	}
	if line.Makespan != 13 || math.Abs(line.Bubble-7./13) > 1e-12 || strings.Join(line.Workers[1], " ") != "1F0 1F1 1B0 1B1 1RED" {
		t.Errorf("%+v", line)
	}
	want := `gpipe: a step takes 13, of which devices are idle for 53.8 %
worker 0  F0  F1  .   .   .   B0----- B1----- .   .   .   .
                                              RED------------
worker 1  .   F0  F1  B0----- B1----- .   .   .   .   .   .
                                      RED------------
held at most: 2 2
`
	if got := must(t, replicas...).stdout; got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	text := must(t, with(replicas, "--format", "text")...).stdout
	if got := piped(t, text, "schedule", "check", "-"); got.code != exitDone || !strings.Contains(strings.ReplaceAll(got.stdout, "\n", " "), "2 micro-batches, gradients reduced over replicas held at most:") {
		t.Errorf("%+v", got)
	}
}

// The fastest comes first, also with the times of a chain, whose stages are cut evenly.
func TestScheduleCompare(t *testing.T) {
	compared := func(args ...string) (lines []comparedSchedule) {
		got := must(t, with([]string{"schedule", "compare", "--format", "json"}, args...)...)
		if err := json.Unmarshal([]byte(got.stdout), &lines); err != nil {
			t.Fatal(err)
		}
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
	if got, want := strings.Join(names(lines), " "), "zb-v interleaved-zb dualpipe-v zb-h2 interleaved bfs zb-h1 1f1b 1f1b-2x gpipe"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if l := lines[0]; l.Makespan != 504 || l.Virtual != 2 || !slices.Equal(l.Held, []float64{4, 4, 4, 4}) {
		t.Errorf("%+v", l)
	}
	// Six layers of 1 + 2 ms on 2 devices; two devices hold 12 and 30 MiB of GPipe's three
	// micro-batches each.
	for _, l := range compared("--stages", "2", "--chunks", "3", "--profile", chainFile(t)) {
		if len(l.Peak) != 2 || slices.Min(l.Peak) <= 0 {
			t.Errorf("%+v", l)
		}
		if l.Schedule == "gpipe" && (l.Makespan != 36000 || !slices.Equal(l.Held, []float64{36 << 20, 90 << 20})) {
			t.Errorf("%+v", l)
		}
	}
	// Of six layers four devices have one stage each and no more; what is left out is said.
	got := must(t, "schedule", "compare", "--stages", "4", "--chunks", "3", "--profile", chainFile(t))
	if !strings.HasPrefix(got.stderr, "bfs is left out, as the chain has 6 layers\n") || strings.Count(got.stderr, "\n") != 5 || strings.Count(got.stdout, "\n") != 6 {
		t.Errorf("%+v", got)
	}
	table := must(t, "schedule", "compare", "--stages", "2", "--chunks", "3").stdout
	if !strings.HasPrefix(table, "SCHEDULE") || strings.Count(table, "\n") != len(schedule.Schedules())+1 {
		t.Error(table)
	}
}
