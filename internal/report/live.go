package report

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"penstock.example/internal/metrics"
)

// Live serves the page of a run that goes on: at / the page so far, at /events server-sent events.
// It is a metrics.Writer and gets the steps like a file. All methods are safe for concurrent use,
// and none waits for browsers.
//
// The host of a request must be an IP address, localhost, or Host. So no other site can read the
// page by DNS rebinding.
type Live struct {
	Host string // a name that requests may use

	mu      sync.Mutex
	run     Run
	view    view
	edition int // counts SetRun
	past    metrics.History
	end     string        // how the run ended; "" while it goes on
	changed chan struct{} // closed and replaced at each change
	closed  bool
}

// NewLive begins with a run and its numbers so far.
func NewLive(run Run, past metrics.History) (*Live, error) {
	l := &Live{past: past, changed: make(chan struct{})}
	if err := l.SetRun(run); err != nil {
		return nil, err
	}
	return l, nil
}

// SetRun replaces the run.
func (l *Live) SetRun(run Run) error {
	v, err := newView(run)
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	l.change(func() { l.run, l.view = run, v; l.edition++ })
	return nil
}

// Step shows a step.
func (l *Live) Step(s metrics.Step) error {
	l.change(func() { l.past.Steps = append(l.past.Steps, s) })
	return nil
}

// Test shows a test or a validation.
func (l *Live) Test(t metrics.Test) error {
	l.change(func() {
		if t.Validation {
			l.past.Validations = append(l.past.Validations, t)
		} else {
			l.past.Tests = append(l.past.Tests, t)
		}
	})
	return nil
}

// Sync does nothing.
func (l *Live) Sync() error { return nil }

// End says how the run ended: "finished", "interrupted" or "failed". Pages show it and disconnect.
func (l *Live) End(how string) { l.change(func() { l.end = how }) }

// Close ends all connections. Open pages stay as they are.
func (l *Live) Close() error {
	l.change(func() { l.closed = true })
	return nil
}

func (l *Live) change(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
	close(l.changed)
	l.changed = make(chan struct{})
}

// ServeHTTP serves the page and its events.
func (l *Live) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", policy("'self'")+"; frame-ancestors 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
	switch {
	case !l.allowsHost(r.Host):
		http.Error(w, "unknown host; use the address that penstock printed", http.StatusMisdirectedRequest)
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		h.Set("Allow", "GET, HEAD")
		http.Error(w, "this page is read-only", http.StatusMethodNotAllowed)
	case r.URL.Path == "/":
		l.servePage(w)
	case r.URL.Path == "/events":
		l.serveEvents(w, r)
	default:
		http.NotFound(w, r)
	}
}

func (l *Live) allowsHost(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return host == "localhost" || host != "" && host == l.Host || net.ParseIP(host) != nil
}

func (l *Live) servePage(w http.ResponseWriter) {
	l.mu.Lock()
	text, err := document(payload{View: l.view, History: newColumns(l.past),
		Live: fmt.Sprintf("events?after=%v", l.now())})
	l.mu.Unlock()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Write(text)
}

// position counts what a page has: steps, tests, validations, and the edition of the run.
type position [4]int

func (p position) String() string { return fmt.Sprintf("%d.%d.%d.%d", p[0], p[1], p[2], p[3]) }

func (l *Live) now() position {
	return position{len(l.past.Steps), len(l.past.Tests), len(l.past.Validations), l.edition}
}

const (
	pause     = 200 * time.Millisecond // between events for a page, at least
	heartbeat = 15 * time.Second       // a page without events gets a comment this often
)

// serveEvents sends events to a page until either side ends. The page's position is in the query
// or, if the browser reconnects, the id of its last event.
func (l *Live) serveEvents(w http.ResponseWriter, r *http.Request) {
	var at position
	from := r.Header.Get("Last-Event-ID")
	if from == "" {
		from = r.URL.Query().Get("after")
	}
	fmt.Sscanf(from, "%d.%d.%d.%d", &at[0], &at[1], &at[2], &at[3]) // a faulty position is 0: send everything
	w.Header().Set("Content-Type", "text/event-stream")
	out := http.NewResponseController(w)
	for {
		text, last, changed := l.eventsAfter(&at)
		if text == "" && !last {
			text = ": still here\n\n"
		}
		out.SetWriteDeadline(time.Now().Add(heartbeat)) // drop a page that stops reading
		if _, err := w.Write([]byte(text)); err != nil || out.Flush() != nil || last {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-time.After(heartbeat):
		case <-changed:
			time.Sleep(pause)
		}
	}
}

// eventsAfter returns the events after a position, and moves the position on. last says that no
// more will come.
func (l *Live) eventsAfter(at *position) (text string, last bool, changed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	event := func(name string, data any) {
		line, _ := json.Marshal(data) // no error: metrics refuses numbers that are not finite
		text += fmt.Sprintf("id: %v\nevent: %s\ndata: %s\n\n", *at, name, line)
	}
	if at[3] != now[3] {
		at[3] = now[3]
		event("run", l.view)
	}
	h := metrics.History{Steps: later(l.past.Steps, at[0]), Tests: later(l.past.Tests, at[1]),
		Validations: later(l.past.Validations, at[2])}
	*at = now
	if len(h.Steps)+len(h.Tests)+len(h.Validations) > 0 {
		event("numbers", newColumns(h))
	}
	if l.end != "" {
		event("end", l.end)
		return text, true, nil
	}
	return text, l.closed, l.changed
}

func later[T any](list []T, n int) []T { return list[min(max(n, 0), len(list)):] }
