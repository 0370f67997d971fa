// Package draw draws a [schedule.Timeline], simulated or recorded, as an SVG: who does what when,
// and how much memory that takes.
package draw

import (
	"cmp"
	"encoding/xml"
	"fmt"
	"slices"
	"strings"
	"time"

	"penstock.example/schedule"
)

// Options are the texts of a picture. The zero value is good.
type Options struct {
	Title string
	// Workers names the workers; those without a name are called device 0, 1 and so on.
	Workers []string
	// Time says how long something takes. Nil is [time.Duration.String], to three digits.
	Time func(time.Duration) string
	// Bytes says how much memory that is. Nil is a number of MiB.
	Bytes func(int64) string
}

// Sizes in pixels.
const (
	right       = 120 // margin for what workers come to
	top, bottom = 84, 44
	plain       = 1200 // width of the time of a step
	row, curve  = 26, 22
	gap         = 16
)

// SVG draws a timeline. Each worker has a row of its computations, in a colour for each kind and a
// shade for each of its stages, with the number of the micro-batch if it fits. Transfers that take
// time are thin bars, and so are reductions, which overlap with the rest. Below is the worker's
// memory: the bytes of a recorded timeline, otherwise the micro-batches in flight. To the right are
// the share of time that it is idle and its most memory.
//
// The timeline must be valid.
func SVG(t schedule.Timeline, o Options) []byte {
	p := newPicture(t, o)
	p.open()
	p.legend()
	for w := range t.Workers {
		p.worker(w)
	}
	p.axis()
	p.b.WriteString("</svg>\n")
	return []byte(p.b.String())
}

// picture is an SVG that is being drawn.
type picture struct {
	b          strings.Builder
	o          Options
	t          schedule.Timeline
	events     [][]schedule.Event // by worker and start
	shades     map[int]float64    // by stage: how much of its colour is white
	start, end time.Duration
	left       int // margin for the names of workers
	height     int
	most       []int64   // by worker: the most it holds
	held       [][]level // by worker
	peak       int64     // of most
	bytes      bool      // what is held is in bytes
}

func newPicture(t schedule.Timeline, o Options) *picture {
	p := &picture{o: o, t: t, events: make([][]schedule.Event, t.Workers),
		height: top + t.Workers*(row+curve+gap) + bottom}
	for i, e := range t.Events {
		p.events[e.Worker] = append(p.events[e.Worker], e)
		p.bytes = p.bytes || e.Live != 0
		if i == 0 || e.Start < p.start {
			p.start = e.Start
		}
		p.end = max(p.end, e.End)
	}
	for _, events := range p.events {
		slices.SortStableFunc(events, func(a, b schedule.Event) int { return cmp.Compare(a.Start, b.Start) })
	}
	p.shades = shades(p.events)
	for _, events := range p.events {
		levels := held(events, p.bytes)
		var most int64
		for _, l := range levels {
			most = max(most, l.held)
		}
		p.held, p.most, p.peak = append(p.held, levels), append(p.most, most), max(p.peak, most)
	}
	p.left = 96
	for w := range t.Workers {
		p.left = max(p.left, 24+7*len(p.name(w)))
	}
	if p.o.Time == nil {
		p.o.Time = func(d time.Duration) string { return fmt.Sprintf("%.3g ms", float64(d)/float64(time.Millisecond)) }
	}
	if p.o.Bytes == nil {
		p.o.Bytes = func(n int64) string { return fmt.Sprintf("%.3g MiB", float64(n)/(1<<20)) }
	}
	return p
}

// shades gives the stages of each worker shades of a colour, the first the full one.
func shades(events [][]schedule.Event) map[int]float64 {
	out := map[int]float64{}
	for _, list := range events {
		var stages []int
		for _, e := range list {
			if !e.Action.Kind.Transfer() {
				stages = append(stages, e.Action.Stage)
			}
		}
		slices.Sort(stages)
		stages = slices.Compact(stages)
		for i, s := range stages {
			out[s] = 0.6 * float64(i) / float64(max(len(stages)-1, 1))
		}
	}
	return out
}

// x is where a time is.
func (p *picture) x(at time.Duration) float64 {
	return float64(p.left) + plain*float64(at-p.start)/float64(max(p.end-p.start, 1))
}

// y is where the row of a worker begins.
func (p *picture) y(w int) int { return top + w*(row+curve+gap) }

func (p *picture) name(w int) string {
	if w < len(p.o.Workers) && p.o.Workers[w] != "" {
		return p.o.Workers[w]
	}
	return fmt.Sprintf("device %d", w)
}

func (p *picture) open() {
	width := p.left + plain + right
	fmt.Fprintf(&p.b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="Helvetica, Arial, sans-serif" font-size="12">`+"\n",
		width, p.height, width, p.height)
	fmt.Fprintf(&p.b, `<rect width="%d" height="%d" fill="#ffffff"/>`+"\n", width, p.height)
	title := p.o.Title
	if title == "" {
		title = "Timeline"
	}
	p.text(float64(p.left), 26, 17, "start", "#111111", title)
	idle := 0.0
	for w := range p.t.Workers {
		idle += p.idle(w) / float64(p.t.Workers)
	}
	p.text(float64(p.left), 46, 12, "start", "#555555",
		fmt.Sprintf("step %s, devices idle for %.1f %% of it", p.o.Time(p.end-p.start), 100*idle))
}

// text writes text at a place.
func (p *picture) text(x, y float64, size int, anchor, colour, text string) {
	fmt.Fprintf(&p.b, `<text x="%.1f" y="%.1f" font-size="%d" text-anchor="%s" fill="%s">`, x, y,
		size, anchor, colour)
	_ = xml.EscapeText(&p.b, []byte(text)) // a builder takes everything
	p.b.WriteString("</text>\n")
}

// legend names the colours of the kinds in the timeline.
func (p *picture) legend() {
	there := map[schedule.Kind]bool{}
	several := false
	for _, e := range p.t.Events {
		there[e.Action.Kind] = there[e.Action.Kind] || !thin(e.Action.Kind) || e.End > e.Start
		several = several || p.shades[e.Action.Stage] > 0
	}
	x := float64(p.left)
	entry := func(colour, name string) {
		fmt.Fprintf(&p.b, `<rect x="%.1f" y="58" width="12" height="12" rx="2" fill="%s"/>`+"\n", x, colour)
		p.text(x+17, 68, 12, "start", "#333333", name)
		x += 17 + 6.6*float64(len(name)) + 18
	}
	for _, k := range kinds {
		if there[k.kind] || k.kind == schedule.SendActivation &&
			(there[schedule.ReceiveActivation] || there[schedule.SendGradient] ||
				there[schedule.ReceiveGradient]) {
			entry(k.colour.mixed(0), k.name)
		}
	}
	if several {
		p.text(x, 68, 12, "start", "#777777", "lighter: later stages of a device")
	}
}

// worker draws the row of a worker and its curve.
func (p *picture) worker(w int) {
	y := p.y(w)
	p.text(float64(p.left-10), float64(y+17), 12, "end", "#111111", p.name(w))
	p.text(float64(p.left+plain+10), float64(y+17), 12, "start", "#555555",
		fmt.Sprintf("idle %.1f %%", 100*p.idle(w)))
	fmt.Fprintf(&p.b, `<rect x="%d" y="%d" width="%d" height="%d" fill="#f1f1f1"/>`+"\n", p.left, y,
		plain, row)
	for _, beside := range []bool{false, true} { // reductions last, over what goes on meanwhile
		for _, e := range p.events[w] {
			if (e.Action.Kind == schedule.Reduce) == beside {
				p.event(e, y)
			}
		}
	}
	p.curve(w, y+row+2)
}

// thin reports whether a kind is drawn as a thin bar.
func thin(k schedule.Kind) bool { return k.Transfer() || k == schedule.Reduce }

func (p *picture) event(e schedule.Event, y int) {
	x, width := p.x(e.Start), p.x(e.End)-p.x(e.Start)
	if e.Start == e.End {
		return
	}
	colour, shade := colourOf(e.Action.Kind), p.shades[e.Action.Stage]
	if thin(e.Action.Kind) {
		if e.Action.Kind != schedule.Reduce {
			y += row - 4
		}
		fmt.Fprintf(&p.b, `<rect x="%.2f" y="%d" width="%.2f" height="4" fill="%s"/>`+"\n", x, y,
			width, colour.mixed(0))
		return
	}
	edge := min(0.6, width/8) // a line between what follows directly
	fmt.Fprintf(&p.b, `<rect x="%.2f" y="%d" width="%.2f" height="%d" fill="%s"><title>`, x, y,
		width-edge, row, colour.mixed(shade))
	_ = xml.EscapeText(&p.b, []byte(fmt.Sprintf("%v: %s, from %s to %s", e.Action, e.Action.Words(), p.o.Time(e.Start-p.start), p.o.Time(e.End-p.start))))
	p.b.WriteString("</title></rect>\n")
	if label := fmt.Sprint(e.Action.MicroBatch); width > 7*float64(len(label))+3 {
		p.text(x+(width-edge)/2, float64(y+17), 11, "middle", colour.ink(shade), label)
	}
}

// tick returns a round time that fits an axis at most ten times.
func tick(length time.Duration) time.Duration {
	for unit := time.Duration(1); ; unit *= 10 {
		for _, n := range []time.Duration{1, 2, 5} {
			if length <= 10*n*unit {
				return n * unit
			}
		}
	}
}

// axis draws the time below all rows.
func (p *picture) axis() {
	y := p.y(p.t.Workers) - gap + 10
	fmt.Fprintf(&p.b, `<line x1="%d" y1="%d" x2="%d" y2="%d" stroke="#999999"/>`+"\n", p.left, y,
		p.left+plain, y)
	every := tick(p.end - p.start)
	for at := p.start; at <= p.end; at += every {
		fmt.Fprintf(&p.b, `<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="#999999"/>`+"\n",
			p.x(at), y, p.x(at), y+5)
		p.text(p.x(at), float64(y+19), 11, "middle", "#555555", p.o.Time(at-p.start))
	}
}

// idle is the share of the time in which a worker computes nothing and moves nothing itself.
func (p *picture) idle(w int) float64 {
	if p.end == p.start {
		return 0
	}
	var busy time.Duration
	until := p.start
	for _, e := range p.events[w] {
		if e.End > until && e.Action.Kind != schedule.Reduce {
			busy += e.End - max(e.Start, until)
			until = e.End
		}
	}
	return 1 - float64(busy)/float64(p.end-p.start)
}
