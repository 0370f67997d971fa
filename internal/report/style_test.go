package report_test

import (
	"fmt"
	"math"
	"os"
	"regexp"
	"testing"
	"time"

	"penstock.example/internal/draw"
	"penstock.example/internal/must"
	"penstock.example/schedule"
)

// palette is the colours of the page's style by name, of the light theme and of the dark one.
func palette(t *testing.T) map[string][2][3]float64 {
	t.Helper()
	text := must.Get(os.ReadFile("page/style.css"))(t)
	out := map[string][2][3]float64{}
	pair := regexp.MustCompile(`--([\w-]+): light-dark\(#(\w{6}), #(\w{6})\)`)
	for _, m := range pair.FindAllSubmatch(text, -1) {
		var both [2][3]float64
		for theme, code := range m[2:] {
			both[theme] = intensities(string(code))
		}
		out[string(m[1])] = both
	}
	return out
}

// intensities are the linear red, green and blue of a code such as 0072b2.
func intensities(code string) (out [3]float64) {
	var rgb [3]uint8
	fmt.Sscanf(code, "%2x%2x%2x", &rgb[0], &rgb[1], &rgb[2])
	for i, c := range rgb {
		if s := float64(c) / 255; s <= 0.04045 {
			out[i] = s / 12.92
		} else {
			out[i] = math.Pow((s+0.055)/1.055, 2.4)
		}
	}
	return out
}

// contrast is the contrast ratio of WCAG 2.
func contrast(a, b [3]float64) float64 {
	luminance := func(c [3]float64) float64 { return 0.2126*c[0] + 0.7152*c[1] + 0.0722*c[2] }
	x, y := luminance(a), luminance(b)
	return (max(x, y) + 0.05) / (min(x, y) + 0.05)
}

// distance is the difference of two colours to the eye, in CIELAB.
func distance(a, b [3]float64) float64 {
	lab := func(c [3]float64) [3]float64 {
		x := math.Cbrt((0.4124*c[0] + 0.3576*c[1] + 0.1805*c[2]) / 0.95047)
		y := math.Cbrt(0.2126*c[0] + 0.7152*c[1] + 0.0722*c[2])
		z := math.Cbrt((0.0193*c[0] + 0.1192*c[1] + 0.9505*c[2]) / 1.08883)
		return [3]float64{116 * y, 500 * (x - y), 200 * (y - z)}
	}
	p, q := lab(a), lab(b)
	return math.Hypot(math.Hypot(p[0]-q[0], p[1]-q[1]), p[2]-q[2])
}

// Text can be read on what is behind it, in both themes.
func TestContrast(t *testing.T) {
	colours := palette(t)
	for _, pair := range [][2]string{{"on-forward", "forward"}, {"on-recompute", "recompute"},
		{"on-backward", "backward"}, {"on-input", "input"}, {"on-weight", "weight"}, {"text", "card"},
		{"text", "page"}, {"text", "hover"},
		{"muted", "card"}, {"muted", "page"}, {"accent", "page"}, {"limit", "card"}, {"kept", "kept-bg"},
		{"again", "again-bg"}} {
		for theme, name := range []string{"light", "dark"} {
			if got := contrast(colours[pair[0]][theme], colours[pair[1]][theme]); got < 4.5 {
				t.Errorf("%s: %s on %s has a contrast of %.2f, want 4.5", name, pair[0], pair[1], got)
			}
		}
	}
}

// Labels of pictures can be read on any shade of any kind of action.
func TestContrastOfPictures(t *testing.T) {
	var timeline schedule.Timeline
	kinds := []schedule.Kind{schedule.Forward, schedule.Recompute, schedule.Backward, schedule.BackwardInput,
		schedule.BackwardWeight}
	for i := range 20 * len(kinds) {
		start := time.Duration(i) * time.Second
		timeline.Events = append(timeline.Events, schedule.Event{Start: start, End: start + time.Second,
			Action: schedule.Action{Kind: kinds[i%len(kinds)], Stage: i / len(kinds)}})
	}
	timeline.Workers = 1
	label := regexp.MustCompile(`fill="#(\w{6})"><title>.*</rect>\n<text.* fill="#(\w{6})"`)
	labels := label.FindAllStringSubmatch(string(draw.SVG(timeline, draw.Options{})), -1)
	if len(labels) != len(timeline.Events) {
		t.Fatalf("%d labels of %d actions", len(labels), len(timeline.Events))
	}
	for i, m := range labels {
		if got := contrast(intensities(m[1]), intensities(m[2])); got < 4.5 {
			t.Errorf("%v: #%s on #%s has a contrast of %.2f, want 4.5", timeline.Events[i].Action, m[2],
				m[1], got)
		}
	}
}

// A device does not look like an action, the limit or another device.
func TestDeviceColours(t *testing.T) {
	colours := palette(t)
	for theme, name := range []string{"light", "dark"} {
		for i := range 8 {
			device := fmt.Sprintf("series-%d", i)
			others := []string{"forward", "recompute", "backward", "input", "weight", "transfer", "reduce",
				"limit",
				"card"}
			for j := range i {
				others = append(others, fmt.Sprintf("series-%d", j))
			}
			for _, other := range others {
				if got := distance(colours[device][theme], colours[other][theme]); !(got >= 15) {
					t.Errorf("%s: %s differs from %s by %.0f, want 15", name, device, other, got)
				}
			}
		}
	}
}
