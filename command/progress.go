package command

import (
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

// How often progress is shown on a terminal, and elsewhere.
const (
	barEvery  = 100 * time.Millisecond
	lineEvery = 2 * time.Second
)

// progress shows a long task: on a terminal in one line, elsewhere in a line every two seconds. Write
// prints lines that stay. Several goroutines may call its methods.
type progress struct {
	w           io.Writer
	doing, unit string // "evaluating", "samples"
	live        bool   // on a terminal
	began       time.Time
	over        chan struct{} // closed by end
	clock       sync.WaitGroup

	mu    sync.Mutex // guards w and the fields below
	state string     // how far the task is
	shown bool
}

// newProgress shows a task until the caller calls end.
func newProgress(w io.Writer, doing, unit string) *progress {
	_, live := terminalWidth(w)
	p := &progress{w: w, doing: doing, unit: unit, live: live, began: time.Now(), over: make(chan struct{})}
	every := lineEvery
	if live {
		every = barEvery
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

func (p *progress) at(done, all int) { p.note(fmt.Sprintf("%d of %d %s", done, all, p.unit)) }

// searching is a plan.Options.Progress.
func (p *progress) searching(schedule string, done, all int) {
	p.note(fmt.Sprintf("schedule %d of %d, %s", done+1, all, schedule))
}

func (p *progress) note(state string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state = state
}

func (p *progress) tell(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	text := fmt.Sprintf("%s for %.0f s", p.doing, now.Sub(p.began).Seconds())
	if p.state != "" {
		text += ": " + p.state
	}
	if p.shown = p.live; p.live {
		fmt.Fprintf(p.w, "\r\x1b[K%s", text)
	} else {
		fmt.Fprintln(p.w, text)
	}
}

func (p *progress) Write(lines []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
	return p.w.Write(lines)
}

func (p *progress) line(text string) { fmt.Fprintln(p, text) }

func (p *progress) clear() {
	if p.shown {
		p.shown = false
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}

// end clears the line and stops.
func (p *progress) end() {
	close(p.over)
	p.clock.Wait()
	p.clear()
}

// successive returns a function that shows one task after the other, such as evaluations.
func successive(w io.Writer, unit string) func(doing string, done, all int) {
	var p *progress // nil between tasks
	return func(doing string, done, all int) {
		if p == nil {
			p = newProgress(w, doing, unit)
		}
		if p.at(done, all); done == all {
			p.end()
			p = nil
		}
	}
}

// showText returns a function that shows how much of a text has become tokens.
func showText(w io.Writer) func(done, all int) {
	show := successive(w, "bytes")
	return func(done, all int) { show("encoding text", done, all) }
}

// usualWidth is the width of a terminal of unknown size, and of output elsewhere.
const usualWidth = 80

// terminalWidth returns the characters of a line of w, and whether w is a terminal, which /dev/null and
// other character devices are not.
func terminalWidth(w io.Writer) (columns int, ok bool) {
	if o, ok := w.(*output); ok {
		w = o.to
	}
	f, ok := w.(*os.File)
	if !ok {
		return usualWidth, false
	}
	var size struct{ rows, columns, x, y uint16 } // winsize of ioctl_tty(2)
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), syscall.TIOCGWINSZ,
		uintptr(unsafe.Pointer(&size)))
	if errno != 0 || size.columns == 0 {
		return usualWidth, errno == 0
	}
	return int(size.columns), true
}
