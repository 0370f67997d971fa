// Package draw draws a [schedule.Timeline], simulated or recorded, as an SVG.
package draw

import (
	"cmp"
	"fmt"
	"html"
	"slices"
	"strings"
	"time"

	"penstock.example/schedule"
)

// Options are the texts of a picture.
type Options struct {
	Title   string                     // "" is "Timeline"
	Workers []string                   // names; nil is device 0, 1 and so on
	Time    func(time.Duration) string // nil writes milliseconds
	Bytes   func(int64) string         // nil writes MiB
}

// Sizes in pixels.
const (
	right       = 120 // margin, for a worker's idle share and peak
	top, bottom = 84, 44
	step        = 1200   // width of a step
	row, curve  = 26, 22 // heights
	gap         = 16
)

// SVG draws a timeline, which must be valid. Each worker has a row of its computations, with a
// colour for each kind, a shade for each of its stages, and the number of the micro-batch if it
// fits. Transfers that take time and reductions are thin bars. If events have live bytes, their
// curve is below the row. To the right of a row are the worker's idle share and peak memory.
func SVG(t schedule.Timeline, o Options) []byte {
	p := newPicture(t, o)
	p.head()
	p.legend()
	for w := range t.Workers {
		p.worker(w)
	}
	p.axis()
	p.b.WriteString("</svg>\n")
	return []byte(p.b.String())
}

type picture struct {
	b          strings.Builder
	o          Options
	t          schedule.Timeline
	events     [][]schedule.Event // by worker and start
	shades     map[int]float64    // by stage: how much of its colour is white
	start, end time.Duration
	left       int   // margin, for the names of workers
	peak       int64 // the greatest of all workers, in bytes
}

func newPicture(t schedule.Timeline, o Options) *picture {
	p := &picture{o: o, t: t, events: make([][]schedule.Event, t.Workers), shades: map[int]float64{},
		left: 96}
	for i, e := range t.Events {
		p.events[e.Worker] = append(p.events[e.Worker], e)
		if i == 0 {
			p.start = e.Start
		}
		p.start, p.end, p.peak = min(p.start, e.Start), max(p.end, e.End), max(p.peak, e.Live)
	}
	for w, list := range p.events {
		slices.SortStableFunc(list, func(a, b schedule.Event) int { return cmp.Compare(a.Start, b.Start) })
		var stages []int
		for _, e := range list {
			if !e.Action.Kind.Transfer() {
				stages = append(stages, e.Action.Stage)
			}
		}
		slices.Sort(stages)
		stages = slices.Compact(stages)
		for i, s := range stages {
			p.shades[s] = 0.6 * float64(i) / float64(max(len(stages)-1, 1))
		}
		p.left = max(p.left, 24+7*len(p.name(w)))
	}
	if o.Time == nil {
		p.o.Time = func(d time.Duration) string { return fmt.Sprintf("%.3g ms", 1e3*d.Seconds()) }
	}
	if o.Bytes == nil {
		p.o.Bytes = func(n int64) string { return fmt.Sprintf("%.3g MiB", float64(n)/(1<<20)) }
	}
	return p
}

func (p *picture) x(at time.Duration) float64 {
	return float64(p.left) + step*float64(at-p.start)/float64(max(p.end-p.start, 1))
}

func (p *picture) y(w int) int { return top + w*(row+curve+gap) }

func (p *picture) name(w int) string {
	if p.o.Workers != nil {
		return p.o.Workers[w]
	}
	return fmt.Sprintf("device %d", w)
}

func (p *picture) printf(format string, args ...any) { fmt.Fprintf(&p.b, format+"\n", args...) }

func (p *picture) text(x, y float64, size int, anchor, colour, text string) {
	p.printf(`<text x="%.1f" y="%.1f" font-size="%d" text-anchor="%s" fill="%s">%s</text>`, x, y, size,
		anchor, colour, html.EscapeString(text))
}

func (p *picture) head() {
	width, height := p.left+step+right, p.y(p.t.Workers)+bottom
	p.printf(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" `+
		`font-family="Helvetica, Arial, sans-serif" font-size="12">`, width, height)
	p.printf(`<rect width="%d" height="%d" fill="#ffffff"/>`, width, height)
	p.text(float64(p.left), 26, 17, "start", "#111111", cmp.Or(p.o.Title, "Timeline"))
	idle := 0.0
	for w := range p.t.Workers {
		idle += p.t.Idle(w) / float64(p.t.Workers)
	}
	p.text(float64(p.left), 46, 12, "start", "#555555",
		fmt.Sprintf("step %s, devices idle for %.1f %% of it", p.o.Time(p.end-p.start), 100*idle))
}

// legend names the colours of the kinds in the timeline.
func (p *picture) legend() {
	there, several := map[style]bool{}, false
	for _, e := range p.t.Events {
		if !thin(e.Action.Kind) || e.End > e.Start {
			there[styleOf(e.Action.Kind)] = true
		}
		several = several || p.shades[e.Action.Stage] > 0
	}
	x := float64(p.left)
	for _, s := range styles {
		if there[s] {
			p.printf(`<rect x="%.1f" y="58" width="12" height="12" rx="2" fill="%s"/>`, x, s.colour.hex(0))
			p.text(x+17, 68, 12, "start", "#333333", s.name)
			x += 17 + 6.6*float64(len(s.name)) + 18
		}
	}
	if several {
		p.text(x, 68, 12, "start", "#777777", "lighter: later stages of a device")
	}
}

func (p *picture) worker(w int) {
	y := p.y(w)
	p.text(float64(p.left-10), float64(y+17), 12, "end", "#111111", p.name(w))
	p.text(float64(p.left+step+10), float64(y+17), 12, "start", "#555555",
		fmt.Sprintf("idle %.1f %%", 100*p.t.Idle(w)))
	p.printf(`<rect x="%d" y="%d" width="%d" height="%d" fill="#f1f1f1"/>`, p.left, y, step, row)
	for _, reductions := range []bool{false, true} { // drawn last, over the computations beside them
		for _, e := range p.events[w] {
			if (e.Action.Kind == schedule.Reduce) == reductions && e.Start < e.End {
				p.event(e, y)
			}
		}
	}
	if p.peak > 0 {
		p.memory(w, y+row+2)
	}
}

// memory draws the live bytes of a worker, all workers on one scale.
func (p *picture) memory(w, y int) {
	events := slices.Clone(p.events[w])
	slices.SortStableFunc(events, func(a, b schedule.Event) int { return cmp.Compare(a.End, b.End) })
	var most int64
	path := fmt.Sprintf("M%.2f %d", p.x(p.start), y+curve)
	for _, e := range events {
		if e.Action.Kind != schedule.Reduce || e.Live != 0 {
			most = max(most, e.Live)
			path += fmt.Sprintf("H%.2fV%.2f", p.x(e.End),
				float64(y+curve)-float64(curve-2)*float64(max(e.Live, 0))/float64(p.peak))
		}
	}
	p.printf(`<path d="%sH%.2fV%dZ" fill="#b9c4d6" stroke="#5d6f8c" stroke-width="0.8"/>`, path, p.x(p.end),
		y+curve)
	p.text(float64(p.left+step+10), float64(y+14), 12, "start", "#555555", "at most "+p.o.Bytes(most))
}

// thin reports whether a kind is drawn as a thin bar.
func thin(k schedule.Kind) bool { return k.Transfer() || k == schedule.Reduce }

func (p *picture) event(e schedule.Event, y int) {
	x, width := p.x(e.Start), p.x(e.End)-p.x(e.Start)
	colour, shade := styleOf(e.Action.Kind).colour, p.shades[e.Action.Stage]
	if thin(e.Action.Kind) {
		if e.Action.Kind != schedule.Reduce {
			y += row - 4
		}
		p.printf(`<rect x="%.2f" y="%d" width="%.2f" height="4" fill="%s"/>`, x, y, width, colour.hex(0))
		return
	}
	edge := min(0.6, width/8) // a line between adjacent actions
	title := fmt.Sprintf("%v: %s, from %s to %s", e.Action, e.Action.Words(), p.o.Time(e.Start-p.start),
		p.o.Time(e.End-p.start))
	p.printf(`<rect x="%.2f" y="%d" width="%.2f" height="%d" fill="%s"><title>%s</title></rect>`, x, y,
		width-edge, row, colour.hex(shade), html.EscapeString(title))
	if label := fmt.Sprint(e.Action.MicroBatch); width > 7*float64(len(label))+3 {
		p.text(x+(width-edge)/2, float64(y+17), 11, "middle", colour.ink(shade), label)
	}
}

// tickInterval returns a round time between ticks, at most ten for an axis of this length.
func tickInterval(length time.Duration) time.Duration {
	for unit := time.Duration(1); ; unit *= 10 {
		for _, n := range []time.Duration{1, 2, 5} {
			if length <= 10*n*unit {
				return n * unit
			}
		}
	}
}

func (p *picture) axis() {
	const line = `<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="#999999"/>`
	y := p.y(p.t.Workers) - gap + 10
	p.printf(line, float64(p.left), y, float64(p.left+step), y)
	every := tickInterval(p.end - p.start)
	for at := p.start; at <= p.end; at += every {
		p.printf(line, p.x(at), y, p.x(at), y+5)
		p.text(p.x(at), float64(y+19), 11, "middle", "#555555", p.o.Time(at-p.start))
	}
}
