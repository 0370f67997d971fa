package group_test

import (
	"cmp"
	"context"
	"fmt"
	"math/rand"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"penstock.example/group"
	"penstock.example/internal/draws"
	"penstock.example/internal/link"
	"penstock.example/internal/must"
	"penstock.example/internal/torchtest"
	"penstock.example/torch"
)

// The members of these scenarios wait for ever, for the member whose number is settings.LocalRank or
// for each other in a ring.

func init() {
	for name, wait := range map[string]func(g *group.Group, x *torch.Tensor, victim int) error{
		"receive": func(g *group.Group, x *torch.Tensor, _ int) error {
			return waited(g.Receive(x, (g.Rank()+1)%g.Size(), 1))
		},
		"send": func(g *group.Group, x *torch.Tensor, _ int) error {
			return waited(g.Send(x, (g.Rank()+1)%g.Size(), 1))
		},
		"gather": func(g *group.Group, _ *torch.Tensor, victim int) error {
			if g.Rank() == victim {
				time.Sleep(time.Hour)
			}
			_, err := group.Meet(context.Background(), g, "models", make([]byte, 1<<20), nil)
			return err
		},
	} {
		scenarios[name] = func(cfg settings, say func(string)) error {
			return member(func(g *group.Group, say func(string)) error {
				c := torch.NewCtx(torch.Options{})
				defer c.Close()
				x := c.Zeros(torch.Float32, 1<<18)
				// All are there before one of them goes.
				if _, err := group.Meet(context.Background(), g, "start", 0, nil); err != nil {
					return err
				}
				say("waiting")
				return wait(g, x, cfg.LocalRank)
			})(cfg, say)
		}
	}
}

func init() {
	scenarios["work"] = member(func(g *group.Group, say func(string)) error {
		say("working")
		for {
			if err := cmp.Or(exchange(g), gatherAll(g)); err != nil {
				return err
			}
		}
	})
}

// heartbeat is not waited for by who hears of a failure at once. Milliseconds are usual; a machine that does
// much else takes longer.
const heartbeat = time.Minute

// TestMemberKilledAtWork kills a member at any moment of transfers and gathers. The others see its
// connections break in some order, and those of each other, as they end; all name the one that was
// killed.
func TestMemberKilledAtWork(t *testing.T) {
	for range draws.Pick(1, 3) {
		victim := rand.Intn(4)
		cfg := config(t, 4)
		cfg.Silence = 5 * heartbeat
		all := job(t, "work", cfg)
		all[victim].until("at working")
		time.Sleep(time.Duration(rand.Intn(200)) * time.Millisecond)
		began := time.Now()
		must.Do(t, all[victim].cmd.Process.Kill())
		othersSay(t, all, victim, began, heartbeat, fmt.Sprintf("rank %d is lost: ", victim))
	}
}

func waited(w link.Work, err error) error {
	if err != nil {
		return err
	}
	return w.Wait()
}

// othersSay waits for the end of all members but one. Each ends with an error that has the text.
func othersSay(t *testing.T, all []*process, victim int, began time.Time, within time.Duration, want string) {
	t.Helper()
	var slowest time.Duration
	for _, p := range all {
		if p.rank == victim {
			continue
		}
		last, took := p.end(began)
		slowest = max(slowest, took)
		if !strings.HasPrefix(last, "error ") || !strings.Contains(last, want) {
			t.Errorf("rank %d: %s; want an error with %q", p.rank, last, want)
		}
	}
	if t.Logf("%d members, victim %d: %v", len(all), victim, slowest); slowest > within {
		t.Errorf("it took %v; want at most %v", slowest, within)
	}
}

// TestKilledMember: all others end at once with an error that names the rank. A second is what is
// promised; no heartbeat is waited for.
func TestKilledMember(t *testing.T) {
	for _, row := range []struct {
		scenario     string
		size, victim int
	}{{"receive", 2, 1}, {"send", 4, 0}, {"gather", 4, 0}, {"gather", 4, 3}} {
		t.Run(fmt.Sprint(row), func(t *testing.T) {
			cfg := config(t, row.size)
			cfg.LocalRank, cfg.Silence = row.victim, 5*heartbeat
			all := job(t, row.scenario, cfg)
			for _, p := range all {
				p.until("at waiting")
			}
			time.Sleep(50 * time.Millisecond)
			began := time.Now()
			must.Do(t, all[row.victim].cmd.Process.Kill())
			othersSay(t, all, row.victim, began, heartbeat, fmt.Sprintf("rank %d is lost: ", row.victim))
		})
	}
}

func TestStoppedMember(t *testing.T) {
	for _, victim := range []int{0, 2} { // rank 0 hands on what is for all
		cfg := config(t, 3)
		cfg.LocalRank, cfg.Silence = victim, 2*time.Second
		all := job(t, "receive", cfg)
		for _, p := range all {
			p.until("at waiting")
		}
		began := time.Now()
		must.Do(t, all[victim].cmd.Process.Signal(syscall.SIGSTOP))
		othersSay(t, all, victim, began, time.Minute,
			fmt.Sprintf("rank %d is lost: nothing was heard of it for 2s", victim))
	}
}

// TestCallsAfterClose end with an error.
func TestCallsAfterClose(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	all := inProcess(t, config(t, 2))
	x := c.Zeros(torch.Float32, 4)
	waits := must.Get(all[0].Receive(x, 1, 1))(t)
	none(t, each(all, func(g *group.Group) error { return g.Close() }))
	if err := waits.Wait(); err == nil {
		t.Error("a receive of nothing has ended well")
	}
	for _, g := range all {
		if _, err := g.Send(x, 1-g.Rank(), 1); err == nil {
			t.Error("a send after Close goes on")
		}
		if _, err := group.Meet(context.Background(), g, "models", 0, nil); err == nil {
			t.Error("a gather after Close goes on")
		}
		if err := g.Close(); err != nil {
			t.Errorf("Close again: %v", err)
		}
		g.Fail(group.FailedError{Message: "late"})
	}
}

// entries is how many a directory has.
func entries(t *testing.T, dir string) int {
	t.Helper()
	list := must.Get(os.ReadDir(dir))(t)
	return len(list)
}

// Groups that come and go leave no thread and no open file or connection, whether their members
// leave in order or after a failure.
func TestGroupsLeaveNoThreadAndNoConnection(t *testing.T) {
	torchtest.Check(t)
	const groups, more = 12, 6 // Go may start a thread of its own now and then
	var threads, files int
	var configs []settings // each keeps a port
	for range groups {
		configs = append(configs, config(t, 3))
	}
	for i, cfg := range configs {
		all := inProcess(t, cfg)
		none(t, each(all, exchange))
		if i%2 == 1 {
			all[1].Fail(group.FailedError{Stage: -1, MicroBatch: -1, Message: "enough"})
		}
		for _, err := range each(all, func(g *group.Group) error { return g.Close() }) {
			if err != nil && i%2 == 0 {
				t.Fatal(err)
			}
		}
		if i == 1 {
			threads, files = entries(t, "/proc/self/task"), entries(t, "/proc/self/fd")
		}
	}
	for until := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		nowThreads, nowFiles := entries(t, "/proc/self/task"), entries(t, "/proc/self/fd")
		if nowThreads <= threads+more && nowFiles <= files {
			return
		}
		if time.Now().After(until) {
			t.Fatalf("%d threads and %d open files after %d groups, %d and %d after 2", nowThreads,
				nowFiles, groups, threads, files)
		}
	}
}
