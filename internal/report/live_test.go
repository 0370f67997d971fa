package report_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"penstock.example/internal/metrics"
	"penstock.example/internal/must"
	"penstock.example/internal/report"
)

// serving serves a run of ten steps.
func serving(t *testing.T) (*report.Live, *httptest.Server) {
	t.Helper()
	live := must.Get(report.NewLive(sample(t, 2, 4), numbers(10, 2)))(t)
	server := httptest.NewServer(live)
	t.Cleanup(func() { live.Close(); server.Close() })
	return live, server
}

// request asks a server for a path, by whatever host.
func request(t *testing.T, server *httptest.Server, method, path, host string) (*http.Response, string) {
	t.Helper()
	r := must.Get(http.NewRequest(method, server.URL+path, nil))(t)
	r.Host = host
	answer := must.Get(server.Client().Do(r))(t)
	defer answer.Body.Close()
	body := must.Get(io.ReadAll(answer.Body))(t)
	return answer, string(body)
}

// The page can be looked at and no more, by its own address, under a strict policy.
func TestLiveRefuses(t *testing.T) {
	live, server := serving(t)
	live.Host = "trainer"
	for _, tt := range []struct {
		method, path, host string
		want               int
	}{
		{"GET", "/", "127.0.0.1:80", 200}, {"HEAD", "/", "[::1]:80", 200}, {"GET", "/", "trainer:80", 200},
		{"GET", "/events", "evil.example:80", 421}, {"GET", "/", "127.0.0.1.evil.example", 421},
		{"GET", "/run.json", "localhost", 404},
	} {
		answer, body := request(t, server, tt.method, tt.path, tt.host)
		if answer.StatusCode != tt.want {
			t.Errorf("%s %s of %s: %s", tt.method, tt.path, tt.host, answer.Status)
		}
		policy := answer.Header.Get("Content-Security-Policy")
		for _, want := range []string{"default-src 'none'", "script-src 'sha256-", "connect-src 'self'",
			"frame-ancestors 'none'"} {
			if !strings.Contains(policy, want) || strings.Contains(policy, "unsafe") {
				t.Errorf("%s %s: the policy %q lacks %s", tt.method, tt.path, policy, want)
			}
		}
		if tt.method == "HEAD" != (body == "") {
			t.Errorf("%s %s: %d bytes", tt.method, tt.path, len(body))
		}
	}
}

// events reads so many events from a stream.
func events(t *testing.T, server *httptest.Server, n int, query, last string) (out []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	r := must.Get(http.NewRequestWithContext(ctx, "GET", server.URL+"/events"+query, nil))(t)
	if last != "" {
		r.Header.Set("Last-Event-ID", last)
	}
	answer := must.Get(server.Client().Do(r))(t)
	defer answer.Body.Close()
	if got := answer.Header.Get("Content-Type"); got != "text/event-stream" {
		t.Errorf("the type is %s", got)
	}
	lines := bufio.NewReader(answer.Body)
	for len(out) < n {
		event := ""
		for {
			line, err := lines.ReadString('\n')
			if err != nil {
				t.Fatalf("%v after %q", err, out)
			}
			if line == "\n" {
				break
			}
			if len(line) > 60 {
				line = line[:60]
			}
			event += strings.TrimSuffix(line, "\n") + " "
		}
		if !strings.HasPrefix(event, ":") {
			out = append(out, event)
		}
	}
	return out
}

// A page gets what it does not have yet, also when it connects again.
func TestLiveEvents(t *testing.T) {
	live, server := serving(t)
	more := numbers(40, 2)
	for _, tt := range []struct {
		query, last string
		want        []string
	}{
		{"", "", []string{`id: 0.0.0.1 event: run data: {"title":"gpt on text"`,
			`id: 10.0.0.1 event: numbers data: {"steps":[[1,0,`}},
		{"?after=10.0.0.0", "", []string{`id: 10.0.0.1 event: run`}},
		{"?after=7.0.0.1", "", []string{`id: 10.0.0.1 event: numbers data: {"steps":[[8,0,`}},
		{"?after=0.0.0.1", "9.0.0.1", []string{`id: 10.0.0.1 event: numbers data: {"steps":[[10,0,`}},
		{"?after=nonsense", "", []string{`id: 0.0.0.1 event: run`}},
	} {
		for i, got := range events(t, server, len(tt.want), tt.query, tt.last) {
			if !strings.HasPrefix(got, tt.want[i]) {
				t.Errorf("%q %q: %q, want %q", tt.query, tt.last, got, tt.want[i])
			}
		}
	}
	for _, s := range more.Steps[10:20] {
		live.Step(s)
	}
	live.Test(more.Tests[0])
	if got := events(t, server, 1, "?after=10.0.0.1", ""); !strings.HasPrefix(got[0],
		`id: 20.1.0.1 event: numbers data: {"steps":[[11,0,`) {
		t.Errorf("%q", got)
	}
	loss := 1.5
	// beside the test after the same step
	live.Test(metrics.Test{Step: 20, TestLoss: &loss, Accuracy: &loss, Validation: true})
	if got := events(t, server, 1, "?after=20.1.0.1", ""); !strings.HasPrefix(got[0],
		`id: 20.1.1.1 event: numbers data: {"steps":[],"tests":[],"validatio`) {
		t.Errorf("%q", got)
	}
	live.End("interrupted")
	if got := events(t, server, 1, "?after=20.1.1.1",
		""); got[0] != `id: 20.1.1.1 event: end data: "interrupted" ` {
		t.Errorf("%q", got)
	}
}

// Telling of steps waits for nobody, whether pages read what they get or not, and Close ends them.
func TestLiveWaitsForNobody(t *testing.T) {
	live, server := serving(t)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	r, _ := http.NewRequestWithContext(ctx, "GET", server.URL+"/events", nil)
	answer := must.Get(server.Client().Do(r))(t)
	defer answer.Body.Close()
	for n := int64(11); n < 100_000; n++ {
		must.Do(t, live.Step(metrics.Step{Step: n, Loss: 1, PeakBytes: []int64{1, 2}}))
	}
	var _ metrics.Writer = live
	live.Close()
	if _, err := io.Copy(io.Discard, answer.Body); err != nil {
		t.Error(err)
	}
}

// However long a page takes to build, the run goes on.
func TestLiveBuildsBesideTheRun(t *testing.T) {
	live, server := serving(t)
	release := live.Building()
	got := make(chan string)
	go func() {
		_, text := request(t, server, "GET", "/", "localhost")
		got <- text
	}()
	for range 100 { // also after the request is there
		must.Do(t, errors.Join(live.Step(metrics.Step{Step: 11}), live.Test(metrics.Test{Step: 11}),
			live.SetRun(sample(t, 2, 4))))
	}
	release()
	if text := <-got; !strings.HasSuffix(strings.TrimSpace(text), "</html>") {
		t.Errorf("a page of %d bytes", len(text))
	}
}

// A page says what it has, and its events have what came since.
func TestLivePageGoesOnWithEvents(t *testing.T) {
	live, server := serving(t)
	_, page := request(t, server, "GET", "/", "localhost")
	for n := int64(11); n < 20; n++ {
		live.Step(metrics.Step{Step: n})
	}
	_, rest, _ := strings.Cut(page, `"live":"events`)
	query, _, _ := strings.Cut(rest, `"`)
	if got := events(t, server, 1, query, "")[0]; !strings.HasPrefix(got,
		`id: 19.0.0.1 event: numbers data: {"steps":[[11,0,`) {
		t.Errorf("after %s: %s", query, got)
	}
}

// counted is a listener that counts its open connections.
type counted struct {
	net.Listener
	open, most atomic.Int32
}

type countedConn struct {
	net.Conn
	closed func()
}

func (c countedConn) Close() error { c.closed(); return c.Conn.Close() }

func (l *counted) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.most.Store(max(l.most.Load(), l.open.Add(1)))
	}
	return countedConn{c, sync.OnceFunc(func() { l.open.Add(-1) })}, err
}

// Connections that ask for nothing take few descriptors, and when they are gone the page is there.
func TestLiveBoundsConnections(t *testing.T) {
	live, _ := serving(t)
	listener := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	at := &counted{Listener: listener}
	live.Serve(at)
	var idle []net.Conn
	for range 400 {
		c := must.Get(net.Dial("tcp", listener.Addr().String()))(t)
		idle = append(idle, c)
	}
	for _, c := range idle {
		c.Close()
	}
	for { // until the server has seen them go
		answer, err := http.Get("http://" + listener.Addr().String())
		if err == nil {
			answer.Body.Close()
			break
		}
	}
	if most := at.most.Load(); most > 33 { // one of them is being closed
		t.Errorf("%d connections at a time", most)
	}
}
