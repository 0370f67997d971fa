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
	"penstock.example/internal/draws"
	"penstock.example/internal/proctest"
	"penstock.example/train"
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
	m := newMembers(stopper{}, []string{dir}, 1, func(_, param int) bool { return param%cfg.Size == cfg.Rank })[0]
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

func (stopper) Fatal(what ...any) { fmt.Println(what...); os.Exit(1) }

// TestProcessKilledWhileSaving kills one of three processes at odd moments of their saving. The
// others end, and there is a complete checkpoint: the last that all have said to have saved, or the
// one after. Others, with other parameters, go on from it.
func TestProcessKilledWhileSaving(t *testing.T) {
	check(t)
	for layout, shared := range layouts {
		if layout != "one directory" && !draws.Full {
			continue
		}
		dirs, victim := directories(t.TempDir(), shared), rand.IntN(len(shared))
		said := killOne(t, dirs, victim, time.Duration(rand.IntN(20000))*time.Microsecond)
		all := newMembers(t, dirs, 2, func(rank, param int) bool { return (param+1)%len(dirs) == rank })
		steps := make([]int64, len(all))
		for rank, err := range each(all, func(rank int, m member) error {
			defer m.free()
			release, err := m.store().Lock()
			if err != nil {
				return err
			}
			defer release()
			if steps[rank], err = m.restore(); err != nil {
				return err
			}
			return m.same(1)
		}) {
			if err != nil {
				t.Errorf("%s, rank %d killed after step %d: rank %d: %v", layout, victim, said, rank, err)
			}
		}
		if steps[0] < said || steps[0] > said+1 || steps[1] != steps[0] {
			t.Errorf("%s, rank %d killed after step %d: steps %v are restored", layout, victim, said, steps)
		}
		for _, dir := range dirs {
			if left := leftovers(t, dir); len(left) > 0 {
				t.Errorf("%s: %q is left", layout, left)
			}
		}
	}
}

// silence is longer than a machine that is busy with other tests keeps a member from its heartbeats.
const silence = 2 * time.Minute

// killOne runs a process for each directory, kills one some time after all have saved step 2, and
// returns the last step that one of them says to have saved.
func killOne(t *testing.T, dirs []string, victim int, after time.Duration) (said int64) {
	t.Helper()
	address := proctest.Address(t)
	var processes []*exec.Cmd
	lines := make(chan string, 1<<16)
	ended := make(chan error, len(dirs))
	for rank, dir := range dirs {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d %d %s %s", saveTogether, rank, len(dirs), address, dir))
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
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
	for saved, killed, left := 0, false, len(dirs); left > 0; {
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
			if saved == len(dirs) && !killed {
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

// TestRestoreOverGloo: tensors that a process does not have come from another also over what joins
// processes in earnest.
func TestRestoreOverGloo(t *testing.T) {
	check(t)
	dirs := directories(t.TempDir(), []int{0, 1, 2})
	saved := newMembers(t, dirs, 4, third)
	for _, err := range each(saved, func(_ int, m member) error {
		defer m.free()
		return errors.Join(m.loadState(4), m.store().Prepare(), m.save(1))
	}) {
		if err != nil {
			t.Fatal(err)
		}
	}
	address := proctest.Address(t)
	all := newMembers(t, dirs, 5, func(rank, param int) bool { return param%3 != rank })
	for rank, err := range each(all, func(rank int, m member) (err error) {
		defer m.free()
		if m.group, err = group.Join(t.Context(), group.Config{Rank: rank, Size: len(all), Address: address, Silence: silence}); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, m.group.Close()) }()
		if _, err := m.restore(); err != nil {
			return err
		}
		sum, err := train.ParamsSHA256In(m.group, m.model)
		if whole := wholeSHA256(4); err == nil && sum != whole {
			err = fmt.Errorf("hash %s, want %s", sum, whole)
		}
		return errors.Join(err, m.same(4))
	}) {
		if err != nil {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}

// wholeSHA256 is the hash of the whole model with the values of a seed.
func wholeSHA256(seed uint64) string {
	m := newMembers(stopper{}, []string{""}, seed, func(int, int) bool { return true })[0]
	defer m.free()
	return train.ParamsSHA256(m.model)
}
