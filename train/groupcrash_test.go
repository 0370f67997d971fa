package train_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"penstock.example/group"
	"penstock.example/internal/must"
	"penstock.example/internal/proctest"
)

// saveTogether, "RANK SIZE ADDRESS DIR" in the environment, makes this test binary a process of a
// group that saves until one of them is killed.
const saveTogether = "PENSTOCK_TEST_SAVE_TOGETHER"

// togetherSaver saves one step after the other, and says so after each.
func togetherSaver(text string) error {
	cfg := group.Config{Silence: silence}
	var dir string
	if _, err := fmt.Sscan(text, &cfg.Rank, &cfg.Size, &cfg.Address, &dir); err != nil {
		return err
	}
	g, err := group.Join(context.Background(), cfg)
	if err != nil {
		return err
	}
	m := newMembers(stopper{}, dir, 1, 1, func(_, param int) bool { return param%cfg.Size == cfg.Rank })[0]
	m.group = g
	if err := errors.Join(m.loadState(1), m.store().Prepare()); err != nil {
		return err
	}
	for step := int64(1); ; step++ {
		if err := m.save(step); err != nil {
			return err
		}
		fmt.Println(step)
	}
}

// stopper ends a process in place of a test.
type stopper struct{}

func (stopper) Helper() {}

func (stopper) Fatal(what ...any) { fmt.Println(what...); os.Exit(1) }

// TestProcessKilledWhileSaving kills one of three processes at an odd moment of their saving. The
// others end, and there is a complete checkpoint: the last that all have said to have saved, or the
// one after. Others, with other parameters, go on from it.
func TestProcessKilledWhileSaving(t *testing.T) {
	check(t)
	dir, victim := t.TempDir(), rand.IntN(3)
	said := killOne(t, dir, 3, victim, time.Duration(rand.IntN(20000))*time.Microsecond)
	onAll(t, newMembers(t, dir, 3, 2, func(rank, param int) bool { return (param+1)%3 == rank }), func(_ int, m member) error {
		release, err := m.store().Lock()
		if err != nil {
			return err
		}
		defer release()
		step, err := m.restore()
		if err == nil && step != said && step != said+1 {
			err = fmt.Errorf("rank %d killed after step %d: step %d is restored", victim, said, step)
		}
		return errors.Join(err, m.same(1))
	})
	if left := leftovers(t, dir); len(left) > 0 {
		t.Errorf("%q is left", left)
	}
}

// silence is longer than a machine that is busy with other tests keeps a member from its heartbeats.
const silence = 2 * time.Minute

// killOne runs n processes, kills one some time after all have saved step 2, and
// returns the last step that one of them says to have saved.
func killOne(t *testing.T, dir string, n, victim int, after time.Duration) (said int64) {
	t.Helper()
	address := proctest.Address(t)
	var processes []*exec.Cmd
	lines := make(chan string, 1<<16)
	ended := make(chan error, n)
	for rank := range n {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d %d %s %s", saveTogether, rank, n, address, dir))
		cmd.Stderr = os.Stderr
		out := must.Get(cmd.StdoutPipe())(t)
		must.Do(t, cmd.Start())
		defer cmd.Process.Kill()
		proctest.Watch(t, cmd, proctest.Limit)
		processes = append(processes, cmd)
		go func() {
			s := bufio.NewScanner(out)
			for s.Scan() {
				lines <- s.Text()
			}
			ended <- cmd.Wait()
		}()
	}
	var told []string
	for saved, killed, left := 0, false, n; left > 0; {
		select {
		case line := <-lines:
			step, err := strconv.ParseInt(line, 10, 64)
			if err != nil {
				told = append(told, line)
				break
			}
			said = max(said, step)
			if step == 2 {
				saved++
			}
			if saved == n && !killed {
				killed = true
				time.AfterFunc(after, func() { processes[victim].Process.Kill() })
			}
		case err := <-ended:
			left--
			var exit *exec.ExitError
			if !errors.As(err, &exit) || !killed {
				t.Fatalf("a process ended with %v: %q", err, told)
			}
		}
	}
	for len(lines) > 0 {
		if step, err := strconv.ParseInt(strings.TrimSpace(<-lines), 10, 64); err == nil {
			said = max(said, step)
		}
	}
	return said
}
