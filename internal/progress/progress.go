// Package progress shows how far a task is.
package progress

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// How often progress is shown on a terminal, and elsewhere.
const (
	BarEvery  = 100 * time.Millisecond
	LineEvery = 2 * time.Second
)

// Task shows a long task: on a terminal by a bar, elsewhere in a line every two seconds.
// Several goroutines may call its methods.
type Task struct {
	w           io.Writer
	doing, unit string // "evaluating", "samples"
	began       time.Time
	over        chan struct{} // closed by End
	clock       sync.WaitGroup

	mu        sync.Mutex               // guards w and the fields below
	bar       *progressbar.ProgressBar // nil without a terminal
	state     string                   // how far the task is, in words
	done, all int                      // 0 is unknown
}

// New shows a task until the caller calls End.
func New(w io.Writer, doing, unit string) *Task {
	p := &Task{w: w, doing: doing, unit: unit, began: time.Now(), over: make(chan struct{})}
	every := LineEvery
	if _, live := Width(w); live {
		every, p.bar = BarEvery, newBar(w)
	}
	p.clock.Go(func() {
		for {
			select {
			case <-p.over:
				return
			case now := <-time.After(every):
				p.tell(now)
			}
		}
	})
	return p
}

const barCells = 15

func newBar(w io.Writer) *progressbar.ProgressBar {
	return progressbar.NewOptions64(-1, progressbar.OptionSetWriter(w), progressbar.OptionSetWidth(barCells),
		progressbar.OptionShowDescriptionAtLineEnd(), progressbar.OptionUseANSICodes(true),
		progressbar.OptionSetSpinnerChangeInterval(0)) // it moves when it is told
}

// At shows how far the task is.
func (p *Task) At(done, all int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done, p.all = done, all
}

// Note shows how far the task is in words.
func (p *Task) Note(state string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state = state
}

func (p *Task) tell(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	state := p.state
	if state == "" && p.all > 0 {
		state = fmt.Sprintf("%d of %d %s", p.done, p.all, p.unit)
	}
	if state != "" {
		state = ": " + state
	}
	if p.bar == nil {
		fmt.Fprintf(p.w, "%s for %.0f s%s\n", p.doing, now.Sub(p.began).Seconds(), state)
		return
	}
	if p.done < p.all { // a full bar would disappear
		p.bar.ChangeMax(p.all)
		_ = p.bar.Set(p.done) // an error of a terminal has nowhere to be told
	}
	width, _ := Width(p.w)
	room := max(width-barCells-len(" 100% ||  [59m59s:59m59s]  "), 0)
	p.bar.Describe(fmt.Sprintf("%.*s", room, p.doing+state))
}

// Write prints lines that stay.
func (p *Task) Write(lines []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
	return p.w.Write(lines)
}

// Line prints a line that stays.
func (p *Task) Line(text string) { fmt.Fprintln(p, text) }

func (p *Task) clear() {
	if p.bar != nil {
		_ = p.bar.Clear()
	}
}

// End clears the line and stops.
func (p *Task) End() {
	close(p.over)
	p.clock.Wait()
	p.clear()
}

// Successive returns a function that shows one task after the other, such as evaluations.
func Successive(w io.Writer, unit string) func(doing string, done, all int) {
	var p *Task // nil between tasks
	return func(doing string, done, all int) {
		if p == nil {
			p = New(w, doing, unit)
		}
		if p.At(done, all); done == all {
			p.End()
			p = nil
		}
	}
}

// Texts returns a function that shows how much of a text has become tokens.
func Texts(w io.Writer) func(done, all int) {
	show := Successive(w, "bytes")
	return func(done, all int) { show("encoding text", done, all) }
}

// UsualWidth is the width of a terminal of unknown size, and of output elsewhere.
const UsualWidth = 80

// Width returns the number of columns of w, and whether w is a terminal. Other character devices,
// such as /dev/null, are none.
func Width(w io.Writer) (columns int, ok bool) {
	if o, is := w.(interface{ Unwrap() io.Writer }); is {
		w = o.Unwrap()
	}
	if f, is := w.(*os.File); is {
		n, _, err := term.GetSize(int(f.Fd()))
		columns, ok = n, err == nil
	}
	return cmp.Or(columns, UsualWidth), ok
}
