package report

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"penstock.example/internal/metrics"
)

// Live serves the page of a run that goes on: at / the page so far, at /events server-sent events.
// It is a metrics.Writer and gets the steps like a file. All methods are safe for concurrent use.
//
// Training never waits for browsers: pages and events are made from snapshots, one at a time, in at
// most a fifth of a core. Few connections are open at a time, and others are closed at once, so that
// a run keeps descriptors for its files.
//
// The host of a request must be an IP address, localhost, or Host. So no other site can read the
// page by DNS rebinding.
type Live struct {
	Host string // a name that requests may use

	mu      sync.Mutex // guards the next three fields; never held for long
	now     snapshot
	changed chan struct{} // closed and replaced at each change
	closed  bool

	building sync.Mutex // held while a page or an event is built
	server   http.Server
	open     atomic.Int32 // connections
	serving  sync.WaitGroup
}

// snapshot is a run at some moment. Nobody changes its slices and pointers.
type snapshot struct {
	view    view
	edition int // counts SetRun
	past    metrics.History
	end     string // how the run ended; "" while it goes on
}

func NewLive(run Run, past metrics.History) (*Live, error) {
	l := &Live{now: snapshot{past: past}, changed: make(chan struct{})}
	l.server = http.Server{Handler: l, ReadHeaderTimeout: 5 * time.Second, WriteTimeout: heartbeat,
		IdleTimeout: heartbeat, ConnState: l.count}
	if err := l.SetRun(run); err != nil {
		return nil, err
	}
	return l, nil
}

func (l *Live) SetRun(run Run) error {
	v, err := newView(run)
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	l.change(func() { l.now.view = v; l.now.edition++ })
	return nil
}

func (l *Live) Step(s metrics.Step) error {
	l.change(func() { l.now.past.Steps = append(l.now.past.Steps, s) })
	return nil
}

func (l *Live) Test(t metrics.Test) error {
	l.change(func() {
		list := &l.now.past.Tests
		if t.Validation {
			list = &l.now.past.Validations
		}
		*list = append(*list, t)
	})
	return nil
}

func (l *Live) Sync() error { return nil }

// End says how the run ended: "finished", "interrupted" or "failed". Pages show it and disconnect.
func (l *Live) End(how string) { l.change(func() { l.now.end = how }) }

// Serve serves at an address in the background until Close.
func (l *Live) Serve(at net.Listener) { l.serving.Go(func() { l.server.Serve(at) }) }

// count closes a connection that is one too many.
func (l *Live) count(c net.Conn, state http.ConnState) {
	if state == http.StateNew && l.open.Add(1) > mostOpen {
		c.Close()
	} else if state == http.StateClosed {
		l.open.Add(-1)
	}
}

// Close gives open pages two seconds to load how the run ended, and ends all connections. Open pages
// stay as they are.
func (l *Live) Close() error {
	l.change(func() { l.closed = true })
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if l.server.Shutdown(ctx) != nil {
		l.server.Close()
	}
	l.serving.Wait()
	return nil
}

func (l *Live) change(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
	close(l.changed)
	l.changed = make(chan struct{})
}

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

// snapshot returns the run so far. changed is closed at the next change. last reports that there
// will be no change.
func (l *Live) snapshot() (s snapshot, changed <-chan struct{}, last bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.now, l.changed, l.closed || l.now.end != ""
}

// build calls f alone. The next build begins after a pause four times as long as f took.
func (l *Live) build(f func()) {
	l.building.Lock()
	began := time.Now()
	f()
	time.AfterFunc(4*time.Since(began), l.building.Unlock)
}

func (l *Live) servePage(w http.ResponseWriter) {
	var text []byte
	var err error
	l.build(func() {
		s, _, _ := l.snapshot()
		text, err = document(payload{View: s.view, History: newColumns(s.past, s.view.From),
			Live: fmt.Sprintf("events?after=%v", s.position())})
	})
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Write(text)
}

// position counts the contents of a page: steps, tests, validations, and the edition of the run.
type position [4]int

func (p position) String() string { return fmt.Sprintf("%d.%d.%d.%d", p[0], p[1], p[2], p[3]) }

func (s snapshot) position() position {
	return position{len(s.past.Steps), len(s.past.Tests), len(s.past.Validations), s.edition}
}

const (
	mostOpen  = 32                     // connections at a time; a browser needs one or two
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
		s, changed, last := l.snapshot()
		text := ": still here\n\n"
		if s.position() != at || last {
			l.build(func() { text = s.eventsAfter(at) })
		}
		at = s.position()
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

// eventsAfter returns the events after a position.
func (s snapshot) eventsAfter(at position) (text string) {
	event := func(name string, data any) {
		line, _ := json.Marshal(data) // no error: metrics refuses numbers that are not finite
		text += fmt.Sprintf("id: %v\nevent: %s\ndata: %s\n\n", at, name, line)
	}
	if at[3] != s.edition {
		at[3] = s.edition
		event("run", s.view)
	}
	h := metrics.History{Steps: tail(s.past.Steps, at[0]), Tests: tail(s.past.Tests, at[1]),
		Validations: tail(s.past.Validations, at[2])}
	at = s.position()
	if len(h.Steps)+len(h.Tests)+len(h.Validations) > 0 {
		event("numbers", newColumns(h, s.view.From))
	}
	if s.end != "" {
		event("end", s.end)
	}
	return text
}

func tail[T any](list []T, n int) []T { return list[min(max(n, 0), len(list)):] }
