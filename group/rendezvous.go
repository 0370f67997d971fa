package group

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"

	"penstock.example/internal/arg"
)

const (
	longWait = 2 * time.Second // after which a wait is logged
	dialTime = 5 * time.Second // bounds a call
)

// bindTime is how long a rank 0 of an earlier start may still have the port.
var bindTime = 10 * time.Second

// errTimeout is why a Join is given up after Config.Timeout.
var errTimeout = errors.New("the time to wait for the others is over; " + startAll)

const startAll = "want all ranks started by then, or more time (--join-timeout)"

// retry calls f, with growing pauses, until it succeeds, fails for good or the time is over. A long wait is
// logged. what names the attempt in messages; remedy is the advice after a failure.
func (c Config) retry(ctx context.Context, what, remedy string, within time.Duration,
	f func(context.Context) (final bool, err error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, within, errTimeout)
	defer cancel()
	var last error
	for began, pause, logged := time.Now(), 20*time.Millisecond, false; ; pause = min(2*pause, time.Second) {
		final, err := f(ctx)
		if err == nil || final {
			return err
		}
		// the end of the time cuts an attempt short, whose error says less
		if last == nil || ctx.Err() == nil {
			last = err
		}
		if !logged && time.Since(began) > longWait {
			logged = true
			c.Log.Info("group: "+what, "at", c.Address, "for", within, "error", last)
		}
		select {
		case <-time.After(pause):
			continue
		case <-ctx.Done():
		}
		if why := context.Cause(ctx); why != errTimeout {
			last = fmt.Errorf("%w; last: %w", why, last)
		}
		return fmt.Errorf("group: %s at %s, for %v: %w; %s", what, c.Address, within, last, remedy)
	}
}

// checkToken refuses to join without a token where other machines can reach the rendezvous.
func (c Config) checkToken(ip net.IP) error {
	if c.Token != "" || ip.IsLoopback() {
		return nil
	}
	problem := fmt.Sprintf("other machines can reach %v", ip)
	return &ConfigError{Of: "group", Field: "Token", Value: "", Problem: problem,
		Remedy: "want the same secret on all ranks, such as openssl rand -hex 32 prints (PENSTOCK_TOKEN)"}
}

// Join makes this process a member of a group. It blocks until all members have come, ctx is done or
// Config.Timeout has passed. If a rank is missing or comes twice, or if members differ in the size of the
// group or in libtorch, it fails on all ranks that have come. The caller closes the group.
func Join(ctx context.Context, cfg Config) (*Group, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	cfg = cfg.filled()
	if cfg.Size == 1 {
		return Local(1)[0], nil
	}
	c := newControl(cfg)
	if err := c.join(ctx); err != nil {
		_ = c.close()
		return nil, err
	}
	return &Group{rank: cfg.Rank, size: cfg.Size, first: c.first, member: c}, nil
}

func (c *control) join(user context.Context) (err error) {
	ctx, cancel := context.WithTimeoutCause(user, c.cfg.Timeout, errTimeout)
	defer cancel()
	var ip net.IP
	if c.cfg.Rank == 0 {
		ip, err = c.assemble(ctx, introduction(c.cfg))
	} else {
		ip, err = c.meetRank0(ctx, user, introduction(c.cfg))
	}
	if err != nil {
		return err
	}
	if c.carrier, err = openCarrier(ctx, c, ip); err == nil {
		_, err = c.gather(ctx, "joined", nil)
	}
	if err != nil {
		f := Failure{Rank: c.cfg.Rank, Stage: -1, MicroBatch: -1, Action: "joining", Message: err.Error()}
		c.fail(f.bounded())
		return c.first.get()
	}
	c.board.Close()
	return nil
}

// assemble is rank 0's part of the rendezvous: it waits for all members. It returns the address that it
// has listened on.
func (c *control) assemble(ctx context.Context, me hello) (net.IP, error) {
	ip, err := listenIP(ctx, c.cfg)
	if err == nil {
		err = c.cfg.checkToken(ip)
	}
	if err != nil {
		return nil, err
	}
	listener, err := listen(ctx, c.cfg, ip)
	if err != nil {
		return nil, err
	}
	l := &lobby{c: c, me: me, listener: listener}
	l.serves.Go(l.accept)
	defer l.close()
	for long := time.After(longWait); ; {
		select {
		case <-long:
			c.cfg.Log.Info("group: rank 0 waits for others to join", "at", c.cfg.Address, "missing",
				l.missing())
			continue
		case <-c.ready:
		case <-c.first.failed:
		case <-ctx.Done():
			if missing := l.missing(); missing != "" {
				c.end(&refusedError{cut(l.timeoutText(missing, context.Cause(ctx)), maxHandshake)})
			}
		}
		return ip, c.first.get()
	}
}

// listenIP returns the address of this machine that rank 0 listens on: the address of the rendezvous if this
// machine has it. Otherwise it is the address of a service, and rank 0 listens on the interface that leads
// there.
func listenIP(ctx context.Context, c Config) (net.IP, error) {
	host, _, _ := net.SplitHostPort(c.Address)
	var all []net.IP
	find := func(ctx context.Context) (_ bool, err error) {
		all, err = net.DefaultResolver.LookupIP(ctx, "ip", host)
		return false, err
	}
	const remedy = "want an address or a name of rank 0's machine (MASTER_ADDR or --rendezvous), " +
		"or more time (--join-timeout)"
	err := c.retry(ctx, "rank 0 looks up its address", remedy, c.Timeout, find)
	if err != nil {
		return nil, err
	}
	mine, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("group: %w", err)
	}
	for _, a := range all {
		for _, m := range mine {
			if n, ok := m.(*net.IPNet); ok && (n.IP.Equal(a) || a.IsLoopback() && n.Contains(a)) {
				return a, nil
			}
		}
	}
	route, err := net.Dial("udp", c.Address) // sends nothing
	if err != nil {
		return nil, fmt.Errorf("group: no interface of this machine leads to %s: %w", c.Address, err)
	}
	defer func() { _ = route.Close() }()
	return route.LocalAddr().(*net.UDPAddr).IP, nil
}

func listen(ctx context.Context, c Config, ip net.IP) (l net.Listener, err error) {
	_, port, _ := net.SplitHostPort(c.Address)
	const remedy = "want each rank once, and a port that is free (MASTER_PORT or --rendezvous)"
	err = c.retry(ctx, "rank 0 listens", remedy, bindTime, func(context.Context) (bool, error) {
		l, err = net.Listen("tcp", net.JoinHostPort(ip.String(), port))
		return !errors.Is(err, syscall.EADDRINUSE), err
	})
	return l, err
}

// lobby admits members at rank 0, until all are there. A connection has the time of Silence to prove that
// it knows the token.
type lobby struct {
	c        *control
	me       hello
	listener net.Listener
	serves   sync.WaitGroup

	mu        sync.Mutex
	closed    bool
	strangers []net.Conn // without a proof so far
	refused   string     // the last refusal
}

func (l *lobby) accept() {
	for {
		conn, err := l.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of file descriptors, most likely
			time.Sleep(100 * time.Millisecond)
			continue
		}
		l.mu.Lock()
		if l.strangers = append(l.strangers, conn); l.closed {
			_ = conn.Close()
		}
		l.mu.Unlock()
		l.serves.Go(func() { l.serve(conn) })
	}
}

// serve admits a member, or refuses a connection.
func (l *lobby) serve(conn net.Conn) {
	rank, who, ok, err := challengeMember(conn, l.c.cfg.Token, l.c.cfg.Silence)
	l.mu.Lock()
	l.strangers = slices.DeleteFunc(l.strangers, func(s net.Conn) bool { return s == conn })
	l.mu.Unlock()
	switch {
	case errors.Is(err, net.ErrClosed): // by this side
	case errors.Is(err, errToken):
		l.refuse(conn, err, fmt.Sprintf("group: rank 0 has refused this process: %v; "+
			"want the same token on all ranks (PENSTOCK_TOKEN)", err))
	case err != nil:
		l.refuse(conn, err, "")
	default:
		p := newPeer(rank, conn, l.c.cfg)
		p.who = who
		if problem := l.admit(p, ok); problem != nil {
			l.refuse(conn, problem, problem.text)
			l.c.end(problem) // nobody can join any more
		}
	}
}

// refuse ends a connection. If there is a text, the other side gets it.
func (l *lobby) refuse(conn net.Conn, why error, text string) {
	if text != "" {
		_ = conn.SetWriteDeadline(time.Now().Add(l.c.cfg.Silence))
		_, _ = conn.Write(frame{kindRefused, 0, []byte(text)}.encode())
	}
	_ = conn.Close()
	from, _, _ := net.SplitHostPort(conn.RemoteAddr().String())
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.refused == "" { // others would fill the log
		l.c.cfg.Log.Warn("group: a connection was refused", "from", from, "why", why)
	}
	l.refused = fmt.Sprintf("%s was refused: %v", from, why)
}

// admit makes a process that knows the token a member, or returns what is wrong with the job.
func (l *lobby) admit(p *peer, ok frame) *refusedError {
	c := l.c
	c.mu.Lock()
	defer c.mu.Unlock()
	refuse := func(format string, args ...any) *refusedError {
		return &refusedError{cut("group: "+fmt.Sprintf(format, args...), maxHandshake)}
	}
	there := c.peers[p.rank]
	switch size := c.cfg.Size; {
	case c.started || c.first.get() != nil: // the listener closes now
		_ = p.conn.Close()
		return nil
	case p.who.Libtorch != l.me.Libtorch:
		return refuse("rank %d has libtorch %s, and rank 0 %s; want the same on all ranks",
			p.rank, p.who.Libtorch, l.me.Libtorch)
	case p.who.Size != size:
		return refuse("rank %d is one of %d processes, and rank 0 one of %d; "+
			"want the same WORLD_SIZE, and as many replicas, on all ranks", p.rank, p.who.Size, size)
	case p.rank < 1 || p.rank >= size:
		return refuse("there is a rank %d in a group of %d", p.rank, size)
	case there != nil:
		return refuse("rank %d is there twice: %v, and %v; want each rank once, and another port for "+
			"another job "+
			"(MASTER_PORT or --rendezvous)", p.rank, there.who, p.who)
	}
	p.send(ok.encode())
	if c.add(p); len(c.peers) == c.cfg.Size-1 {
		for _, p := range c.peers {
			p.send(frame{kind: kindReady}.encode())
		}
		c.start()
	}
	return nil
}

// missing names the ranks that are not connected.
func (l *lobby) missing() string {
	l.c.mu.Lock()
	defer l.c.mu.Unlock()
	var ranks []int
	for r := 1; r < l.c.cfg.Size; r++ {
		if l.c.peers[r] == nil {
			ranks = append(ranks, r)
		}
	}
	return arg.Numbered("rank", ranks)
}

// timeoutText says which ranks have not come.
func (l *lobby) timeoutText(missing string, why error) string {
	cfg := l.c.cfg
	text := fmt.Sprintf("group: rank 0 waited for %s: %v", missing, why)
	if why == errTimeout {
		text = fmt.Sprintf("group: %s of %d did not come to %s within %v; %s",
			missing, cfg.Size, cfg.Address, cfg.Timeout, startAll)
	}
	if at := l.listener.Addr().String(); at != cfg.Address {
		text += "; rank 0 listens at " + at
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.refused != "" {
		text += "; " + l.refused
	}
	return text
}

// close ends the listener and all handshakes.
func (l *lobby) close() {
	_ = l.listener.Close()
	l.mu.Lock()
	l.closed = true
	for _, conn := range l.strangers {
		_ = conn.Close()
	}
	l.mu.Unlock()
	l.serves.Wait()
}

// meetRank0 is the part of the other members: it connects to rank 0 and waits until all are there. It
// returns the address by which this process reaches rank 0. user is ctx without the timeout.
func (c *control) meetRank0(ctx, user context.Context, me hello) (net.IP, error) {
	conn, err := dialRank0(ctx, c.cfg, me)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.add(newPeer(0, conn, c.cfg))
	c.mu.Unlock()
	// Rank 0's time ends first, and it knows who is missing.
	ctx, cancel := context.WithTimeoutCause(user, c.cfg.Timeout+c.cfg.Silence, errTimeout)
	defer cancel()
	select {
	case <-c.ready:
		return conn.LocalAddr().(*net.TCPAddr).IP, nil
	case <-c.first.failed:
		return nil, c.first.get()
	case <-ctx.Done():
		return nil, fmt.Errorf("group: rank %d of %d has reached rank 0, and waited for others: %w",
			c.cfg.Rank, c.cfg.Size, context.Cause(ctx))
	}
}

// dialRank0 calls until rank 0 answers. The name of its host may be known later, like the name of a container
// that starts later. A rank 0 of an earlier start may answer meanwhile.
func dialRank0(ctx context.Context, c Config, me hello) (conn net.Conn, err error) {
	d := net.Dialer{Timeout: dialTime}
	what := fmt.Sprintf("rank %d of %d calls rank 0", c.Rank, c.Size)
	const remedy = "want rank 0 started by then, an address of it that this machine reaches " +
		"(MASTER_ADDR and MASTER_PORT, or --rendezvous), or more time (--join-timeout)"
	err = c.retry(ctx, what, remedy, c.Timeout, func(ctx context.Context) (final bool, err error) {
		if conn, err = d.DialContext(ctx, "tcp", c.Address); err != nil {
			return false, err
		}
		if err = c.checkToken(conn.RemoteAddr().(*net.TCPAddr).IP); err != nil {
			final = true
		} else if err = introduce(conn, c.Token, c.Rank, me, c.Silence); err != nil {
			var refused *refusedError
			if final = errors.As(err, &refused); !final {
				err = fmt.Errorf("what listens there is not rank 0 of this job: %w", err)
			}
		}
		if err != nil {
			_ = conn.Close()
		}
		return final, err
	})
	return conn, err
}
