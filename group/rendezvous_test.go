package group_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock.example/group"
	"penstock.example/internal/torchtest"
)

// attempt is a process that tries to join. It may come late.
type attempt struct {
	change func(*group.Config)
	late   time.Duration
}

func rank(n int) attempt { return attempt{change: func(c *group.Config) { c.Rank = n }} }

// attempts has all try to join, and returns their errors.
func attempts(t *testing.T, cfg settings, all ...attempt) []error {
	t.Helper()
	torchtest.Check(t)
	errs := make([]error, len(all))
	groups := make([]*group.Group, len(all))
	var wg sync.WaitGroup
	for i, a := range all {
		wg.Go(func() {
			cfg := cfg.Config
			a.change(&cfg)
			time.Sleep(a.late)
			groups[i], errs[i] = group.Join(context.Background(), cfg)
		})
	}
	wg.Wait()
	for _, g := range groups {
		if g != nil {
			wg.Go(func() { _ = g.Close() })
		}
	}
	wg.Wait()
	return errs
}

// allSay checks that all attempts ended with an error that has the text.
func allSay(t *testing.T, errs []error, want ...string) {
	t.Helper()
	for i, err := range errs {
		for _, w := range want {
			if err == nil || !strings.Contains(err.Error(), w) {
				t.Errorf("process %d: got %v; want %s", i, err, w)
			}
		}
	}
}

func TestARankTwice(t *testing.T) {
	allSay(t, attempts(t, config(t, 3), rank(0), rank(1), rank(1)), "rank 1 is there twice: pid ", "want each rank once")
}

func TestRank0Twice(t *testing.T) {
	late := rank(0)
	late.late = 100 * time.Millisecond
	last := rank(1)
	last.late = 2 * time.Second // when the second rank 0 has given up
	errs := attempts(t, config(t, 2), rank(0), late, last)
	allSay(t, errs[1:2], "rank 0 listens at ", "address already in use; want each rank once, and a port that is free")
	none(t, []error{errs[0], errs[2]})
}

func TestARankThatIsMissing(t *testing.T) {
	cfg := config(t, 4)
	cfg.Timeout = time.Second
	allSay(t, attempts(t, cfg, rank(0), rank(2)), "group: ranks 1 and 3 of 4 did not come to "+cfg.Address+" within 1s")
}

func TestRank0IsMissing(t *testing.T) {
	cfg := config(t, 3)
	cfg.Timeout = 500 * time.Millisecond
	allSay(t, attempts(t, cfg, rank(1), rank(2)), "calls rank 0 at "+cfg.Address+", for 500ms: ", "connection refused; want rank 0 started by then")
}

func TestAnotherSize(t *testing.T) {
	other := attempt{change: func(c *group.Config) { c.Rank, c.Size = 2, 4 }}
	allSay(t, attempts(t, config(t, 3), rank(0), other), "rank 2 is one of 4 processes, and rank 0 one of 3; want the same WORLD_SIZE, and as many replicas,")
}

func TestAnotherToken(t *testing.T) {
	with := func(n int, token string) attempt {
		return attempt{change: func(c *group.Config) { c.Rank, c.Token, c.Timeout = n, token, time.Second }}
	}
	errs := attempts(t, config(t, 2), with(0, "a"), with(1, "b"))
	allSay(t, errs[:1], "rank 1 of 2 did not come to 127.0.0.1:", "was refused: it does not know the job's token")
	allSay(t, errs[1:], "rank 0 has refused this process: it does not know the job's token")
	errs = attempts(t, config(t, 2), with(0, "a"), with(1, ""))
	allSay(t, errs[1:], "rank 0 has refused this process: it does not know the job's token")
	errs = attempts(t, config(t, 2), with(0, ""), with(1, "b"))
	allSay(t, errs[1:], "rank 0 has refused this process: it does not know the job's token")
	none(t, attempts(t, config(t, 2), with(0, "a"), with(1, "a")))
}

// TestNoToken: without a token nobody listens, or joins, where other machines can reach it.
func TestNoToken(t *testing.T) {
	own := ""
	all, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok && !n.IP.IsLoopback() && !n.IP.IsLinkLocalUnicast() {
			own = n.IP.String()
		}
	}
	if own == "" {
		t.Skip("there is no interface but the loopback one")
	}
	cfg := config(t, 2)
	cfg.Address, cfg.Timeout = net.JoinHostPort(own, port(cfg)), time.Second
	l, err := net.Listen("tcp", net.JoinHostPort(own, "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	there := rank(1)
	there.change = func(c *group.Config) { c.Rank, c.Address = 1, l.Addr().String() }
	for n, err := range attempts(t, cfg, rank(0), there) {
		var refused *group.ConfigError
		if !errors.As(err, &refused) || refused.Field != "Token" || !strings.Contains(err.Error(), "other machines can reach "+own+"; want the same secret on all ranks") {
			t.Errorf("rank %d: %v", n, err)
		}
	}
	cfg.Token, cfg.Timeout = "a", time.Minute
	none(t, attempts(t, cfg, rank(0), rank(1)))
}

// TestAPortThatIsTaken: what listens there never answers.
func TestAPortThatIsTaken(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	cfg := settings{Config: group.Config{Size: 2, Address: l.Addr().String(), Timeout: time.Second, Heartbeat: 20 * time.Millisecond, Silence: 100 * time.Millisecond}}
	errs := attempts(t, cfg, rank(0), rank(1))
	allSay(t, errs[:1], "rank 0 listens at "+cfg.Address, "address already in use", "want each rank once, and a port that is free")
	allSay(t, errs[1:], "rank 1 of 2 calls rank 0 at "+cfg.Address+", for 1s: what listens there is not rank 0 of this job: ")
}

// port is the port of the rendezvous.
func port(cfg settings) string {
	_, port, _ := net.SplitHostPort(cfg.Address)
	return port
}

// TestAnAddressOfAnotherMachine: rank 0 is not where all are told that it is. It may be: the address may be
// that of a service.
func TestAnAddressOfAnotherMachine(t *testing.T) {
	cfg := config(t, 2)
	cfg.Token, cfg.Timeout = "a", 300*time.Millisecond
	cfg.Address = net.JoinHostPort("192.0.2.1", port(cfg)) // is for documentation, and nobody's
	errs := attempts(t, cfg, rank(0), rank(1))
	if text := fmt.Sprint(errs[0]); !strings.Contains(text, "no interface of this machine leads to "+cfg.Address) && !strings.Contains(text, "did not come to "+cfg.Address+" within 300ms; ") {
		t.Errorf("rank 0: %v", errs[0])
	}
	allSay(t, errs[1:], "calls rank 0 at "+cfg.Address)
}

// TestAHostWithoutAnAddress: a name may come later, and no rank waits for what is none.
func TestAHostWithoutAnAddress(t *testing.T) {
	cfg := config(t, 2)
	cfg.Address = net.JoinHostPort("no body", port(cfg))
	for n, err := range attempts(t, cfg, rank(0), rank(1)) {
		var refused *group.ConfigError
		if !errors.As(err, &refused) || refused.Field != "Address" || !strings.Contains(refused.Error(), "want host:port of rank 0") {
			t.Errorf("rank %d: %v is no refused address", n, err)
		}
	}
	cfg.Address = net.JoinHostPort("nobody.invalid", port(cfg))
	cfg.Timeout = 3 * time.Second
	var said safeBuffer
	cfg.Log = slog.New(slog.NewTextHandler(&said, nil))
	errs := attempts(t, cfg, rank(0), rank(1))
	allSay(t, errs[:1], "rank 0 looks up its address at "+cfg.Address+", for 3s: ", "no such host; want an address or a name of rank 0's machine")
	allSay(t, errs[1:], "rank 1 of 2 calls rank 0 at "+cfg.Address+", for 3s: ", "no such host; want rank 0 started by then")
	for _, want := range []string{"rank 0 looks up its address", "rank 1 of 2 calls rank 0", "no such host"} {
		if !strings.Contains(said.String(), want) {
			t.Errorf("%q is not said in\n%s", want, said.String())
		}
	}
}

func TestJoinIsGivenUp(t *testing.T) {
	torchtest.Check(t)
	for n := range 2 {
		cfg := config(t, 2)
		cfg.Rank = n
		ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
		if _, err := group.Join(ctx, cfg.Config); !errors.Is(err, context.DeadlineExceeded) && !strings.Contains(fmt.Sprint(err), "deadline exceeded") {
			t.Errorf("rank %d: %v", n, err)
		}
		cancel()
	}
}

// TestWhatIsLeftOfAnEarlierStart: a member finds what is left of a rank 0 that has gone, before the new one
// has come.
func TestWhatIsLeftOfAnEarlierStart(t *testing.T) {
	cfg := config(t, 2)
	old, err := net.Listen("tcp", cfg.Address)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			conn, err := old.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	}()
	time.AfterFunc(300*time.Millisecond, func() { _ = old.Close() })
	none(t, attempts(t, cfg, rank(1), rank(0)))
}

// listeners are the addresses at which somebody listens at a port, as /proc/net/tcp has them.
func listeners(t *testing.T, port string) (at []string) {
	t.Helper()
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		text, _ := os.ReadFile(file) // without IPv6 there is no second one
		for line := range strings.Lines(string(text)) {
			f := strings.Fields(line)
			if len(f) > 3 && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", n)) && f[3] == "0A" {
				at = append(at, f[1])
			}
		}
	}
	return at
}

// TestStrangersAreRefused: while a group joins, others connect and say what they like, more than may at a
// time. Rank 0 listens at one address meanwhile, and nowhere when all are there.
func TestStrangersAreRefused(t *testing.T) {
	torchtest.Check(t)
	var logged safeBuffer
	cfg := config(t, 2)
	cfg.Log = slog.New(slog.NewTextHandler(&logged, nil))
	var all [2]*group.Group
	var errs [2]error
	var joins, strangers sync.WaitGroup
	join := func(rank int) {
		joins.Go(func() {
			cfg := cfg.Config
			cfg.Rank = rank
			all[rank], errs[rank] = group.Join(context.Background(), cfg)
		})
	}
	join(0)
	for len(listeners(t, port(cfg))) == 0 {
		time.Sleep(time.Millisecond)
	}
	if at := listeners(t, port(cfg)); len(at) != 1 || !strings.HasPrefix(at[0], "0100007F:") {
		t.Errorf("rank 0 listens at %q; want 127.0.0.1", at)
	}
	say := map[string][]byte{
		"nothing":    nil,
		"nine bytes": {2, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff},
		"a browser":  []byte("GET / HTTP/1.1\r\nHost: a\r\n\r\n"),
		"zeros":      make([]byte, 1<<20),
		"a hello":    append([]byte{2, 0, 0, 0, 1, 0, 0, 0, 2}, []byte("{}")...),
	}
	for range 40 {
		for name, b := range say {
			conn, err := net.Dial("tcp", cfg.Address)
			if err != nil {
				t.Fatal(err)
			}
			strangers.Go(func() {
				defer func() { _ = conn.Close() }()
				_, _ = conn.Write(b)
				_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
				if _, err := io.Copy(io.Discard, conn); err != nil && strings.Contains(err.Error(), "timeout") {
					t.Errorf("%s: the connection stays open", name)
				}
			})
		}
	}
	join(1)
	joins.Wait()
	none(t, errs[:])
	strangers.Wait()
	none(t, each(all[:], func(g *group.Group) error {
		if err := exchange(g); err != nil {
			return err
		}
		return gatherAll(g)
	}))
	if at := listeners(t, port(cfg)); len(at) > 0 {
		t.Errorf("somebody listens at %q when all are there", at)
	}
	// A process that knows the token and comes late harms nobody.
	late := cfg.Config
	late.Rank, late.Timeout = 1, 200*time.Millisecond
	if _, err := group.Join(context.Background(), late); err == nil || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("late: %v", err)
	}
	none(t, each(all[:], func(g *group.Group) error { return g.Close() }))
	if n := strings.Count(logged.String(), "a connection was refused"); n != 1 {
		t.Errorf("%d refusals are in the log; want one for the address:\n%s", n, logged.String())
	}
}

type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// TestARankThatWaitsSaysForWhat: nobody is there yet.
func TestARankThatWaitsSaysForWhat(t *testing.T) {
	cfg := config(t, 3)
	for n, want := range []string{"ranks 1 and 2", cfg.Address} {
		cfg := cfg
		var logged safeBuffer
		cfg.Log, cfg.Rank, cfg.Timeout = slog.New(slog.NewTextHandler(&logged, nil)), n, 3500*time.Millisecond
		allSay(t, attempts(t, cfg, attempt{change: func(*group.Config) {}}), "3.5s")
		if !strings.Contains(logged.String(), want) {
			t.Errorf("rank %d: no %q in %q", n, want, logged.String())
		}
	}
}
