package main

import (
	"fmt"
	"io"
	"time"

	"github.com/schollz/progressbar/v3"
)

// counter shows on stderr how much of something is done, as soon as it takes long: as a bar on a
// terminal, and elsewhere as a line now and then.
type counter struct {
	w     io.Writer
	what  string // "evaluating"
	of    string // "samples"
	width int    // of the terminal; 0 elsewhere
	bar   *progressbar.ProgressBar
	next  time.Time
}

func newCounter(w io.Writer, what, of string) *counter {
	c := &counter{w: w, what: what, of: of}
	if width, ok := terminalWidth(w); ok {
		c.width = width
	}
	c.next = time.Now().Add(c.every())
	return c
}

func (c *counter) every() time.Duration {
	if c.width > 0 {
		return barEvery
	}
	return lineEvery
}

// at shows that so many are done.
func (c *counter) at(done, all int) {
	now := time.Now()
	if now.Before(c.next) && (c.bar == nil || done < all) {
		return
	}
	c.next = now.Add(c.every())
	if c.width == 0 {
		fmt.Fprintf(c.w, "%s: %d of %d %s\n", c.what, done, all, c.of)
		return
	}
	if c.bar == nil {
		c.bar = newPlainBar(c.w, c.width, all, c.what)
	}
	c.bar.Set(done) // an error of writing to stderr has nowhere to be told
}

// end clears the bar.
func (c *counter) end() {
	if c.bar != nil {
		c.bar.Clear()
	}
}

// counters shows what is done one after the other, such as evaluations.
type counters struct {
	w       io.Writer
	of      string   // "samples"
	counter *counter // of what is being done; nil between them
}

// at shows that so many are done.
func (e *counters) at(what string, done, all int) {
	if e.counter == nil {
		e.counter = newCounter(e.w, what, e.of)
	}
	if e.counter.at(done, all); done == all {
		e.counter.end()
		e.counter = nil
	}
}

// showText shows how much of a text has become tokens.
func showText(w io.Writer) func(done, all int) {
	c := counters{w: w, of: "bytes"}
	return func(done, all int) { c.at("encoding text", done, all) }
}

// newPlainBar makes a bar with a description in front, which is gone when it ends.
func newPlainBar(w io.Writer, width, all int, what string) *progressbar.ProgressBar {
	cells := 20
	if width < narrow {
		cells = 5
	}
	return progressbar.NewOptions(all, progressbar.OptionSetWriter(w), progressbar.OptionSetWidth(cells),
		progressbar.OptionSetPredictTime(width >= narrow), progressbar.OptionSetElapsedTime(width >= narrow),
		progressbar.OptionSetDescription(what), progressbar.OptionClearOnFinish())
}

// layerProgress tells on stderr how far measuring is, as soon as it takes long: on a terminal in
// place, elsewhere in a line now and then.
type layerProgress struct {
	w     io.Writer
	what  string // of what the layers are, where they are measured several times, such as " of 8 rows"
	live  bool   // on a terminal
	next  time.Time
	shown bool
}

func newLayerProgress(w io.Writer) *layerProgress {
	_, live := terminalWidth(w)
	p := &layerProgress{w: w, live: live}
	p.next = time.Now().Add(p.every())
	return p
}

func (p *layerProgress) every() time.Duration {
	if p.live {
		return barEvery
	}
	return lineEvery
}

func (p *layerProgress) layer(done, layers int) {
	now := time.Now()
	if now.Before(p.next) {
		return
	}
	p.next = now.Add(p.every())
	if p.live {
		p.shown = true
		fmt.Fprintf(p.w, "\r\x1b[Kmeasured %d of %d layers%s", done, layers, p.what)
		return
	}
	fmt.Fprintf(p.w, "measured %d of %d layers%s\n", done, layers, p.what)
}

// line writes a line that stays.
func (p *layerProgress) line(text string) {
	p.end()
	fmt.Fprintln(p.w, text)
}

// end clears the line.
func (p *layerProgress) end() {
	if p.shown {
		p.shown = false
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}
