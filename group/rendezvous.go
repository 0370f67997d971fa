package group

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"

	"penstock.example/internal/arg"
)

const (
	longWait = 2 * time.Second // longer waits are logged
	dialTime = 5 * time.Second // the limit of one dial

	maxStrangers = 128 // connections at rank 0 beyond one for each member; one more closes the oldest
)

// bindTime is how long rank 0 of an earlier start may keep the port.
var bindTime = 10 * time.Second

// errTimeout ends a Join after Config.Timeout.
var errTimeout = errors.New("the time to wait for the others is over; " +
	"want all ranks started by then, or more time (--join-timeout)")

// retry calls f, with growing pauses, until it succeeds, its failure is final or the time is over.
// A long wait is logged. what names the attempt in messages; remedy is the advice after a failure.
func (c Config) retry(ctx context.Context, what, remedy string,
	f func(context.Context) (final bool, err error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, c.Timeout, errTimeout)
	defer cancel()
	var last error
	for began, pause, logged := time.Now(), 20*time.Millisecond, false; ; pause = min(2*pause, time.Second) {
		final, err := f(ctx)
		if err == nil || final {
			return err
		}
		if last == nil || ctx.Err() == nil { // the error of an attempt that ctx cut short says less
			last = err
		}
		if !logged && time.Since(began) > longWait {
			logged = true
			c.Log.Info("group: "+what, "at", c.Address, "for", c.Timeout, "error", last)
		}
		select {
		case <-time.After(pause):
			continue
		case <-ctx.Done():
		}
		if why := context.Cause(ctx); why != errTimeout {
			last = fmt.Errorf("%w; last: %w", why, last)
		}
		return fmt.Errorf("group: %s at %s, for %v: %w; %s", what, c.Address, c.Timeout, last, remedy)
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

// Join makes this process a member of a group. It blocks until all members have joined, ctx is done or
// Config.Timeout has passed. If a rank is missing or joins twice, or if members differ in the size of the
// group or in libtorch, Join fails on all ranks that call it. The caller closes the group.
func Join(ctx context.Context, cfg Config) (*Group, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	if cfg.Size == 1 {
		return Local(1)[0], nil
	}
	c := newControl(cfg)
	if err := c.join(ctx); err != nil {
		c.close()
		return nil, err
	}
	return &Group{rank: cfg.Rank, size: cfg.Size, failure: c.failure, gathers: c.gathers, member: c}, nil
}

func (c *control) join(ctx context.Context) (err error) {
	timeout, connect := c.cfg.Timeout, c.assemble
	if c.cfg.Rank != 0 { // rank 0, which knows who is missing, gives up first
		timeout, connect = timeout+c.cfg.Silence, c.meetRank0
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, errTimeout)
	defer cancel()
	ip, err := connect(ctx, introduction(c.cfg))
	if err != nil {
		return err
	}
	if c.tensorTransport, err = openTransport(ctx, c, ip); err == nil {
		_, err = c.gathers.gather(ctx, part{What: "joined"})
	}
	if err != nil {
		c.fail(&FailedError{c.cfg.Rank, -1, -1, "joining", cut(err.Error(), maxText), false})
		return c.failure.get()
	}
	c.board.Close()
	return nil
}

// assemble is rank 0's part of the rendezvous. It waits for all members, and returns the address that it has
// listened on.
func (c *control) assemble(ctx context.Context, me greeting) (net.IP, error) {
	listener, err := listen(ctx, c.cfg)
	if err != nil {
		return nil, err
	}
	joining, end := context.WithCancel(ctx)
	defer func() {
		end()
		_ = listener.Close()
	}()
	c.serves.Go(func() {
		// Functions that close the last connections, except for members' connections.
		last := make([]context.CancelFunc, c.cfg.Size+maxStrangers)
		for i := 0; ; {
			conn, err := listener.Accept()
			switch {
			case errors.Is(err, net.ErrClosed):
				return
			case err != nil: // out of file descriptors, most likely
				time.Sleep(100 * time.Millisecond)
			default:
				ctx, drop := context.WithCancel(joining)
				if last[i] != nil {
					last[i]()
				}
				last[i], i = drop, (i+1)%len(last)
				c.serves.Go(func() { c.serve(ctx, conn, me) })
			}
		}
	})
	defer time.AfterFunc(longWait, func() {
		missing, _ := c.missing()
		c.cfg.Log.Info("group: rank 0 waits for others to join", "at", c.cfg.Address, "missing", missing)
	}).Stop()
	select {
	case <-c.ready:
	case <-c.failure.failed:
	case <-ctx.Done():
		if missing, refused := c.missing(); missing != "" {
			c.end(&refusedError{fmt.Sprintf("group: %s of %d did not come to %s within %v: %v%s", missing,
				c.cfg.Size, c.cfg.Address, c.cfg.Timeout, context.Cause(ctx), refused)})
		}
	}
	return listener.Addr().(*net.TCPAddr).IP, c.failure.get()
}

// missing names the ranks that are not connected, and the last connection that was refused.
func (c *control) missing() (ranks, refused string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var missing []int
	for r := 1; r < c.cfg.Size; r++ {
		if c.peers[r] == nil {
			missing = append(missing, r)
		}
	}
	return arg.Numbered("rank", missing), c.refused
}

// listen opens rank 0's listener. It retries, as the name of the host may not resolve yet.
func listen(ctx context.Context, c Config) (l net.Listener, err error) {
	host, port, _ := net.SplitHostPort(c.Address)
	began := time.Now()
	const remedy = "want rank 0's host (MASTER_ADDR, --rendezvous), or more time (--join-timeout)"
	err = c.retry(ctx, "rank 0 listens", remedy, func(ctx context.Context) (final bool, err error) {
		ip, err := ownIP(ctx, host, c.Address)
		if err != nil {
			return false, err
		}
		if err := c.checkToken(ip); err != nil {
			return true, err
		}
		if l, err = net.Listen("tcp", net.JoinHostPort(ip.String(), port)); err != nil {
			const text = "group: rank 0 listens at %s: %w; want each rank once, and a free port"
			err = fmt.Errorf(text, c.Address, err)
		}
		return !errors.Is(err, syscall.EADDRINUSE) || time.Since(began) > bindTime, err
	})
	return l, err
}

// ownIP returns the address that rank 0 listens on: the address of the rendezvous if this machine
// has it. Otherwise the rendezvous is a service's address, and rank 0 listens on the interface that
// leads there.
func ownIP(ctx context.Context, host, address string) (net.IP, error) {
	all, err := net.DefaultResolver.LookupIP(ctx, "ip", host)
	if err != nil {
		return nil, err
	}
	mine, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	for _, a := range all {
		for _, m := range mine {
			if n, ok := m.(*net.IPNet); ok && (n.IP.Equal(a) || a.IsLoopback() && n.Contains(a)) {
				return a, nil
			}
		}
	}
	route, err := net.Dial("udp", address) // sends nothing
	if err != nil {
		return nil, fmt.Errorf("no interface of this machine leads there: %w", err)
	}
	defer func() { _ = route.Close() }()
	return route.LocalAddr().(*net.UDPAddr).IP, nil
}

// serve admits a member at rank 0, or refuses a connection. Each step of the handshake must end within
// Config.Silence. The end of ctx closes the connection.
func (c *control) serve(ctx context.Context, conn net.Conn, me greeting) {
	keepOpen := context.AfterFunc(ctx, func() { _ = conn.Close() })
	p := newPeer(0, conn, c.cfg)
	var ok frame
	var err error
	if p.rank, p.who, ok, err = challengeMember(conn, c.cfg); !keepOpen() {
		return
	}
	var problem *refusedError
	switch {
	case err == nil:
		if problem = c.admit(p, ok, me); problem == nil {
			return
		}
		err = problem
		defer c.end(problem)
	case errors.Is(err, errToken):
		problem = &refusedError{fmt.Sprintf("group: rank 0 has refused this process: %v; want the same "+
			"token on all ranks (PENSTOCK_TOKEN)", err)}
	}
	if problem != nil {
		_ = conn.SetWriteDeadline(time.Now().Add(c.cfg.Silence))
		_, _ = conn.Write(endFrame(0, problem).encode())
	}
	_ = conn.Close()
	from, _, _ := net.SplitHostPort(conn.RemoteAddr().String())
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refused == "" { // more would fill the log
		c.cfg.Log.Warn("group: a connection was refused", "from", from, "why", err)
	}
	c.refused = fmt.Sprintf("; %s was refused: %v", from, err)
}

// admit makes a timely process that knows the token a member, or returns the mistake in the job.
func (c *control) admit(p *peer, ok frame, me greeting) *refusedError {
	c.mu.Lock()
	defer c.mu.Unlock()
	refuse := func(format string, args ...any) *refusedError {
		return &refusedError{fmt.Sprintf("group: rank %d "+format, append([]any{p.rank}, args...)...)}
	}
	switch earlier, size := c.peers[p.rank], c.cfg.Size; {
	case closed(c.ready) || c.failure.get() != nil:
		_ = p.conn.Close() // too late
		return nil
	case p.who.Libtorch != me.Libtorch:
		return refuse("has libtorch %s, rank 0 %s; want the same on all", p.who.Libtorch, me.Libtorch)
	case p.who.Size != size:
		return refuse("is one of %d processes, and rank 0 one of %d; want the same WORLD_SIZE and replicas",
			p.who.Size, size)
	case p.rank < 1 || p.rank >= size:
		return refuse("joins a group of %d; want 1 to %d", size, size-1)
	case earlier != nil:
		return refuse("is there twice: %v, and %v; want each rank once, and another port for another job",
			earlier.who.process(), p.who.process())
	}
	p.send(ok.encode())
	if c.add(p); len(c.peers) == c.cfg.Size-1 {
		for _, p := range c.peers {
			p.send(frame{kind: kindReady}.encode())
		}
		close(c.ready)
	}
	return nil
}

// meetRank0 is the other members' part of the rendezvous. It connects to rank 0 and waits for all
// members. It returns this process's address on that connection.
func (c *control) meetRank0(ctx context.Context, me greeting) (net.IP, error) {
	conn, err := dialRank0(ctx, c.cfg, me)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.add(newPeer(0, conn, c.cfg))
	c.mu.Unlock()
	select {
	case <-c.ready:
		return conn.LocalAddr().(*net.TCPAddr).IP, nil
	case <-c.failure.failed:
		return nil, c.failure.get()
	case <-ctx.Done():
		return nil, fmt.Errorf("group: rank %d of %d has reached rank 0, and waited for others: %w",
			c.cfg.Rank, c.cfg.Size, context.Cause(ctx))
	}
}

// dialRank0 dials until rank 0 answers. The host's name may not resolve yet, such as the name of a
// container that starts later. Rank 0 of an earlier start of the job may answer first.
func dialRank0(ctx context.Context, c Config, me greeting) (conn net.Conn, err error) {
	d := net.Dialer{Timeout: dialTime}
	what := fmt.Sprintf("rank %d of %d calls rank 0", c.Rank, c.Size)
	const remedy = "want rank 0 started by then and reachable there, or more time (--join-timeout)"
	err = c.retry(ctx, what, remedy, func(ctx context.Context) (final bool, err error) {
		if conn, err = d.DialContext(ctx, "tcp", c.Address); err != nil {
			return false, err
		}
		if err = c.checkToken(conn.RemoteAddr().(*net.TCPAddr).IP); err != nil {
			final = true
		} else if err = introduce(conn, c, me); err != nil {
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
