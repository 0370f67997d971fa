package group_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock.example/group"
	"penstock.example/internal/must"
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

func TestJobsThatAreWrong(t *testing.T) {
	other := attempt{change: func(c *group.Config) { c.Rank, c.Size = 2, 4 }}
	for _, row := range []struct {
		size int
		all  []attempt
		want []string
	}{
		{3, []attempt{rank(0), rank(1), rank(1)},
			[]string{"rank 1 is there twice: pid ", "want each rank once"}},
		{4, []attempt{rank(0), rank(2)},
			[]string{"group: ranks 1 and 3 of 4 did not come to 127.0.0.1:", " within 1s"}},
		{3, []attempt{rank(1), rank(2)},
			[]string{"calls rank 0 at 127.0.0.1:", ", for 1s: ",
				"connection refused; want rank 0 started by then"}},
		{3, []attempt{rank(0), other}, []string{"rank 2 is one of 4 processes, and rank 0 one of 3; want " +
			"the same WORLD_SIZE and replicas"}},
	} {
		cfg := config(t, row.size)
		cfg.Timeout = time.Second
		allSay(t, attempts(t, cfg, row.all...), row.want...)
	}
}

func TestAnotherToken(t *testing.T) {
	with := func(n int, token string) attempt {
		return attempt{change: func(c *group.Config) { c.Rank, c.Token, c.Timeout = n, token, time.Second }}
	}
	errs := attempts(t, config(t, 2), with(0, "a"), with(1, "b"))
	allSay(t, errs[:1], "rank 1 of 2 did not come to 127.0.0.1:",
		"was refused: it does not know the job's token")
	allSay(t, errs[1:], "rank 0 has refused this process: it does not know the job's token")
	errs = attempts(t, config(t, 2), with(0, "a"), with(1, ""))
	allSay(t, errs[1:], "rank 0 has refused this process: it does not know the job's token")
	errs = attempts(t, config(t, 2), with(0, ""), with(1, "b"))
	allSay(t, errs[1:], "rank 0 has refused this process: it does not know the job's token")
	none(t, attempts(t, config(t, 2), with(0, "a"), with(1, "a")))
}

// TestStrangersHoldFewConnections: processes that do not know the token keep nobody from joining,
// however many connections they hold. Rank 0 closes the oldest.
func TestStrangersHoldFewConnections(t *testing.T) {
	torchtest.Check(t)
	cfg := config(t, 2)
	cfg.Silence = time.Minute
	all, joins := make([]*group.Group, 2), sync.WaitGroup{}
	joins.Go(func() { all[0] = must.Get(group.Join(t.Context(), cfg.Config))(t) })
	var strangers []net.Conn
	for len(strangers) < 300 {
		conn, err := net.Dial("tcp", cfg.Address)
		if err != nil { // rank 0 does not listen yet
			time.Sleep(time.Millisecond)
			continue
		}
		defer conn.Close()
		strangers = append(strangers, conn)
	}
	must.Do(t, strangers[0].SetReadDeadline(time.Now().Add(cfg.Silence/2)))
	if _, err := io.Copy(io.Discard, strangers[0]); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("300 connections are open")
	}
	cfg.Rank = 1
	all[1] = must.Get(group.Join(t.Context(), cfg.Config))(t)
	joins.Wait()
	none(t, each(all, func(g *group.Group) error { return g.Close() }))
}

// TestAFalseRank0: a member joins nobody who does not know the token.
func TestAFalseRank0(t *testing.T) {
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	go func() {
		frame := func(kind byte, body string) []byte {
			return append(append([]byte{kind, 0, 0, 0, 0},
				binary.BigEndian.AppendUint32(nil, uint32(len(body)))...),
				body...)
		}
		for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
			for range 2 { // the second greeting lacks its proof
				_, _ = conn.Write(frame(1, `{"Protocol":"penstock 5","Nonce":"a"}`))
			}
			_, _ = conn.Write(frame(2, "")) // ready
			defer conn.Close()
		}
	}()
	cfg := config(t, 2)
	cfg.Address, cfg.Rank, cfg.Token, cfg.Timeout = l.Addr().String(), 1, "a", time.Second
	_, err := group.Join(t.Context(), cfg.Config)
	allSay(t, []error{err}, "what listens there is not rank 0 of this job: it does not know the job's token")
}

// TestNoToken: without a token nobody listens, or joins, where other machines can reach it.
func TestNoToken(t *testing.T) {
	own := ""
	all := must.Get(net.InterfaceAddrs())(t)
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
	l := must.Get(net.Listen("tcp", net.JoinHostPort(own, "0")))(t)
	defer l.Close()
	there := rank(1)
	there.change = func(c *group.Config) { c.Rank, c.Address = 1, l.Addr().String() }
	for n, err := range attempts(t, cfg, rank(0), there) {
		var refused *group.ConfigError
		if !errors.As(err, &refused) || refused.Field != "Token" ||
			!strings.Contains(err.Error(), "other machines can reach "+own+
				"; want the same secret on all ranks") {
			t.Errorf("rank %d: %v", n, err)
		}
	}
	cfg.Token, cfg.Timeout = "a", time.Minute
	none(t, attempts(t, cfg, rank(0), rank(1)))
}

// TestAPortThatIsTaken: what listens there never answers.
func TestAPortThatIsTaken(t *testing.T) {
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer func() { _ = l.Close() }()
	cfg := settings{Config: group.Config{Size: 2, Address: l.Addr().String(), Timeout: time.Second,
		Silence: 100 * time.Millisecond}}
	errs := attempts(t, cfg, rank(0), rank(1))
	allSay(t, errs[:1], "rank 0 listens at "+cfg.Address, "address already in use",
		"want each rank once, and a free port")
	allSay(t, errs[1:], "rank 1 of 2 calls rank 0 at "+cfg.Address+", for 1s: what listens there is not "+
		"rank 0 of this job: ")
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
	if text := fmt.Sprint(errs[0]); !strings.Contains(text, "no interface of this machine leads there") &&
		!strings.Contains(text, "did not come to "+cfg.Address+" within 300ms: ") {
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
		if !errors.As(err, &refused) || refused.Field != "Address" ||
			!strings.Contains(refused.Error(), "want host:port of rank 0") {
			t.Errorf("rank %d: %v is no refused address", n, err)
		}
	}
	cfg.Address = net.JoinHostPort("nobody.invalid", port(cfg))
	cfg.Timeout = 3 * time.Second
	var said safeBuffer
	cfg.Log = slog.New(slog.NewTextHandler(&said, nil))
	errs := attempts(t, cfg, rank(0), rank(1))
	allSay(t, errs[:1], "rank 0 listens at "+cfg.Address+", for 3s: ", "no such host; want rank 0's host")
	allSay(t, errs[1:], "rank 1 of 2 calls rank 0 at "+cfg.Address+", for 3s: ",
		"no such host; want rank 0 started by then")
	for _, want := range []string{"rank 0 listens", "rank 1 of 2 calls rank 0", "no such host"} {
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
		if _, err := group.Join(ctx, cfg.Config); !errors.Is(err, context.DeadlineExceeded) &&
			!strings.Contains(fmt.Sprint(err), "deadline exceeded") {
			t.Errorf("rank %d: %v", n, err)
		}
		cancel()
	}
}

// TestWhatIsLeftOfAnEarlierStart: a member finds what is left of a rank 0 that has gone, before the new one
// has come.
func TestWhatIsLeftOfAnEarlierStart(t *testing.T) {
	cfg := config(t, 2)
	old := must.Get(net.Listen("tcp", cfg.Address))(t)
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
	n := must.Get(strconv.Atoi(port))(t)
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
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
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
			conn := must.Get(net.Dial("tcp", cfg.Address))(t)
			strangers.Go(func() {
				defer func() { _ = conn.Close() }()
				_, _ = conn.Write(b)
				_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
				if _, err := io.Copy(io.Discard, conn); err != nil &&
					strings.Contains(err.Error(), "timeout") {
					t.Errorf("%s: the connection stays open", name)
				}
			})
		}
	}
	join(1)
	joins.Wait()
	none(t, errs[:])
	strangers.Wait()
	none(t, each(all[:], exchange))
	runtime.ReadMemStats(&after)
	if bytes := after.TotalAlloc - before.TotalAlloc; bytes > 64<<20 {
		t.Errorf("%d bytes were allocated", bytes)
	}
	if at := listeners(t, port(cfg)); len(at) > 0 {
		t.Errorf("somebody listens at %q when all are there", at)
	}
	// A process that knows the token and comes late harms nobody.
	late := cfg.Config
	late.Rank, late.Timeout = 1, 200*time.Millisecond
	if _, err := group.Join(context.Background(), late); err == nil ||
		!strings.Contains(err.Error(), "connection refused") {
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

// TestRank0SaysForWhomItWaits: nobody is there yet.
func TestRank0SaysForWhomItWaits(t *testing.T) {
	cfg := config(t, 3)
	var logged safeBuffer
	cfg.Log, cfg.Timeout = slog.New(slog.NewTextHandler(&logged, nil)), 2500*time.Millisecond
	allSay(t, attempts(t, cfg, rank(0)), "2.5s")
	if !strings.Contains(logged.String(), "ranks 1 and 2") {
		t.Errorf("the ranks are not named in %q", logged.String())
	}
}

// variables are an environment.
type variables map[string]string

func (v variables) get(name string) string { return v[name] }

// plus is v with other values; "" is a variable that is not set.
func (v variables) plus(pairs ...string) variables {
	out := maps.Clone(v)
	for i := 0; i < len(pairs); i += 2 {
		out[pairs[i]] = pairs[i+1]
	}
	return out
}

var (
	torchrun = variables{"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2",
		"MASTER_ADDR": "node7", "MASTER_PORT": "29500",
		"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": "none",
		"TORCHELASTIC_RESTART_COUNT": "2", "PENSTOCK_TOKEN": "secret"}
	slurm = variables{"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8", "SLURM_NTASKS": "8",
		"SLURM_LOCALID": "1", "SLURM_STEP_NODELIST": "gpu[07-10,12]",
		"SLURM_NODELIST": "gpu[01-12]", "SLURM_JOB_ID": "4207", "SLURM_STEP_ID": "2",
		"SLURM_RESTART_COUNT": "1"}
	openMPI = variables{"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2",
		"OMPI_COMM_WORLD_LOCAL_RANK": "0", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "7000"}
)

func TestFromEnvironment(t *testing.T) {
	for name, row := range map[string]struct {
		in    variables
		want  group.Config
		found bool
	}{
		"nothing": {variables{}, group.Config{}, false},
		"torchrun": {torchrun, group.Config{Rank: 3, Size: 4, Address: "node7:23323", Restart: 2,
			Token: "secret"}, true},
		"PyTorchJob, which sets the least": {variables{"RANK": "0", "WORLD_SIZE": "2",
			"MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456"},
			group.Config{Size: 2, Address: "job-master-0:23456"}, true},
		"torchrun without its agent's store": {torchrun.plus("TORCHELASTIC_USE_AGENT_STORE", "False"),
			group.Config{Rank: 3, Size: 4, Address: "node7:29500", Restart: 2, Token: "secret"}, true},
		"IPv6": {torchrun.plus("MASTER_ADDR", "fe80::1%eth0"),
			group.Config{Rank: 3, Size: 4, Address: "[fe80::1%eth0]:23323", Restart: 2, Token: "secret"}, true},
		"one process of torchrun": {torchrun.plus("RANK", "0", "WORLD_SIZE", "1", "LOCAL_RANK", "0",
			"MASTER_ADDR", ""),
			group.Config{Size: 1, Restart: 2, Token: "secret"}, false},
		"torchrun on each node of a Slurm job": {torchrun.plus("SLURM_PROCID", "1", "SLURM_STEP_NUM_TASKS",
			"2"),
			group.Config{Rank: 3, Size: 4, Address: "node7:23323", Restart: 2, Token: "secret"}, true},
		"Slurm": {slurm, group.Config{Rank: 5, Size: 8, Address: "gpu07:24209", Restart: 1}, true},
		"Slurm's job of one list": {slurm.plus("SLURM_STEP_NODELIST", "", "SLURM_STEP_ID", "",
			"SLURM_LOCALID", ""),
			group.Config{Rank: 5, Size: 8, Address: "gpu01:24207", Restart: 1}, true},
		"Slurm's list with a domain": {slurm.plus("SLURM_STEP_NODELIST", "a-b[2-3]n[03-04].example.org,x"),
			group.Config{Rank: 5, Size: 8, Address: "a-b2n03.example.org:24209", Restart: 1}, true},
		"Slurm with an address": {slurm.plus("MASTER_ADDR", "ib7", "MASTER_PORT", "700"),
			group.Config{Rank: 5, Size: 8, Address: "ib7:700", Restart: 1}, true},
		"the script of a Slurm job": {slurm.plus("SLURM_PROCID", "0", "SLURM_STEP_NUM_TASKS", ""),
			group.Config{Restart: 1}, false},
		"one task of Slurm": {variables{"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"},
			group.Config{Size: 1}, false},
		"Open MPI": {openMPI, group.Config{Rank: 1, Size: 2, Address: "10.0.0.1:7000"}, true},
		"one process of Open MPI": {variables{"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"},
			group.Config{Size: 1}, false},
		"an address alone": {variables{"MASTER_ADDR": "node7", "MASTER_PORT": "29500",
			"LOCAL_RANK": "x"}, group.Config{}, false},
	} {
		got, found, err := group.FromEnvironment(row.in.get)
		if err != nil || got != row.want || found != row.found {
			t.Errorf("%s: got %+v, %v, %v; want %+v, %v", name, got, found, err, row.want, row.found)
		}
	}
}

func TestEnvironmentsThatAreRefused(t *testing.T) {
	for _, row := range []struct {
		in              variables
		field, value    string
		problem, remedy string
	}{
		{torchrun.plus("WORLD_SIZE", ""), "WORLD_SIZE", "", "it is not set, and others of its kind are",
			"want a whole number from 1 to"},
		{torchrun.plus("WORLD_SIZE", "four"), "WORLD_SIZE", "four", "",
			"want a whole number from 1 to 65536"},
		{torchrun.plus("WORLD_SIZE", "99999999999999999999"), "WORLD_SIZE", "99999999999999999999", "",
			"want a whole number from 1 to 65536"},
		{torchrun.plus("RANK", "-1"), "RANK", "-1", "", "want a whole number from 0 to"},
		{torchrun.plus("RANK", "4"), "RANK", "4", "", "want a whole number from 0 to 3"},
		{torchrun.plus("MASTER_ADDR", ""), "MASTER_ADDR", "", "",
			"want the host name or address of rank 0: torchrun sets it"},
		{torchrun.plus("MASTER_ADDR", "node7:29500"), "MASTER_ADDR", "node7:29500", "",
			"want the host name or address of rank 0"},
		{torchrun.plus("MASTER_PORT", ""), "MASTER_PORT", "", "it is not set",
			"want a whole number from 1 to 65535"},
		{torchrun.plus("MASTER_PORT", "65536"), "MASTER_PORT", "65536", "",
			"want a whole number from 1 to 65535"},
		{slurm.plus("SLURM_PROCID", "8"), "SLURM_PROCID", "8", "", "want a whole number from 0 to 7"},
		{slurm.plus("SLURM_JOB_ID", ""), "MASTER_PORT", "", "it is not set",
			"want a whole number from 1 to 65535"},
		{openMPI.plus("MASTER_ADDR", ""), "MASTER_ADDR", "", "",
			"mpirun -x MASTER_ADDR=HOST -x MASTER_PORT=29500"},
	} {
		_, found, err := group.FromEnvironment(row.in.get)
		var refused *group.ConfigError
		if !errors.As(err, &refused) || found {
			t.Errorf("%s=%q: found %v, %v; want a ConfigError", row.field, row.value, found, err)
			continue
		}
		if refused.Field != row.field || refused.Value != row.value ||
			!strings.HasPrefix(refused.Problem, row.problem) ||
			!strings.Contains(refused.Remedy, row.remedy) {
			t.Errorf("got  %v\nwant %s is %q: %s; %s", err, row.field, row.value, row.problem, row.remedy)
		}
	}
}
