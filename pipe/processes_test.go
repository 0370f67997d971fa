package pipe_test

import (
	"bytes"
	"context"
	"encoding/gob"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	"penstock.example/group"
	"penstock.example/internal/draws"
	"penstock.example/internal/proctest"
	"penstock.example/internal/torchtest"
	"penstock.example/torch"
)

// Processes over Gloo: this test binary, run again as each member of a group. A member does one run
// after the other, so that hundreds of runs take one start of each process.

// memberVariable has the group.Config of a member.
const memberVariable = "PENSTOCK_TEST_MEMBER"

func TestMain(m *testing.M) {
	text := os.Getenv(memberVariable)
	if text == "" {
		os.Exit(m.Run())
	}
	var cfg group.Config
	err := json.Unmarshal([]byte(text), &cfg)
	if err == nil {
		err = serve(cfg)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// answer is what a member has of a run, and how many threads its process has after it.
type answer struct {
	Losses  []float64
	Values  map[string][]byte
	Error   string
	Threads int
}

// serve does the runs that come on standard input as a member of a group, until there are no more.
// Each has to leave the process as it was.
func serve(cfg group.Config) error {
	goroutines := runtime.NumGoroutine()
	torch.TrackLeaks(true)
	g, err := group.Join(context.Background(), cfg)
	if err != nil {
		return err
	}
	joined := runtime.NumGoroutine()
	in, out := gob.NewDecoder(os.Stdin), gob.NewEncoder(os.Stdout)
	for {
		var d drawn
		if err := in.Decode(&d); err == io.EOF {
			break
		} else if err != nil {
			return err
		}
		var a answer
		config := d.placed()
		config.Replicas = len(d.Replicas)
		if d.Replicas != nil {
			for i := range config.Devices {
				config.Devices[i] = torchtest.Device(d.Replicas[cfg.Rank])
			}
		}
		var r record
		if d.Mishap.Kind != "" {
			err = d.problem().on(g, config, func(m process) error {
				reached, err := d.Mishap.trouble(m)
				if err == nil && !reached && d.Mishap.Rank == g.Rank() {
					err = errOutOfReach
				}
				return err
			})
		} else {
			r, err = d.problem().member(g, config, d.Budget == nil)
		}
		if d.Replicas != nil { // what a model gives is of each replica's rows
			maps.DeleteFunc(r.values, func(name string, _ []byte) bool { return strings.HasPrefix(name, evaluated) })
		}
		if err = errors.Join(err, nothingLeft(joined)); err != nil {
			a.Error = err.Error()
		}
		a.Losses, a.Values, a.Threads = r.losses, r.values, tasks()
		if err := out.Encode(a); err != nil {
			return err
		}
	}
	return errors.Join(g.Close(), nothingLeft(goroutines))
}

// tasks is how many threads this process has.
func tasks() int {
	entries, err := os.ReadDir("/proc/self/task")
	if err != nil {
		panic(err)
	}
	return len(entries)
}

// nothingLeft returns an error if there are tensors, bytes on a device's account, or more goroutines
// than so many.
func nothingLeft(goroutines int) error {
	if n := torch.LiveTensors(); n != 0 {
		return fmt.Errorf("%d tensors were not freed:\n%s", n, strings.Join(torch.Leaks(), "\n"))
	}
	for i := range torch.MaxCPU {
		if m := torch.CPU(i).Memory(); m.Live != 0 {
			return fmt.Errorf("%v: %d bytes are live", torch.CPU(i), m.Live)
		}
	}
	for wait := 0; runtime.NumGoroutine() > goroutines; wait++ {
		if wait == 500 {
			return fmt.Errorf("%d goroutines, and there were %d", runtime.NumGoroutine(), goroutines)
		}
		time.Sleep(10 * time.Millisecond)
	}
	return nil
}

// crew is the processes of a group.
type crew struct {
	dir     string // for temporary files
	members []*crewMember
}

type crewMember struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	runs   *gob.Encoder
	out    *gob.Decoder
	stderr bytes.Buffer
}

// start starts so many processes.
func start(t *testing.T, processes int) *crew {
	t.Helper()
	address := proctest.Address(t)
	c := &crew{dir: t.TempDir()}
	for rank := range processes {
		text, err := json.Marshal(group.Config{Rank: rank, Size: processes, Address: address, Silence: 2 * time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		m := &crewMember{cmd: exec.Command(os.Args[0])}
		m.cmd.Env = append(os.Environ(), memberVariable+"="+string(text), "TMPDIR="+c.dir)
		m.cmd.Stderr = &m.stderr
		out, err := m.cmd.StdoutPipe()
		if err == nil {
			m.stdin, err = m.cmd.StdinPipe()
		}
		if err == nil {
			err = m.cmd.Start()
		}
		if err != nil {
			c.kill()
			t.Fatal(err)
		}
		m.runs, m.out = gob.NewEncoder(m.stdin), gob.NewDecoder(out)
		c.members = append(c.members, m)
	}
	return c
}

// run has all do a run and puts together what they have. The crew is lost after an error.
func (c *crew) run(d drawn) (r record, threads []int, err error) {
	stuck := time.AfterFunc(proctest.Limit, func() { c.signal(syscall.SIGQUIT) }) // ends the reads below, and says where they hang
	defer stuck.Stop()
	for _, m := range c.members {
		err = errors.Join(err, m.runs.Encode(d))
	}
	var records []record
	for rank, m := range c.members {
		var a answer
		if failed := m.out.Decode(&a); failed != nil {
			a.Error = fmt.Sprintf("no answer: %v", failed)
		}
		if a.Error != "" {
			err = errors.Join(err, fmt.Errorf("process %d: %s", rank, a.Error))
		}
		records, threads = append(records, record{a.Losses, a.Values}), append(threads, a.Threads)
	}
	if err != nil {
		if stuck.Stop() { // otherwise they are ending
			c.kill()
		}
		for rank, m := range c.members {
			_ = m.cmd.Wait()
			if m.stderr.Len() > 0 {
				err = errors.Join(err, fmt.Errorf("process %d says: %s", rank, m.stderr.String()))
			}
		}
		return r, threads, err
	}
	r, err = merge(records)
	return r, threads, err
}

func (c *crew) kill() { c.signal(syscall.SIGKILL) }

func (c *crew) signal(s syscall.Signal) {
	for _, m := range c.members {
		_ = m.cmd.Process.Signal(s)
	}
}

// end lets all end, and checks that they did so in order and left no file.
func (c *crew) end() error {
	stuck := time.AfterFunc(proctest.Limit, func() { c.signal(syscall.SIGQUIT) })
	defer stuck.Stop()
	var all error
	for _, m := range c.members {
		_ = m.stdin.Close()
	}
	for rank, m := range c.members {
		if err := m.cmd.Wait(); err != nil || m.stderr.Len() > 0 {
			all = errors.Join(all, fmt.Errorf("process %d: %v: %s", rank, err, m.stderr.String()))
		}
	}
	left, err := os.ReadDir(c.dir)
	if len(left) > 0 {
		all = errors.Join(all, fmt.Errorf("%v is left in %s", left, c.dir))
	}
	return errors.Join(all, err)
}

// mostThreads is what a process of a run may have: those of its stages, which end with the run, of
// Gloo, of Go and of the libraries. On two cores it has up to 13.
func mostThreads() int { return 24 + 2*runtime.NumCPU() }

// Results are the same to the bit in 2, 3, 4 and 8 processes over Gloo:
//
//	go test ./pipe -run OverGloo -rapid.checks=1000 -timeout 1h
func TestTransparencyOfProcessesOverGloo(t *testing.T) {
	torchtest.Check(t)
	draws.Checks(t, 10, 100)
	crews := map[int]*crew{}
	defer func() {
		for n, c := range crews {
			if err := c.end(); err != nil {
				t.Errorf("%d processes: %v", n, err)
			}
		}
	}()
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.SampledFrom([]int{2, 3, 4, 8}).Draw(rt, "processes")
		d := drawRun(rt, n)
		want := d.problem().apart(rt, d.config(), 1)
		if crews[n] == nil {
			crews[n] = start(t, n)
		}
		got, threads, err := crews[n].run(d)
		if err != nil {
			delete(crews, n)
			rt.Fatalf("%d processes: %v", n, err)
		}
		if s := want.differs(got); s != "" {
			rt.Fatalf("%d processes: %s differs from that of one process", n, s)
		}
		if slices.Max(threads) > mostThreads() {
			rt.Fatalf("%d processes have %v threads, want at most %d", n, threads, mostThreads())
		}
	})
}
