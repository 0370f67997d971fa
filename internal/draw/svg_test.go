package draw_test

import (
	"bytes"
	"encoding/xml"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"penstock.example/internal/draw"
	_ "penstock.example/internal/draws" // sets the number of draws
	"penstock.example/internal/must"
	"penstock.example/schedule"
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
	s := must.Get(schedule.Named(name))(t)
	workers := must.Get(s.Workers(devices, virtual))(t)
	p, err := s.Generate(schedule.Config{Stages: len(workers), MicroBatches: microBatches, Worker: workers})
	must.Do(t, err)
	return must.Get(schedule.Simulate(p, parts))(t)
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
	bfs, _ := schedule.Named("bfs")
	p := must.Get(bfs.Program(2, 2, schedule.Config{MicroBatches: 2}))(t)
	took := func(reduction time.Duration) schedule.Timeline {
		return must.Get(schedule.Simulate(schedule.AddReduce(p), func(a schedule.Action) time.Duration {
			if a.Kind == schedule.Reduce {
				return reduction
			}
			return parts(a)
		}))(t)
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
	if svg := string(draw.SVG(took(3*time.Millisecond),
		draw.Options{})); strings.Count(svg[strings.LastIndex(svg, "<title>"):], `height="4"`) != 2 {
		t.Errorf("two reductions do not follow the last computation in\n%s", svg)
	}
	if texts, _ := read(t, draw.SVG(took(0), draw.Options{})); slices.Contains(texts, "gradient reduction") {
		t.Errorf("the legend names what takes no time: %q", texts)
	}
}

func TestSVG(t *testing.T) {
	texts, elements := read(t, draw.SVG(simulated(t, "zb-v", 2, 2, 4),
		draw.Options{Title: "zb-v <2>", Workers: []string{"device 0", "cpu:1"}}))
	all := "\n" + strings.Join(texts, "\n") + "\n"
	for _, want := range []string{"zb-v <2>", "device 0", "cpu:1", "forward", "gradient of the input",
		"gradients of the weights", "idle 4.0 %",
		"lighter: later stages of a device",
		"3I0: backward of the input, stage 3, micro-batch 0, from 4 ms to 5 ms"} {
		if !strings.Contains(all, "\n"+want+"\n") {
			t.Errorf("%q is not among %q", want, texts)
		}
	}
	if strings.Contains(all, "\nbackward\n") || strings.Contains(all, "\ntransfer\n") {
		t.Errorf("the legend names kinds that there are none of: %q", texts)
	}
	// 48 computations, each with what it is; two rows, the page, three colours.
	if elements["title"] != 48 || elements["rect"] != 48+2+1+3 || elements["path"] != 0 {
		t.Errorf("%v", elements)
	}
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
	read(t, draw.SVG(schedule.Timeline{Workers: 1,
		Events: []schedule.Event{{Action: schedule.Action{Kind: schedule.Forward}}}}, draw.Options{}))
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.SampledFrom(schedule.Schedules()).Draw(t, "schedule")
		virtual := max(s.Virtual, 1)
		timeline := simulated(t, s.Name, rapid.IntRange(1, 4).Draw(t, "devices"), virtual,
			rapid.IntRange(1, 9).Draw(t, "micro-batches"))
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
