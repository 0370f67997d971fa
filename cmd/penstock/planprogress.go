package main

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"
)

// planProgress tells on stderr what is done before the first step, such as which schedule is searched, as soon as that takes long: on a terminal in
// place, elsewhere in a line now and then.
type planProgress struct {
	w     io.Writer
	doing string // "planning"
	live  bool   // on a terminal
	began time.Time
	stop  func()

	mu    sync.Mutex // guards what follows, and w
	what  string
	shown bool
}

// newPlanProgress begins to tell. The caller calls end.
func newPlanProgress(w io.Writer, doing string) *planProgress {
	_, live := terminalWidth(w)
	p := &planProgress{w: w, doing: doing, live: live, began: time.Now()}
	every := lineEvery
	if live {
		every = tickEvery
	}
	p.stop = repeat(every, p.tell)
	return p
}

// repeat calls f again and again until stop is called, which waits for it, and may be called again.
func repeat(every time.Duration, f func(now time.Time)) (stop func()) {
	over := make(chan struct{})
	var ended sync.WaitGroup
	ended.Go(func() {
		for next := time.After(every); ; next = time.After(every) {
			select {
			case <-over:
				return
			case now := <-next:
				f(now)
			}
		}
	})
	return sync.OnceFunc(func() {
		close(over)
		ended.Wait()
	})
}

// telling is what opens a part of a job, with what it does told on a terminal as soon as it takes long.
func telling(doing string, open func(context.Context, io.Writer) error) func(context.Context, io.Writer) error {
	return func(ctx context.Context, stderr io.Writer) error {
		if _, live := terminalWidth(stderr); !live {
			return open(ctx, stderr)
		}
		p := newPlanProgress(stderr, doing)
		defer p.end()
		return open(ctx, p)
	}
}

// Write writes lines that stay.
func (p *planProgress) Write(lines []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
	return p.w.Write(lines)
}

// at notes that a schedule is searched, after so many of all. It is a search.Wishes.Progress.
func (p *planProgress) at(schedule string, done, of int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.what = fmt.Sprintf("schedule %d of %d, %s", done+1, of, schedule)
}

// note notes how far it is.
func (p *planProgress) note(what string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.what = what
}

// tell writes how far it is.
func (p *planProgress) tell(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	text := fmt.Sprintf("%s for %.0f s", p.doing, now.Sub(p.began).Seconds())
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
	p.stop()
	p.clear()
}
