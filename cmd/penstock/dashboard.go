package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"time"

	"github.com/spf13/pflag"

	"penstock.example/metrics"
	"penstock.example/report"
)

// dashboard serves the page of the run while it goes on. Its zero value serves nothing.
type dashboard struct {
	live   *report.Live
	server *http.Server
	over   chan struct{} // closed when the server has ended
}

// listenAddress is the flag of an address to listen at. Without a host it is of the loopback interface,
// so that nobody else can look unless that is asked for.
func listenAddress(s *pflag.FlagSet, to *string, name, usage string) {
	s.Var(&value{read: func(text string) error {
		host, port, err := net.SplitHostPort(text)
		if _, unknown := net.LookupPort("tcp", port); err != nil || port == "" || unknown != nil {
			return errors.New("want HOST:PORT, such as 127.0.0.1:8080, or 127.0.0.1:0 for a free port")
		}
		*to = net.JoinHostPort(cmp.Or(host, "127.0.0.1"), port)
		return nil
	}}, name, usage)
}

// listen takes the address of the dashboard, before anything else is opened or made. The caller closes
// what it returns, which is nil without a dashboard.
func (p *plan) listen() (net.Listener, error) {
	if p.dashboardAt == "" || p.member.Rank > 0 {
		return nil, nil
	}
	listener, err := net.Listen("tcp", p.dashboardAt)
	if err != nil {
		var at *net.OpError
		if errors.As(err, &at) {
			err = at.Err
		}
		return nil, badUsage("--dashboard %s: %v; want an address of this machine with a port that is free, such as 127.0.0.1:0", p.dashboardAt, err)
	}
	return listener, nil
}

// serveDashboard begins to serve, when it is known what the run is.
func (j *job) serveDashboard(_ context.Context, stderr io.Writer) error {
	d := &j.dashboard
	if j.listener == nil || j.member.Rank > 0 {
		return nil
	}
	var past metrics.History
	if j.out != "" {
		var err error
		if past, err = metrics.Read(filepath.Join(j.out, metrics.FileName)); err != nil {
			return err
		}
	}
	var err error
	if d.live, err = report.NewLive(j.describeRun(), past); err != nil {
		return err
	}
	d.live.Host, _, _ = net.SplitHostPort(j.dashboardAt)
	d.server = &http.Server{Handler: d.live, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute}
	d.over = make(chan struct{})
	go func() {
		d.server.Serve(j.listener) // ends with the server
		close(d.over)
	}()
	j.measures.writers = append(j.measures.writers, d.live)
	_, port, _ := net.SplitHostPort(j.listener.Addr().String())
	host := d.live.Host
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "localhost" // one of the addresses
	}
	_, err = fmt.Fprintf(stderr, "dashboard: http://%s/\n", net.JoinHostPort(host, port))
	return err
}

// farewell is how long pages have to hear how the run ended.
const farewell = 2 * time.Second

func (d *dashboard) close() error {
	if d.server == nil {
		return nil
	}
	d.live.Close()
	ctx, cancel := context.WithTimeout(context.Background(), farewell)
	defer cancel()
	if d.server.Shutdown(ctx) != nil {
		d.server.Close() // of those who do not read
	}
	<-d.over
	return nil
}
