package group

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"penstock.example/internal/arg"
)

// host is rank 0's part in bringing the members together: it lets in who knows the token, and says
// to all what is wrong.
type host struct {
	c      *control
	me     hello
	token  string
	listen net.Listener
	serves sync.WaitGroup

	mu        sync.Mutex
	members   map[int]*peer // that were let in and are still there
	complete  bool
	fatal     string            // what is wrong with the members: nobody is let in any more
	told      map[int]bool      // the ranks that know what is fatal
	uncounted bool              // there are members of another size: nobody knows which ranks are still to come
	wrong     chan struct{}     // closed when fatal is set
	settled   chan struct{}     // closed when complete, or fatal and known to all
	refused   string            // who was refused last, and why
	shaking   map[net.Conn]bool // connections in a handshake; nil after close
}

// handshakes is the most connections that may be in a handshake: those who do not know the token
// cannot take more.
const handshakes = 128

// newHost starts to listen.
func newHost(c *control, me hello, ip net.IP) (*host, error) {
	l, err := net.Listen("tcp", net.JoinHostPort(ip.String(), "0"))
	if err != nil {
		return nil, fmt.Errorf("group: rank 0 cannot listen on %v: %w", ip, err)
	}
	h := &host{
		c: c, me: me, token: cmp.Or(c.cfg.Token, rand.Text()), listen: l,
		members: map[int]*peer{}, told: map[int]bool{}, wrong: make(chan struct{}), settled: make(chan struct{}), shaking: map[net.Conn]bool{},
	}
	h.serves.Go(h.accept)
	return h, nil
}

// publish says in the store where rank 0 listens.
func (h *host) publish(s *store) error {
	k := contact{address: h.listen.Addr().String()}
	s.first = k.address
	if h.c.cfg.Token == "" { // the job has none: who reads the store may join
		k.token = h.token
	}
	return s.Set(s.prefix+controlKey, []byte(k.String()))
}

func (h *host) accept() {
	limit := make(chan struct{}, handshakes)
	for {
		conn, err := h.listen.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of file descriptors, most likely
			time.Sleep(askAgain)
			continue
		}
		select {
		case limit <- struct{}{}:
			h.serves.Go(func() {
				defer func() { <-limit }()
				h.serve(conn)
			})
		default:
			_ = conn.Close()
		}
	}
}

// serve lets a member in, or refuses it.
func (h *host) serve(conn net.Conn) {
	h.mu.Lock()
	closed := h.shaking == nil
	if !closed {
		h.shaking[conn] = true
	}
	h.mu.Unlock()
	if closed {
		_ = conn.Close()
		return
	}
	defer func() {
		h.mu.Lock()
		delete(h.shaking, conn)
		h.mu.Unlock()
	}()
	who, ok, err := challengeMember(conn, h.token, h.c.cfg.Silence)
	if err != nil {
		if errors.Is(err, errToken) {
			_, _ = conn.Write(frame(refusal{"group: rank 0 has refused this process: " + errToken.Error() + "; want the same token on all ranks (PENSTOCK_TOKEN)"}))
		}
		h.refuse(conn, err.Error())
		return
	}
	p := newPeer(who.rank, conn, h.c.cfg)
	p.who = who
	if wrong := h.admit(p, ok); wrong != "" {
		_ = conn.SetWriteDeadline(time.Now().Add(h.c.cfg.Silence))
		_, _ = conn.Write(frame(refusal{cut(wrong, MaxMessage)}))
		h.mu.Lock()
		fatal := wrong == h.fatal
		if fatal { // not before it was sent: when all know, rank 0 closes the connections
			h.tellOf(who.rank)
		}
		h.mu.Unlock()
		if fatal { // which rank 0 says itself
			_ = conn.Close()
			return
		}
		h.refuse(conn, wrong)
	}
}

// refuse ends a connection.
func (h *host) refuse(conn net.Conn, why string) {
	h.mu.Lock()
	h.refused = fmt.Sprintf("%v was refused: %s", conn.RemoteAddr(), why)
	h.mu.Unlock()
	h.c.cfg.log().Warn("group: a connection was refused", "from", conn.RemoteAddr().String(), "why", why)
	_ = conn.Close()
}

// admit makes who has proved to know the token a member, or says what is wrong.
func (h *host) admit(p *peer, ok welcome) (wrong string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	who := p.who
	there, taken := h.me, who.rank == 0
	if m := h.members[who.rank]; m != nil {
		there, taken = m.who, true
		if m.gone() {
			taken = h.complete
		}
	}
	switch {
	case h.complete && taken:
		return fmt.Sprintf("group: rank %d is there already: %v, and the job runs; want each rank once, and another port for another job (MASTER_PORT or --rendezvous)", who.rank, there)
	case h.complete:
		return fmt.Sprintf("group: the job of this port runs, with %d ranks; want another port for another job (MASTER_PORT or --rendezvous)", h.c.cfg.Size)
	case h.fatal != "":
		return h.fatal
	case who.libtorch != h.me.libtorch:
		return h.refuseAll("group: rank %d has libtorch %s, and rank 0 %s; want the same on all ranks", who.rank, who.libtorch, h.me.libtorch)
	case who.size != h.c.cfg.Size:
		h.uncounted = true
		return h.refuseAll("group: rank %d is one of %d processes, and rank 0 one of %d; want the same WORLD_SIZE, and as many replicas, on all ranks", who.rank, who.size, h.c.cfg.Size)
	case who.rank < 0 || who.rank >= h.c.cfg.Size:
		return h.refuseAll("group: there is a rank %d in a group of %d", who.rank, h.c.cfg.Size)
	case taken:
		return h.refuseAll("group: rank %d is there twice: %v, and %v; want each rank once, and another port for another job (MASTER_PORT or --rendezvous)", who.rank, there, who)
	}
	p.send(ok)
	h.members[who.rank] = p
	h.c.add(p)
	if missing := h.missing(); missing != "" {
		h.c.tell(waiting{missing}, nil)
		return ""
	}
	h.complete = true
	h.c.start()
	h.c.tell(ready{}, nil)
	for r, p := range h.members {
		if p.gone() { // since it was counted
			h.c.end(&LostError{Rank: r, Why: "it has gone before it was told that all are there"}, nil)
		}
	}
	close(h.settled)
	return ""
}

// String is a process in words.
func (m hello) String() string { return fmt.Sprintf("pid %d on %s", m.pid, m.host) }

// refuseAll tells all members that are there, and those to come, what is wrong. A member that knows may have gone
// by now. Its caller has the lock.
func (h *host) refuseAll(format string, args ...any) string {
	h.fatal = cut(fmt.Sprintf(format, args...), MaxMessage)
	close(h.wrong)
	h.c.tell(refusal{h.fatal}, nil)
	for r, p := range h.members {
		if h.c.knows(p) {
			h.tellOf(r)
		}
	}
	return h.fatal
}

// tellOf records that a rank knows what is wrong. When all do, the rendezvous has ended.
func (h *host) tellOf(rank int) {
	if rank < 1 || rank >= h.c.cfg.Size || h.told[rank] {
		return
	}
	if h.told[rank] = true; len(h.told) == h.c.cfg.Size-1 {
		close(h.settled)
	}
}

// missing names the ranks that are not there to join. Its caller has the lock.
func (h *host) missing() string {
	return h.absent(func(r int) bool {
		p := h.members[r]
		return p == nil || p.gone() || p.who.refuses != 0
	})
}

// absent names the ranks of which this is so. Its caller has the lock.
func (h *host) absent(is func(rank int) bool) string {
	var ranks []int
	for r := 1; r < h.c.cfg.Size; r++ {
		if is(r) {
			ranks = append(ranks, r)
		}
	}
	return arg.Numbered("rank", ranks)
}

// lingers is how long rank 0 stays for those who come late where it does not know who that is.
const lingers = 10 * time.Second

// assemble waits for all members. Its error says who is missing, what is wrong with whom, or which
// member will not join: after all have come to hear that, or ctx is done.
func (h *host) assemble(ctx context.Context) error {
	defer whenLong(func() { h.logMissing("group: rank 0 waits for others to join", "at", h.c.cfg.Address) })()
	select {
	case <-h.settled:
	case <-h.wrong:
	case <-h.c.first.failed:
		var e *FailedError
		if errors.As(h.c.first.get(), &e) {
			h.wontJoin(e.Failure)
		}
	case <-ctx.Done():
		h.giveUp(context.Cause(ctx))
	}
	h.mu.Lock()
	fatal, uncounted := h.fatal, h.uncounted
	h.mu.Unlock()
	if fatal == "" {
		return nil
	}
	if uncounted {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, lingers)
		defer cancel()
	}
	_ = h.tellAll(ctx)
	return cmp.Or(h.c.first.get(), errors.New(fatal))
}

// logMissing logs which ranks have not come, if some have not.
func (h *host) logMissing(text string, more ...any) {
	h.mu.Lock()
	missing := h.absent(func(r int) bool { return !h.told[r] && (h.members[r] == nil || h.members[r].gone()) })
	h.mu.Unlock()
	if missing != "" {
		h.c.cfg.log().Info(text, append([]any{"missing", missing}, more...)...)
	}
}

// wontJoin tells all that a rank will not join, unless all are there: then they know.
func (h *host) wontJoin(f Failure) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.fatal == "" && !h.complete {
		h.refuseAll("%v", &FailedError{f})
	}
}

// tellAll waits until all members know what is fatal. Its error names those who do not.
func (h *host) tellAll(ctx context.Context) error {
	defer h.c.flush(time.Second)
	defer whenLong(func() { h.logMissing("group: rank 0 waits for others to tell them", "what", h.fatal) })()
	select {
	case <-h.settled:
		return nil
	case <-ctx.Done():
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return fmt.Errorf("group: %s did not come to be told", h.absent(func(r int) bool { return !h.told[r] }))
}

// giveUp says who has not come, if that is still so.
func (h *host) giveUp(why error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.fatal != "" || h.complete {
		return
	}
	text := fmt.Sprintf("group: rank 0 waited for %s: %v", h.missing(), why)
	if why == errTimeout {
		text = fmt.Sprintf("group: %s of %d did not come to %s within %v; want all ranks started by then, or more time (--join-timeout)", h.missing(), h.c.cfg.Size, h.c.cfg.Address, h.c.cfg.Timeout)
	}
	if h.refused != "" {
		text += "; " + h.refused
	}
	h.refuseAll("%s", text)
}

// close lets nobody in any more.
func (h *host) close() {
	_ = h.listen.Close()
	h.mu.Lock()
	for conn := range h.shaking {
		_ = conn.Close()
	}
	h.shaking = nil
	h.mu.Unlock()
	h.serves.Wait()
}
