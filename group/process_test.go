package group_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock.example/group"
	"penstock.example/internal/must"
	"penstock.example/internal/proctest"
)

// Members in processes of their own: this test binary, run again with the name of a scenario.

const (
	scenarioVariable = "PENSTOCK_TEST_SCENARIO"
	configVariable   = "PENSTOCK_TEST_CONFIG"
)

// settings are those of a member, and the rank that something happens to in a scenario.
type settings struct {
	group.Config
	LocalRank int
}

// scenarios are what members do, by name. say tells the test how far a member is.
var scenarios = map[string]func(cfg settings, say func(string)) error{}

func TestMain(m *testing.M) {
	f := scenarios[os.Getenv(scenarioVariable)]
	if f == nil {
		os.Exit(m.Run())
	}
	var cfg settings
	if err := json.Unmarshal([]byte(os.Getenv(configVariable)), &cfg); err != nil {
		panic(err)
	}
	if err := f(cfg, func(s string) { fmt.Println("at", s) }); err != nil {
		fmt.Println("error", strings.ReplaceAll(err.Error(), "\n", " "))
		os.Exit(1)
	}
	fmt.Println("good")
}

// member is a scenario that makes cfg's member and gives it to f.
func member(f func(g *group.Group, say func(string)) error) func(settings, func(string)) error {
	return func(cfg settings, say func(string)) error {
		g, err := group.Join(context.Background(), cfg.Config)
		if err != nil {
			return err
		}
		say("joined")
		if err := f(g, say); err != nil {
			_ = g.Close()
			return err
		}
		return g.Close()
	}
}

// process is a member that runs.
type process struct {
	t     *testing.T
	rank  int
	cmd   *exec.Cmd
	lines chan string
	done  chan struct{}
	wrote bytes.Buffer // standard error
	mu    sync.Mutex
	last  string
	ended time.Time
}

// run starts a process.
func run(t *testing.T, scenario string, cfg settings) *process {
	t.Helper()
	text := must.Get(json.Marshal(cfg))(t)
	p := &process{t: t, rank: cfg.Rank, cmd: exec.Command(os.Args[0]), lines: make(chan string, 100),
		done: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), scenarioVariable+"="+scenario, configVariable+"="+string(text))
	p.cmd.Stderr = &p.wrote
	out := must.Get(p.cmd.StdoutPipe())(t)
	must.Do(t, p.cmd.Start())
	go p.follow(out)
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.done
	})
	return p
}

func (p *process) follow(out io.Reader) {
	for s := bufio.NewScanner(out); s.Scan(); {
		p.mu.Lock()
		p.last = s.Text()
		p.mu.Unlock()
		p.lines <- s.Text()
	}
	_ = p.cmd.Wait()
	p.ended = time.Now()
	close(p.lines)
	close(p.done)
}

// until waits for a line.
func (p *process) until(want string) {
	p.t.Helper()
	stop := proctest.Watch(p.t, p.cmd, proctest.Limit)
	for line := range p.lines {
		if line == want {
			stop()
			return
		}
	}
	<-p.done
	p.t.Fatalf("rank %d has ended before %q: %s\n%s", p.rank, want, p.last, p.wrote.String())
}

// end waits for the end of a process and returns its last line and how long it took.
func (p *process) end(began time.Time) (string, time.Duration) {
	p.t.Helper()
	go func() {
		for range p.lines { // so that follow goes on
		}
	}()
	hung := proctest.Watch(p.t, p.cmd, proctest.Limit)
	<-p.done
	hung()
	if p.wrote.Len() > 0 {
		p.t.Logf("rank %d: %s", p.rank, p.wrote.String())
	}
	return p.last, p.ended.Sub(began)
}

// config is that of a group on this machine.
func config(t testing.TB, size int) settings {
	return settings{Config: group.Config{Size: size, Address: proctest.Address(t), Timeout: time.Minute}}
}

// job starts all members.
func job(t *testing.T, scenario string, cfg settings) []*process {
	t.Helper()
	all := make([]*process, cfg.Size)
	for rank := range all {
		cfg.Rank = rank
		all[rank] = run(t, scenario, cfg)
	}
	return all
}

// inProcess joins members as goroutines of this process, which have sockets of their own.
func inProcess(t testing.TB, cfg settings) []*group.Group {
	t.Helper()
	all := make([]*group.Group, cfg.Size)
	errs := make([]error, cfg.Size)
	var wg sync.WaitGroup
	for rank := range all {
		wg.Go(func() {
			cfg := cfg
			cfg.Rank = rank
			all[rank], errs[rank] = group.Join(context.Background(), cfg.Config)
		})
	}
	wg.Wait()
	must.Do(t, errors.Join(errs...))
	return all
}
