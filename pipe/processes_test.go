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
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"penstock.example/group"
	"penstock.example/internal/draws"
	"penstock.example/internal/linktest"
	"penstock.example/internal/must"
	"penstock.example/internal/proctest"
	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/pipe"
	"penstock.example/torch"
	"pgregory.net/rapid"
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
			maps.DeleteFunc(r.values, func(name string, _ []byte) bool {
				return strings.HasPrefix(name, evaluated)
			})
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
		text := must.Get(json.Marshal(group.Config{Rank: rank, Size: processes, Address: address,
			Silence: 2 * time.Minute}))(t)
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
	// ends the reads below, and says where they hang
	stuck := time.AfterFunc(proctest.Limit, func() { c.signal(syscall.SIGQUIT) })
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

// each runs f for every member of a group at once, and returns what it returned, by rank.
func each[T any](processes int, f func(g *group.Group) (T, error)) ([]T, []error) {
	out, errs := make([]T, processes), make([]error, processes)
	var all sync.WaitGroup
	for rank, g := range group.Local(processes) {
		all.Go(func() { out[rank], errs[rank] = f(g) })
	}
	all.Wait()
	return out, errs
}

// process is one of those of a pipe, with what it trains.
type process struct {
	problem
	*pipe.Pipe
	group *group.Group
	net   *nn.Sequential
	c     *torch.Ctx // of the batches, on a device that no budget is for
}

// on runs f in a process, and ends its pipe.
func (q problem) on(g *group.Group, cfg pipe.Config, f func(m process) error) error {
	cfg.Group = g
	model := q.model()
	defer nn.Free(model)
	p, err := pipe.Open(model, cfg)
	if err != nil {
		return err
	}
	defer p.Close()
	if q.reach != nil {
		q.reach(p, g)
	}
	if err := p.Place(); err != nil {
		return err
	}
	c := torch.NewCtx(torch.Options{Threads: 1, Device: torch.CPU(40 + g.Rank())})
	defer c.Close()
	return f(process{q, p, g, model, c})
}

// batch is that of a step.
func (m process) batch(step int) pipe.Batch {
	return m.problem.batch(m.c, m.Stages(), step)
}

// train makes a step whose gradients nobody wants.
func (m process) train(ctx context.Context, step int) error {
	defer m.c.Close()
	_, err := m.Step(ctx, m.batch(step), m.loss)
	nn.ZeroGrads(m.net)
	return err
}

// apart trains the same with a pipe whose stages are in several processes.
func (q problem) apart(t test, cfg pipe.Config, processes int) record {
	t.Helper()
	records, errs := each(processes, func(g *group.Group) (r record, err error) {
		return q.member(g, cfg, cfg.Budget == nil) // a budget is for steps alone
	})
	for rank, err := range errs {
		if err != nil {
			t.Fatalf("process %d: %v", rank, err)
		}
	}
	merged := must.Get(merge(records))(t)
	return merged
}

// merge puts together what the processes of a pipe have.
func merge(records []record) (merged record, err error) {
	merged = record{records[0].losses, map[string][]byte{}}
	for rank, r := range records {
		if fmt.Sprint(r.losses) != fmt.Sprint(merged.losses) {
			return merged, fmt.Errorf("process %d has losses %v, process 0 %v", rank, r.losses, merged.losses)
		}
		for name, value := range r.values {
			if len(value) == 0 {
				continue
			}
			if had := merged.values[name]; had != nil && !bytes.Equal(had, value) {
				return merged, fmt.Errorf("process %d has another %s than one before it", rank, name)
			}
			merged.values[name] = value
		}
	}
	return merged, nil
}

// evaluated begins the names of what the model gives in evaluation.
const evaluated = "output "

// member is the part of a training run of one process. It has the values of its own stages. Updates
// are those of an optimizer, of clipped gradients, or else plain gradient descent.
func (q problem) member(g *group.Group, cfg pipe.Config, clipped bool) (r record, err error) {
	err = q.on(g, cfg, func(m process) (err error) {
		r,
			err = m.record(clipped, cfg.Budget == nil)
		return err
	})
	return r, err
}

// record is the record of a process. infers says whether it has what the model gives in the end.
func (m process) record(clipped, infers bool) (r record, err error) {
	o, err := optim.New("sgd", optim.Config{LR: 0.05, Momentum: 0.9})
	if err != nil {
		return r, err
	}
	r.values = map[string][]byte{}
	for step := range m.steps {
		m.sets(step, m.net)
		result, err := m.Step(context.Background(), m.batch(step), m.loss)
		if err != nil {
			return r, err
		}
		r.losses = append(r.losses, result.Loss)
		m.c.Close()
		if step == m.steps-1 {
			for _, s := range nn.State(m.net) {
				if s.Exists() {
					r.values["gradient of "+s.Name] = gradient(s)
				}
			}
		}
		if !clipped {
			if err := m.OnStages(context.Background(), func(stage int, c *torch.Ctx) error {
				descend(c, m.Stages()[stage].Params())
				return nil
			}); err != nil {
				return r, err
			}
			nn.ZeroGrads(m.net)
			continue
		}
		norm, err := m.UpdateClipped(context.Background(), o, 0.5)
		if err != nil {
			return r, err
		}
		r.losses = append(r.losses, norm)
	}
	if infers {
		result, err := m.Infer(context.Background(), pipe.Batch{Input: m.batch(0).Input})
		if err != nil {
			return r, err
		}
		for i, y := range result.Output {
			r.values[fmt.Sprintf("%s%d", evaluated, i)] = torch.Bytes(y)
		}
		torch.FreeAll(result.Output)
	}
	defer func() {
		for _, s := range o.State() {
			s.Tensor.Free()
		}
	}()
	for _, s := range nn.State(m.net) {
		if s.Exists() {
			r.values[s.Name] = torch.Bytes(s.Tensor())
		}
	}
	return r, nil
}

// What a model gives for a batch is in the process of the last stage, backward begins there, and a
// timeline has what all workers did.
func TestForwardAndBackwardOfProcesses(t *testing.T) {
	torchtest.Check(t)
	kinds := []int{0, 1, 3, 14, 5}
	q := problem{model: func() *nn.Sequential { return randomModel(kinds, unwrapped) }, rows: 5, steps: 2,
		loss: nn.CrossEntropy(), input: normal(5, 2, 6, 6), target: classes(5, 3)}
	cfg := pipe.Config{Balance: []int{2, 2, len(q.model().Layers()) - 4}, Chunks: 3, Seed: 5, Record: true}
	type result struct {
		output, again string
		gradients     map[string]string
		workers       int
		events        int
	}
	text := func(list []*torch.Tensor) (s string) {
		for _, y := range list {
			s += fmt.Sprintf("%v %x", y, torch.Bytes(y))
		}
		return s
	}
	run := func(g *group.Group) (r result, err error) {
		err = q.on(g, cfg, func(m process) error {
			b := pipe.Batch{Input: pipe.Rows(q.input(m.c, 0))}
			inferred, err := m.Infer(context.Background(), b)
			if err != nil {
				return err
			}
			r.output, r.workers, r.events = text(inferred.Output), inferred.Timeline.Workers,
				len(inferred.Timeline.Events)
			torch.FreeAll(inferred.Output)
			forward, err := m.Forward(context.Background(), b)
			if err != nil {
				return err
			}
			r.again = text(forward.Output())
			var grads []*torch.Tensor
			for _, y := range forward.Output() {
				grads = append(grads, m.c.Keep(m.c.Ones(y.DType(), y.Shape()...)))
			}
			err = forward.BackwardRetained(context.Background(), grads...)
			if err == nil {
				err = forward.Backward(context.Background(), grads...)
			}
			torch.FreeAll(grads)
			r.gradients = map[string]string{}
			for _, s := range nn.State(m.net) {
				if s.Exists() {
					r.gradients[s.Name] = fmt.Sprintf("%x", gradient(s))
				}
			}
			return err
		})
		return r, err
	}
	alone, errs := each(1, run)
	apart, more := each(3, run)
	for _, err := range append(errs, more...) {
		must.Do(t, err)
	}
	merged := map[string]string{}
	for rank, r := range apart {
		maps.Copy(merged, r.gradients)
		want := alone[0]
		if rank < 2 {
			want.output, want.again = "", ""
		}
		if r.output != want.output || r.again != want.again {
			t.Errorf("process %d has outputs %q and %q, want %q and %q", rank, r.output, r.again,
				want.output, want.again)
		}
		if r.workers != 3 || r.events != want.events {
			t.Errorf("process %d has a timeline of %d events by %d workers, want %d by 3", rank, r.events,
				r.workers, want.events)
		}
	}
	if d := cmp.Diff(alone[0].gradients, merged); d != "" {
		t.Errorf("gradients: %s", d)
	}
}

// mishap is what happens to one process of a pipe in the middle of a step.
type mishap struct {
	Kind  string // one of mishaps
	Rank  int
	Step  int     // layouts are known from step 1 on, and other ones in that of the short batch
	Share float64 // of the actions of a step, or of the bytes that a step takes beyond those before it
}

// errOutOfReach is of a process whose step had fewer actions than the mishap was to wait for, as that of a
// short batch has.
var errOutOfReach = errors.New("the mishap was out of reach")

var mishaps = []string{"no memory", "no memory", "cancelled", "left"}

// trouble makes steps in a process up to that of the mishap. reached says whether it has happened.
func (h mishap) trouble(m process) (reached bool, err error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	mine := m.group.Rank() == h.Rank
	var here []torch.Device
	for _, s := range m.Stages() {
		if s.Here {
			here = append(here, s.Device)
		}
	}
	var calls, at atomic.Int64
	m.Hold(func(int, int) {
		if calls.Add(1) != at.Load() {
			return
		}
		reached = true
		switch h.Kind {
		case "cancelled":
			cancel()
		case "left":
			m.group.Close()
		case "killed":
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
	})
	defer m.Hold(nil)
	more := make([]int64, len(here)) // bytes that a step takes
	for i := range more {
		more[i] = 20_000
	}
	for step := range h.Step {
		for _, d := range here {
			d.ResetPeak()
		}
		calls.Store(0)
		if err := m.train(ctx, step); err != nil {
			return false, fmt.Errorf("step %d, before the mishap: %w", step, err)
		}
		for i, d := range here {
			more[i] = d.Memory().Peak - d.Memory().Live
		}
	}
	if mine && h.Kind == "no memory" {
		for i, d := range here {
			d.SetLimit(d.Memory().Live + 1 + int64(h.Share*float64(more[i])))
			defer d.SetLimit(0)
		}
	} else if mine {
		at.Store(1 + int64(h.Share*float64(max(calls.Swap(0), 10))))
	}
	err = m.train(ctx, h.Step)
	return reached, err
}

// wrong says what is wrong with the errors of processes after a mishap.
func (h mishap) wrong(reached bool, errs []error) string {
	var failed *pipe.Error
	all := fmt.Sprint(errs)
	switch first := errs[h.Rank]; {
	case h.Kind == "no memory" && first == nil || h.Kind == "cancelled" && !reached:
		if errors.Join(errs...) != nil {
			return "nothing has happened, and there are errors: " + all
		}
		return ""
	case h.Kind == "no memory" && (!errors.Is(first, torch.ErrOutOfMemory) || !errors.As(first, &failed) &&
		!strings.Contains(first.Error(), "gathering")):
		return fmt.Sprintf("the process itself says: %v", first)
	case h.Kind == "cancelled" && first != nil && !errors.Is(first, context.Canceled):
		return fmt.Sprintf("the process itself says: %v", first)
	}
	for rank, err := range errs {
		if rank == h.Rank {
			continue
		}
		var other *group.FailedError
		var lost *group.LostError
		switch h.Kind {
		case "no memory":
			if !errors.As(err, &other) || other.Rank != h.Rank ||
				!strings.Contains(err.Error(), "out of memory") ||
				!strings.Contains(err.Error(),
					fmt.Sprintf("stage %d, micro-batch %d", failed.Stage, failed.MicroBatch)) ||
				!strings.Contains(err.Error(), "use more chunks") {
				return fmt.Sprintf("process %d says: %v; the one that failed: %v", rank, err, errs[h.Rank])
			}
		case "cancelled":
			if err != nil && (!errors.As(err, &other) || !strings.Contains(err.Error(), "context canceled")) {
				return fmt.Sprintf("process %d says: %v", rank, err)
			}
		case "left":
			if reached && err == nil || err != nil && !errors.As(err, &lost) && !errors.As(err, &other) {
				return fmt.Sprintf("process %d says: %v", rank, err)
			}
		}
	}
	return ""
}

// overGloo is each, of a group whose messages Gloo carries.
func overGloo[T any](t *testing.T, processes int, f func(g *group.Group) (T, error)) ([]T, []error) {
	out, errs := make([]T, processes), make([]error, processes)
	address := proctest.Address(t)
	var all sync.WaitGroup
	for rank := range processes {
		all.Go(func() {
			g, err := group.Join(context.Background(),
				group.Config{Rank: rank, Size: processes, Address: address})
			if err == nil {
				out[rank], err = f(g)
				g.Close()
			}
			errs[rank] = err
		})
	}
	all.Wait()
	return out, errs
}

// Whatever happens to one of several processes anywhere in a step, whose receives are begun ahead: all
// end, with an error that says what and where it was, and nothing is left behind.
//
//	go test ./pipe -run MishapInOneOfSeveral -rapid.checks=1000 -timeout 1h
func TestMishapInOneOfSeveralProcesses(t *testing.T) {
	torchtest.Check(t)
	draws.Checks(t, 12, 100)
	var asked atomic.Int32
	rapid.Check(t, func(rt *rapid.T) {
		goroutines := runtime.NumGoroutine()
		d := drawRun(rt, 2)
		processes := rapid.IntRange(2, d.devices()).Draw(rt, "processes")
		kinds := mishaps
		if d.Budget != nil { // limits are the plan's
			kinds = []string{"cancelled", "left"}
		}
		h := mishap{rapid.SampledFrom(kinds).Draw(rt, "mishap"),
			rapid.IntRange(0, processes-1).Draw(rt, "rank"),
			rapid.IntRange(0, 2).Draw(rt, "step"), rapid.Float64Range(0, 1).Draw(rt, "share")}
		q, ways := d.problem(), rapid.SampledFrom([]string{"local", "gloo", "direct"}).Draw(rt, "ways")
		replicas := min(d.Rows, d.Short) >= int64(processes) && d.Budget == nil &&
			rapid.IntRange(0, 2).Draw(rt, "replicas") == 0
		run := func(g *group.Group) (happened bool, err error) {
			cfg := d.config()
			if replicas { // each process is one, with devices of its own: an order has at most 12
				cfg.Replicas = processes
				for i := range cfg.Devices {
					cfg.Devices[i].Index += 100 + 12*g.Rank()
				}
			}
			err = q.on(g, cfg, func(m process) error { happened, err = h.trouble(m); return err })
			return happened, err
		}
		var happened []bool
		var errs []error
		_ = within(func() error {
			switch {
			case ways == "gloo":
				happened, errs = overGloo(t, processes, run)
			case ways == "direct" && d.Order.Name != "":
				q.reach = reached(&linktest.Fabric{}, torch.Device.String, &asked)
				fallthrough
			default:
				happened, errs = each(processes, run)
			}
			return nil
		})
		if text := h.wrong(slices.Contains(happened, true), errs); text != "" {
			rt.Fatal(text)
		}
		if err := nothingLeft(goroutines); err != nil {
			rt.Fatal(err)
		}
	})
}

// A process that is killed anywhere in a step, or fails there, is named by the other one, which leaves
// nothing behind.
func TestProcessThatEndsInTheMiddleOfAStep(t *testing.T) {
	torchtest.Check(t)
	draws.Checks(t, 4, 25)
	rapid.Check(t, func(rt *rapid.T) {
		d := drawRun(rt, 2)
		rank := rapid.IntRange(0, 1).Draw(rt, "rank")
		d.Mishap = mishap{rapid.SampledFrom([]string{"killed", "cancelled"}).Draw(rt, "mishap"), rank,
			rapid.IntRange(1, 2).Draw(rt, "step"), rapid.Float64Range(0, 0.8).Draw(rt, "share")}
		c := start(t, 2)
		_, _, err := c.run(d)
		if err != nil && err.Error() == fmt.Sprintf("process %d: %v", rank, errOutOfReach) {
			return
		}
		// The other process may still be in the step before.
		told := fmt.Sprintf(`process %d: (step \d, before the mishap: )?rank %d `, 1-rank, rank)
		want := told + "is lost"
		// at the end of the step, too late for both processes or for the other one
		if d.Mishap.Kind == "cancelled" {
			want = fmt.Sprintf(`^$|%sfailed: (.*: )?context canceled|^process %d: .*context canceled$`,
				told, rank)
		}
		text := fmt.Sprint(err)
		if !regexp.MustCompile(want).MatchString(text) || strings.Contains(text, "freed") ||
			strings.Contains(text, "there were") {
			rt.Fatalf("%q; want %s", text, want)
		}
	})
}

// drawn is a training run drawn at random, as data: any process can do its part of it.
type drawn struct {
	Kinds       []int // of the layers, for randomModel
	Rows, Short int64 // of the batches; of one between others
	Chunks      int
	Seed        uint64
	Deferred    bool
	Autocast    torch.Autocast
	Order       order
	Checkpoint  pipe.Checkpoint
	Budget      []int64
	Replicas    []int // the device of each, in a process of its own; nil is one
	OnDevices   bool  // the devices are those for tests; see placed
	Mishap      mishap
}

// drawRun draws a run on at least so many devices.
func drawRun(t *rapid.T, devices int) (d drawn) {
	d.Rows = rapid.Int64Range(1, 9).Draw(t, "rows")
	d.Short = d.Rows
	// more of what crosses stages
	kind := rapid.OneOf(anyKind, rapid.SampledFrom([]int{1, 4, 18, 19, 20, 21, 22}))
	d.Kinds = rapid.SliceOfN(kind, max(2, devices), devices+8).Filter(func(kinds []int) bool {
		return len(randomModel(kinds, nn.Checkpointed).Layers()) >= devices
	}).Draw(t, "layers")
	d.Chunks, d.Seed = rapid.IntRange(1, 6).Draw(t, "chunks"), rapid.Uint64().Draw(t, "seed")
	d.Deferred, d.Autocast = rapid.Bool().Draw(t, "deferred"), randomAutocast(t)
	d.Order = drawOrder(t, len(d.problem().model().Layers()), devices, max(4, devices))
	var mixed []pipe.Checkpoint
	for range d.Order.Balance {
		mixed = append(mixed, rapid.SampledFrom(policies).Draw(t, "policy"))
	}
	d.Checkpoint = pipe.PerStage(mixed...)
	if rapid.IntRange(0, 3).Draw(t, "optimal") == 0 {
		cfg := d.config()
		d.problem().randomBudgets(t, &cfg)
		d.Checkpoint, d.Budget = cfg.Checkpoint, cfg.Budget
	}
	if d.Budget == nil {
		d.Short = rapid.Int64Range(1, d.Rows).Draw(t, "rows of the short batch")
	}
	return d
}

func (d drawn) problem() problem {
	rows := func(step int) int64 {
		if step == 1 {
			return d.Short
		}
		return d.Rows
	}
	return problem{
		model: func() *nn.Sequential { return randomModel(d.Kinds, nn.Checkpointed) }, rows: d.Rows, steps: 3,
		loss:   nn.CrossEntropy(),
		input:  func(c *torch.Ctx, step int) *torch.Tensor { return normal(rows(step), 2, 6, 6)(c, step) },
		target: func(c *torch.Ctx, step int) *torch.Tensor { return classes(rows(step), 3)(c, step) },
	}
}

func (d drawn) config() pipe.Config {
	cfg := pipe.Config{Chunks: d.Chunks, Seed: d.Seed, DeferredBatchNorm: d.Deferred, Autocast: d.Autocast,
		Checkpoint: d.Checkpoint, Budget: d.Budget}
	d.Order.set(&cfg)
	return cfg
}

// placed is config on the devices for tests, if the run is to be on them.
func (d drawn) placed() pipe.Config {
	cfg := d.config()
	for i := range cfg.Devices {
		if d.OnDevices {
			cfg.Devices[i] = torchtest.Device(cfg.Devices[i].Index)
		}
	}
	return cfg
}

// devices is how many there are, each counted once.
func (d drawn) devices() int {
	distinct := slices.Clone(d.Order.Devices)
	slices.Sort(distinct)
	return len(slices.Compact(distinct))
}

// Members of a group in one process have devices of their own, as two would share an account and a limit.
func TestMembersThatShareADevice(t *testing.T) {
	for _, shared := range []bool{true, false} {
		var opened []*pipe.Pipe
		var last error
		for rank, g := range group.Local(2) {
			cfg := pipe.Config{Balance: []int{2}, Replicas: 2, Group: g,
				Devices: []torch.Device{torch.CPU(rank)}}
			if shared {
				cfg.Devices[0] = torch.CPU(0)
			}
			p, err := pipe.Open(nn.NewSequential(nn.NewLinear(2, 2), nn.NewTanh()), cfg)
			if last = err; err == nil {
				opened = append(opened, p)
			}
		}
		for _, p := range opened {
			must.Do(t, p.Close())
		}
		var refused *pipe.ConfigError
		if shared != (errors.As(last, &refused) && refused.Field == "Devices" && len(opened) == 1) {
			t.Errorf("shared: %v: %v", shared, last)
		}
	}
}
