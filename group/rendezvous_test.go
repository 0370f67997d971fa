package group_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock.example/group"
	"penstock.example/internal/proctest"
	"penstock.example/internal/torchtest"
	"penstock.example/torch"
)

// attempt is a process that tries to join, or refuses to. It may come late.
type attempt struct {
	change  func(*group.Config)
	late    time.Duration
	refuses string
}

func rank(n int) attempt { return attempt{change: func(c *group.Config) { c.Rank = n }} }

// attempts has all try to join, and returns their errors.
func attempts(t *testing.T, cfg group.Config, all ...attempt) []error {
	t.Helper()
	torchtest.Check(t)
	errs := make([]error, len(all))
	groups := make([]*group.Group, len(all))
	var wg sync.WaitGroup
	for i, a := range all {
		wg.Go(func() {
			cfg := cfg
			a.change(&cfg)
			time.Sleep(a.late)
			if a.refuses != "" {
				errs[i] = group.Refuse(context.Background(), cfg, a.refuses)
				return
			}
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
	late := rank(2)
	late.late = 500 * time.Millisecond
	allSay(t, attempts(t, config(t, 3), rank(0), rank(1), rank(1), late), "rank 1 is there twice: pid ", "want each rank once")
}

func TestRank0Twice(t *testing.T) {
	late := rank(1)
	late.late = time.Second
	allSay(t, attempts(t, config(t, 2), rank(0), rank(0), late), "rank 0 is there twice: pid ")
}

func TestARankThatIsMissing(t *testing.T) {
	cfg := config(t, 4)
	cfg.Timeout = time.Second
	allSay(t, attempts(t, cfg, rank(0), rank(2)), "group: ranks 1 and 3 of 4 did not come to "+cfg.Address+" within 1s")
}

func TestRank0IsMissing(t *testing.T) {
	cfg := config(t, 3)
	cfg.Timeout = 500 * time.Millisecond
	allSay(t, attempts(t, cfg, rank(1), rank(2)), "nobody answers at "+cfg.Address, "connection refused")
}

func TestAnotherSize(t *testing.T) {
	other := attempt{change: func(c *group.Config) { c.Rank, c.Size = 2, 4 }}
	late := rank(1)
	late.late = 500 * time.Millisecond
	allSay(t, attempts(t, config(t, 3), rank(0), other, late), "rank 2 is one of 4 processes, and rank 0 one of 3; want the same WORLD_SIZE, and as many replicas,")
}

func TestAnotherToken(t *testing.T) {
	with := func(n int, token string) attempt {
		return attempt{change: func(c *group.Config) { c.Rank, c.Token, c.Timeout = n, token, time.Second }}
	}
	errs := attempts(t, config(t, 2), with(0, "a"), with(1, "b"))
	allSay(t, errs[:1], "rank 1 of 2 did not come to 127.0.0.1:", "was refused: it does not know the job's token")
	allSay(t, errs[1:], "rank 0 has refused this process: it does not know the job's token")
	errs = attempts(t, config(t, 2), with(0, "a"), with(1, ""))
	allSay(t, errs[1:], "rank 0 has a token, and rank 1 has none")
	errs = attempts(t, config(t, 2), with(0, ""), with(1, "b"))
	allSay(t, errs[1:], "rank 1 has a token, and rank 0 has none")
	none(t, attempts(t, config(t, 2), with(0, "a"), with(1, "a")))
}

// TestAPortThatIsTaken: what listens there never answers.
func TestAPortThatIsTaken(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	cfg := group.Config{Size: 2, Address: l.Addr().String(), Timeout: time.Minute}
	errs := attempts(t, cfg, rank(0), rank(1))
	allSay(t, errs[:1], "rank 0 cannot start its store on port ", "another process listens there", "want a port that is free")
	allSay(t, errs[1:], "what listens at "+cfg.Address+" is not rank 0 of a job, or rank 0 with another libtorch than "+torch.Version())
}

// TestAStoreOfAnotherJob: what listens there is a store of c10d, of a program that knows nothing of
// this job.
func TestAStoreOfAnotherJob(t *testing.T) {
	cfg := config(t, 2)
	other, err := torch.OpenStore("127.0.0.1", port(t, cfg), true, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	errs := attempts(t, cfg, rank(0), rank(1))
	allSay(t, errs[:1], "rank 0 cannot start its store on port ", "another process listens there", "want a port that is free")
	allSay(t, errs[1:], "what listens at "+cfg.Address+" is a store of c10d, but not rank 0 of a job")
}

// port is the port of the group's store.
func port(t *testing.T, cfg group.Config) (port int) {
	t.Helper()
	_, text, _ := net.SplitHostPort(cfg.Address)
	if _, err := fmt.Sscan(text, &port); err != nil {
		t.Fatal(err)
	}
	return port
}

// TestAnAddressOfAnotherMachine: rank 0 is not where all are told that it is.
func TestAnAddressOfAnotherMachine(t *testing.T) {
	cfg := config(t, 2)
	cfg.Address = net.JoinHostPort("192.0.2.1", fmt.Sprint(port(t, cfg))) // is for documentation, and nobody's
	allSay(t, attempts(t, cfg, rank(0)), "192.0.2.1, where rank 0 is to be, is no address of this machine, which has rank 0", "want ")
	cfg.Timeout = 300 * time.Millisecond
	allSay(t, attempts(t, cfg, rank(1)), "nobody answers at "+cfg.Address)
}

// TestAHostWithoutAnAddress: a name may come later, and no rank waits for what is none.
func TestAHostWithoutAnAddress(t *testing.T) {
	cfg := config(t, 2)
	cfg.Address = net.JoinHostPort("no body", fmt.Sprint(port(t, cfg)))
	for n, err := range attempts(t, cfg, rank(0), rank(1)) {
		var refused *group.ConfigError
		if !errors.As(err, &refused) || refused.Field != "Address" || !strings.Contains(refused.Error(), "want host:port of rank 0") {
			t.Errorf("rank %d: %v is no refused address", n, err)
		}
	}
	cfg.Address = net.JoinHostPort("nobody.invalid", fmt.Sprint(port(t, cfg)))
	cfg.Timeout = 3 * time.Second
	var said strings.Builder
	cfg.Log = slog.New(slog.NewTextHandler(&said, nil))
	errs := attempts(t, cfg, rank(0), rank(1))
	allSay(t, errs[:1], "the host where rank 0 is to be has no address within 3s: ", "no such host; want an address or a name of rank 0's machine")
	allSay(t, errs[1:], "nobody answers at "+cfg.Address+", where rank 0 is to be, within 3s: ", "no such host; want rank 0 started by then")
	for _, want := range []string{"rank 0 looks up its address, for which there is no such host yet", "rank 1 of 2 calls rank 0, for which there is no such host yet"} {
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
		if _, err := group.Join(ctx, cfg); !errors.Is(err, context.DeadlineExceeded) && !strings.Contains(fmt.Sprint(err), "deadline exceeded") {
			t.Errorf("rank %d: %v", n, err)
		}
		cancel()
	}
}

// foreign is a store that ends each connection that begins as ours do, as that of libtorch 2 does.
func foreign(t *testing.T) (address string) {
	t.Helper()
	at := proctest.AddressOfTwo(t) // rank 0 takes the next port instead
	l, err := net.Listen("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Read(make([]byte, 1))
			_ = conn.Close()
		}
	}()
	return at
}

func TestAgentStoreOfAnotherLibtorch(t *testing.T) {
	cfg := config(t, 2)
	cfg.Address = foreign(t)
	allSay(t, attempts(t, cfg, rank(1)), "is not rank 0 of a job")
	cfg.AgentStore = true
	none(t, attempts(t, cfg, rank(0), rank(1)))
}

func TestAgentStore(t *testing.T) {
	cfg := config(t, 2)
	cfg.AgentStore, cfg.Restart = true, 3
	agent, err := torch.OpenStore("127.0.0.1", port(t, cfg), true, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer agent.Close()
	none(t, attempts(t, cfg, rank(0), rank(1)))
	if v, err := agent.Get("/worker/attempt_3/penstock/control"); err != nil || v == nil {
		t.Errorf("the members are not where torchrun's are: %v", err)
	}
	cfg.Restart++ // the same store, as after a failure
	none(t, attempts(t, cfg, rank(0), rank(1)))
	cfg.Size = 3 // and the same number, as after a machine has joined, which torchrun counts as no restart
	none(t, attempts(t, cfg, rank(0), rank(1), rank(2)))
	cfg.Size = 2
	none(t, attempts(t, cfg, rank(0), rank(1)))
	cfg.Restart++
	late := rank(1)
	late.late = 500 * time.Millisecond
	allSay(t, attempts(t, cfg, rank(0), rank(0), late), "rank 0 is there twice")
}

// TestWhatIsLeftOfAnEarlierStart: a member finds the store of a rank 0 that has gone, before the new
// one has started its own.
func TestWhatIsLeftOfAnEarlierStart(t *testing.T) {
	cfg := config(t, 2)
	old, err := torch.OpenStore("127.0.0.1", port(t, cfg), true, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if err := old.Set("penstock/control", fmt.Appendf(nil, "penstock 1\n%s\nx", proctest.Address(t))); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(300*time.Millisecond, old.Close)
	late := rank(0)
	late.late = 600 * time.Millisecond
	none(t, attempts(t, cfg, rank(1), late))
}

// TestStrangersAreRefused: while a group works, others connect and say what they like.
func TestStrangersAreRefused(t *testing.T) {
	torchtest.Check(t)
	var logged safeBuffer
	cfg := config(t, 2)
	cfg.Log = slog.New(slog.NewTextHandler(&logged, nil))
	cfg.Heartbeat, cfg.Silence = 200*time.Millisecond, time.Second
	all := inProcess(t, cfg)
	at := controlAddress(t, cfg)

	strangers := map[string][]byte{
		"nothing":   nil,
		"a browser": []byte("GET / HTTP/1.1\r\nHost: a\r\n\r\n"),
		"zeros":     make([]byte, 1<<20),
		"much":      bytes.Repeat([]byte{2, 0xff, 0xff, 0xff, 0xff}, 1000),
		"a hello":   append([]byte{2, 0, 0, 0, 88}, make([]byte, 88)...),
	}
	var wg sync.WaitGroup
	for name, b := range strangers {
		wg.Go(func() {
			conn, err := net.Dial("tcp", at)
			if err != nil {
				t.Errorf("%s: %v", name, err)
				return
			}
			defer func() { _ = conn.Close() }()
			_, _ = conn.Write(b)
			_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
			if _, err := io.Copy(io.Discard, conn); err != nil && strings.Contains(err.Error(), "timeout") {
				t.Errorf("%s: the connection stays open", name)
			}
		})
	}
	none(t, each(all, func(g *group.Group) error {
		if err := exchange(g); err != nil {
			return err
		}
		return gatherAll(g)
	}))
	wg.Wait()
	// A process that knows the token and comes late is told so, and harms nobody.
	late := cfg
	late.Rank, late.Timeout = 1, 5*time.Second
	if _, err := group.Join(context.Background(), late); err == nil || !strings.Contains(err.Error(), "rank 1 is there already: pid ") || !strings.Contains(err.Error(), "want each rank once, and another port for another job") {
		t.Errorf("late: %v", err)
	}
	late.Rank = 0
	if _, err := group.Join(context.Background(), late); err == nil || !strings.Contains(err.Error(), "rank 0 is there already: pid ") {
		t.Errorf("late: %v", err)
	}
	none(t, each(all, gatherAll))
	none(t, each(all, func(g *group.Group) error { return g.Close() }))
	if n, want := strings.Count(logged.String(), "a connection was refused"), len(strangers)+2; n != want {
		t.Errorf("%d refusals are in the log; want %d:\n%s", n, want, logged.String())
	}
}

// controlAddress is where rank 0 listens.
func controlAddress(t *testing.T, cfg group.Config) string {
	t.Helper()
	s, err := torch.OpenStore("127.0.0.1", port(t, cfg), false, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	v, err := s.Get("penstock/control")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(string(v), "\n")[1]
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

// TestARankThatRefuses: a process that will not join says why, and nobody waits for it, whoever comes
// first.
func TestARankThatRefuses(t *testing.T) {
	for _, row := range []struct {
		refuses int
		early   time.Duration // how long it is there before the others
		late    time.Duration
		size    int
	}{
		{refuses: 1, size: 3}, {refuses: 0, size: 3}, {refuses: 2, early: 300 * time.Millisecond, size: 3},
		{refuses: 0, early: 300 * time.Millisecond, size: 2}, {refuses: 1, late: 300 * time.Millisecond, size: 2},
	} {
		cfg := config(t, row.size)
		cfg.Token = "a"
		var all []attempt
		for r := range row.size {
			a := rank(r)
			if a.late = row.early; r == row.refuses {
				a.late, a.refuses = row.late, "--lr fast: want a number"
			}
			all = append(all, a)
		}
		began := time.Now()
		errs := attempts(t, cfg, all...)
		if err := errs[row.refuses]; err != nil {
			t.Errorf("%+v: %v", row, err)
		}
		if took := time.Since(began); took >= cfg.Timeout {
			t.Errorf("%+v: it took %v", row, took)
		}
		allSay(t, slices.Delete(errs, row.refuses, row.refuses+1), fmt.Sprintf("rank %d failed: --lr fast: want a number", row.refuses))
	}
}

// TestSeveralRanksRefuse: a rank that has refused knows that the group has failed, and nobody waits to tell it,
// even if it has gone before rank 0 tells the others.
func TestSeveralRanksRefuse(t *testing.T) {
	for range 50 {
		cfg := config(t, 4)
		cfg.Token = "a"
		all := []attempt{rank(0), rank(1), rank(2), rank(3)}
		all[2].refuses, all[3].refuses = "--lr fast: want a number", "--lr fast: want a number"
		began := time.Now()
		errs := attempts(t, cfg, all...)
		if took := time.Since(began); took >= cfg.Timeout {
			t.Fatalf("it took %v", took)
		}
		for _, err := range errs[:2] {
			if err == nil || !strings.Contains(err.Error(), "failed: --lr fast: want a number") {
				t.Fatal(err)
			}
		}
	}
}

// TestARankThatComesLateHearsWhy: a refusal is told for as long as others may join, and rank 0 says for whom it
// waits meanwhile.
func TestARankThatComesLateHearsWhy(t *testing.T) {
	cfg := config(t, 4)
	cfg.Token = "a"
	var logged safeBuffer
	first, refuser, late := rank(0), rank(1), rank(2)
	first.change = func(c *group.Config) { c.Log = slog.New(slog.NewTextHandler(&logged, nil)) }
	refuser.refuses = "--lr fast: want a number"
	late.late = 3500 * time.Millisecond
	last := rank(3)
	last.late, last.refuses = late.late, "--batch 0: want at least 1"
	errs := attempts(t, cfg, first, refuser, late, last)
	allSay(t, []error{errs[0], errs[2]}, "rank 1 failed: --lr fast: want a number")
	if errs[1] != nil {
		t.Errorf("the rank that refuses: %v", errs[1])
	}
	if want := "ranks 2 and 3"; !strings.Contains(logged.String(), want) {
		t.Errorf("no %q in %s", want, logged.String())
	}
}

// TestARankThatWaitsSaysForWhat: nobody is there yet.
func TestARankThatWaitsSaysForWhat(t *testing.T) {
	cfg := config(t, 3)
	for n, want := range []string{"ranks 1 and 2", cfg.Address} {
		cfg := cfg
		var logged safeBuffer
		cfg.Log, cfg.Rank, cfg.Timeout = slog.New(slog.NewTextHandler(&logged, nil)), n, 2500*time.Millisecond
		allSay(t, attempts(t, cfg, attempt{change: func(*group.Config) {}}), "within 2.5s")
		if !strings.Contains(logged.String(), want) {
			t.Errorf("rank %d: no %q in %q", n, want, logged.String())
		}
	}
}
