package main

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// planProgress tells on stderr which schedule is searched, as soon as that takes long: on a terminal in
// place, elsewhere in a line now and then.
type planProgress struct {
	w     io.Writer
	live  bool // on a terminal
	began time.Time
	over  chan struct{} // closed by end
	ended sync.WaitGroup

	mu    sync.Mutex // guards what follows, and w
	what  string
	shown bool
}

// newPlanProgress begins to tell. The caller calls end.
func newPlanProgress(w io.Writer) *planProgress {
	_, live := terminalWidth(w)
	p := &planProgress{w: w, live: live, began: time.Now(), over: make(chan struct{})}
	p.ended.Go(func() {
		for next := time.After(lineEvery); ; next = time.After(lineEvery) {
			select {
			case <-p.over:
				return
			case now := <-next:
				p.tell(now)
			}
		}
	})
	return p
}

// at notes that a schedule is searched, after so many of all. It is a search.Wishes.Progress.
func (p *planProgress) at(schedule string, done, of int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.what = fmt.Sprintf("schedule %d of %d, %s", done+1, of, schedule)
}

// tell writes how far it is.
func (p *planProgress) tell(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	text := fmt.Sprintf("planning for %.0f s", now.Sub(p.began).Seconds())
	if p.what != "" {
		text += ": " + p.what
	}
	if p.live {
		p.shown = true
		fmt.Fprintf(p.w, "\r\x1b[K%s", text)
		return
	}
	fmt.Fprintln(p.w, text)
}

// line writes a line that stays.
func (p *planProgress) line(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
	fmt.Fprintln(p.w, text)
}

func (p *planProgress) clear() {
	if p.shown {
		p.shown = false
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}

// end clears the line. Nothing is told after it returns.
func (p *planProgress) end() {
	close(p.over)
	p.ended.Wait()
	p.clear()
}
