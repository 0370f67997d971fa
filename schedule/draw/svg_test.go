package draw_test

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	_ "penstock.example/internal/draws" // sets the number of draws
	"penstock.example/schedule"
	"penstock.example/schedule/draw"
)

// parts is the duration of an action where both parts of a backward take as long as a forward.
func parts(a schedule.Action) time.Duration {
	if a.Kind == schedule.Backward {
		return 2 * time.Millisecond
	}
	return schedule.Unit(a)
}

func simulated(t rapid.TB, name string, devices, virtual, microBatches int) schedule.Timeline {
	t.Helper()
	s, err := schedule.Named(name)
	if err != nil {
		t.Fatal(err)
	}
	workers, err := s.Workers(devices, virtual)
	if err != nil {
		t.Fatal(err)
	}
	p, err := s.Generate(schedule.Config{Stages: len(workers), MicroBatches: microBatches, Worker: workers})
	if err != nil {
		t.Fatal(err)
	}
	timeline, err := schedule.Simulate(p, parts)
	if err != nil {
		t.Fatal(err)
	}
	return timeline
}

// read returns the texts of an SVG and counts its elements, which must be well formed.
func read(t rapid.TB, svg []byte) (texts []string, elements map[string]int) {
	t.Helper()
	elements = map[string]int{}
	d := xml.NewDecoder(bytes.NewReader(svg))
	for {
		token, err := d.Token()
		if err == io.EOF {
			return texts, elements
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, svg)
		}
		switch token := token.(type) {
		case xml.StartElement:
			elements[token.Name.Local]++
		case xml.CharData:
			if text := strings.TrimSpace(string(token)); text != "" {
				texts = append(texts, text)
			}
		}
	}
}

// Reductions are thin bars above what their worker does meanwhile, which they do not make busier.
func TestSVGOfReductions(t *testing.T) {
	p, err := schedule.BreadthFirst(schedule.Config{Stages: 4, MicroBatches: 2, Worker: []int{0, 1, 0, 1}})
	if err != nil {
		t.Fatal(err)
	}
	took := func(reduction time.Duration) schedule.Timeline {
		timeline, err := schedule.Simulate(schedule.AddReduce(p), func(a schedule.Action) time.Duration {
			if a.Kind == schedule.Reduce {
				return reduction
			}
			return parts(a)
		})
		if err != nil {
			t.Fatal(err)
		}
		return timeline
	}
	texts, elements := read(t, draw.SVG(took(3*time.Millisecond), draw.Options{}))
	if !slices.Contains(texts, "gradient reduction") || !slices.Contains(texts, "idle 33.3 %") {
		t.Errorf("%q", texts)
	}
	// Sixteen computations, four reductions, two rows, the page, three colours.
	if elements["title"] != 16 || elements["rect"] != 16+4+2+1+3 {
		t.Errorf("%v", elements)
	}
	// They are drawn over what goes on meanwhile: no computation of the row comes later.
	for _, row := range strings.Split(string(draw.SVG(took(3*time.Millisecond), draw.Options{})), "<path")[:2] {
		if last := strings.LastIndex(row, "<title>"); strings.Count(row[last:], `height="4"`) != 2 {
			t.Errorf("two reductions do not follow the last computation in\n%s", row)
		}
	}
	if texts, _ := read(t, draw.SVG(took(0), draw.Options{})); slices.Contains(texts, "gradient reduction") {
		t.Errorf("the legend names what takes no time: %q", texts)
	}
}

func TestSVG(t *testing.T) {
	texts, elements := read(t, draw.SVG(simulated(t, "zb-v", 2, 2, 4), draw.Options{Title: "zb-v <2>", Workers: []string{"", "cpu:1"}}))
	all := "\n" + strings.Join(texts, "\n") + "\n"
	for _, want := range []string{"zb-v <2>", "device 0", "cpu:1", "forward", "gradient of the input", "gradients of the weights", "idle 4.0 %",
		"at most 4 held", "lighter: later stages of a device", "3I0: backward of the input, stage 3, micro-batch 0, from 4 ms to 5 ms"} {
		if !strings.Contains(all, "\n"+want+"\n") {
			t.Errorf("%q is not among %q", want, texts)
		}
	}
	if strings.Contains(all, "\nbackward\n") || strings.Contains(all, "\ntransfer\n") {
		t.Errorf("the legend names kinds that there are none of: %q", texts)
	}
	// 48 computations, each with what it is; two rows, the page, three colours; a curve for each
	// device.
	if elements["title"] != 48 || elements["rect"] != 48+2+1+3 || elements["path"] != 2 {
		t.Errorf("%v", elements)
	}
}

// The curve below a device is, at any time, as high as there are micro-batches of a stage between the
// start of their forward and the end of their backward or its second part; at most it is what
// schedule.InFlight counts.
func TestCurveIsWhatIsHeld(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.SampledFrom(schedule.Schedules()).Draw(t, "schedule")
		p, err := s.Program(rapid.IntRange(1, 4).Draw(t, "devices"), 0, schedule.Config{MicroBatches: rapid.IntRange(1, 9).Draw(t, "micro-batches")})
		if err != nil {
			t.Fatal(err)
		}
		timeline, err := schedule.Simulate(p, parts)
		if err != nil {
			t.Fatal(err)
		}
		svg := draw.SVG(timeline, draw.Options{})
		texts, _ := read(t, svg)
		var most []int
		peak := 0
		for _, text := range texts {
			var n int
			if _, err := fmt.Sscanf(text, "at most %d held", &n); err == nil {
				most, peak = append(most, n), max(peak, n)
			}
		}
		for w, held := range schedule.InFlight(p, nil) {
			if int64(most[w]) != held {
				t.Fatalf("device %d holds at most %d, want %d", w, most[w], held)
			}
		}
		curves := regexp.MustCompile(`<path d="M([0-9.]+) ([0-9.]+)((?:H[0-9.]+V[0-9.]+)*)H([0-9.]+)V`).FindAllStringSubmatch(string(svg), -1)
		number := func(text string) float64 {
			x, err := strconv.ParseFloat(text, 64)
			if err != nil {
				t.Fatal(err)
			}
			return x
		}
		highest := 0.0 // above its base line is a curve where peak are held
		for _, c := range curves {
			for _, step := range regexp.MustCompile(`V([0-9.]+)`).FindAllStringSubmatch(c[3], -1) {
				highest = max(highest, number(c[2])-number(step[1]))
			}
		}
		for at := time.Millisecond / 2; at < timeline.Makespan(); at += time.Millisecond {
			want := make([]int, len(p.Workers))
			for _, e := range timeline.Events {
				switch e.Action.Kind {
				case schedule.Forward:
					if e.Start < at {
						want[e.Worker]++
					}
				case schedule.Backward, schedule.BackwardWeight:
					if e.End < at {
						want[e.Worker]--
					}
				}
			}
			for w, c := range curves {
				left, right := number(c[1]), number(c[4])
				here, level := left+(right-left)*float64(at)/float64(timeline.Makespan()), 0.0
				for _, step := range regexp.MustCompile(`H([0-9.]+)V([0-9.]+)`).FindAllStringSubmatch(c[3], -1) {
					if number(step[1]) <= here {
						level = number(c[2]) - number(step[2])
					}
				}
				if got := level / highest * float64(peak); math.Abs(got-float64(want[w])) > 0.05 {
					t.Fatalf("%s: at %v the curve of device %d is at %.2f, want %d\n%v", s.Name, at, w, got, want[w], p)
				}
			}
		}
	})
}

// A recorded step shows its bytes.
func TestSVGOfBytes(t *testing.T) {
	timeline := simulated(t, "1f1b", 2, 1, 3)
	for i := range timeline.Events {
		timeline.Events[i].Live = 3 << 20
		timeline.Events[i].End += time.Microsecond // transfers take time
	}
	texts, _ := read(t, draw.SVG(timeline, draw.Options{}))
	for _, want := range []string{"at most 3 MiB", "transfer", "Timeline"} {
		if all := "\n" + strings.Join(texts, "\n") + "\n"; !strings.Contains(all, "\n"+want+"\n") {
			t.Errorf("%q is not among %q", want, texts)
		}
	}
}

// Any timeline can be drawn, also one without events or without time.
func TestSVGOfAnything(t *testing.T) {
	read(t, draw.SVG(schedule.Timeline{}, draw.Options{}))
	read(t, draw.SVG(schedule.Timeline{Workers: 2}, draw.Options{}))
	read(t, draw.SVG(schedule.Timeline{Workers: 1, Events: []schedule.Event{{Action: schedule.Action{Kind: schedule.Forward}}}}, draw.Options{}))
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.SampledFrom(schedule.Schedules()).Draw(t, "schedule")
		virtual := max(s.Virtual, 1)
		timeline := simulated(t, s.Name, rapid.IntRange(1, 4).Draw(t, "devices"), virtual, rapid.IntRange(1, 9).Draw(t, "micro-batches"))
		_, elements := read(t, draw.SVG(timeline, draw.Options{}))
		computations := 0
		for _, e := range timeline.Events {
			if !e.Action.Kind.Transfer() {
				computations++
			}
		}
		if elements["title"] != computations {
			t.Fatalf("%d computations are drawn, of %d", elements["title"], computations)
		}
	})
}

// DRAW=directory writes pictures to look at.
func TestWrite(t *testing.T) {
	dir := os.Getenv("DRAW")
	if dir == "" {
		t.Skip("DRAW is not set")
	}
	for _, s := range schedule.Schedules() {
		virtual := s.Virtual
		if virtual == 0 {
			virtual = 2
		}
		if err := os.WriteFile(dir+"/"+s.Name+".svg", draw.SVG(simulated(t, s.Name, 4, virtual, 8), draw.Options{Title: s.Name + ", 4 devices, 8 micro-batches"}), 0o666); err != nil {
			t.Fatal(err)
		}
	}
}
