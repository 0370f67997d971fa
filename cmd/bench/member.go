package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"time"

	"penstock.example/group"
	"penstock.example/models"
	"penstock.example/optim"
	"penstock.example/pipe"
	"penstock.example/schedule"
	"penstock.example/torch"
)

// memberArg makes a process of this program a member: it trains when asked to, alone or with others.
const memberArg = "member"

// exercise is what members are asked to train: steps of a workload with the updates of SGD, on two
// devices of one thread. Exercises that differ in Steps and Record alone go on.
type exercise struct {
	Model    string         `json:"model"`
	Options  models.Options `json:"options"`
	Batch    int64          `json:"batch"`
	Chunks   int            `json:"chunks"`
	Schedule string         `json:"schedule"`
	Balance  []int          `json:"balance"`
	LR       float64        `json:"lr"`
	Steps    int            `json:"steps"`
	Record   bool           `json:"record,omitempty"`
}

// trained is the answer: the mean time of the steps, the mean processor time of all members together,
// and the losses.
type trained struct {
	MS     float64     `json:"ms"`
	CPU    float64     `json:"cpu_ms"`
	Losses []float64   `json:"losses"`
	Steps  []stepTimes `json:"steps,omitempty"` // where they are recorded
}

// stepTimes are of a step: how long each action took, and how long it took until rank 0 had done its last.
type stepTimes struct {
	Actions  map[string]time.Duration `json:"actions"`
	Makespan time.Duration            `json:"makespan"`
}

func timesOf(t *schedule.Timeline) stepTimes {
	r := stepTimes{map[string]time.Duration{}, t.Makespan()}
	for _, e := range t.Events {
		r.Actions[e.Action.String()] = e.End - e.Start
	}
	return r
}

// worked is what a member tells the others of its part of the steps.
type worked struct {
	CPU   time.Duration
	Steps []stepTimes
}

// exerciseDevices is how many devices the stages of an exercise are on. In a group each process has
// as many.
const exerciseDevices = 2

// workload is what is trained. Nothing is recomputed.
func (x exercise) workload() workload {
	return workload{Model: x.Model, Options: x.Options, Batch: x.Batch, Chunks: x.Chunks, Checkpoint: pipe.Never}
}

// trainer makes what trains in this process.
func (x exercise) trainer(ctx context.Context, g *group.Group) (*trainer, error) {
	s, err := schedule.Named(x.Schedule)
	if err != nil {
		return nil, err
	}
	workers, err := s.Workers(exerciseDevices, s.Usual())
	if err != nil {
		return nil, err
	}
	config := pipe.Config{Balance: x.Balance, Schedule: s.Generate, Group: g}
	for _, on := range workers {
		config.Devices = append(config.Devices, torch.CPU(on))
	}
	t, err := x.workload().trainer(ctx, config, 0)
	if err != nil {
		return nil, err
	}
	t.pipe.SetRecord(false)
	if t.updates, err = optim.SGD(optim.Config{LR: x.LR}); err != nil {
		t.close()
		return nil, err
	}
	return t, nil
}

// member is a process that trains exercises. It keeps the trainers of a model until another is
// asked for.
type member struct {
	group    *group.Group // nil: alone
	model    string
	trainers map[string]*trainer // by exercise, without its steps
}

func (m *member) close() {
	for _, t := range m.trainers {
		t.close()
	}
	m.trainers = map[string]*trainer{}
}

// train does an exercise. All members call it.
func (m *member) train(ctx context.Context, x exercise) (trained, error) {
	if x.Model != m.model {
		m.close()
		m.model = x.Model
	}
	steps := x.Steps
	record := x.Record
	x.Steps, x.Record = 0, false
	text, err := json.Marshal(x)
	if err != nil {
		return trained{}, err
	}
	t := m.trainers[string(text)]
	if t == nil {
		if t, err = x.trainer(ctx, m.group); err != nil {
			return trained{}, err
		}
		m.trainers[string(text)] = t
	}
	var out trained
	t.pipe.SetRecord(record)
	var own worked
	begin, before := time.Now(), ownTime()
	for range steps {
		r, err := t.step(ctx)
		if err != nil {
			return trained{}, err
		}
		out.Losses = append(out.Losses, r.Loss)
		if record {
			own.Steps = append(own.Steps, timesOf(r.Timeline))
		}
	}
	own.CPU = ownTime() - before
	all, err := group.Meet(ctx, m.group, "bench: the end of the steps", own, nil)
	if err != nil {
		return trained{}, err
	}
	out.MS, out.Steps = milliseconds(time.Since(begin))/float64(steps), all[0].Steps
	for _, w := range all {
		out.CPU += milliseconds(w.CPU) / float64(steps)
		for i, s := range w.Steps {
			maps.Copy(out.Steps[i].Actions, s.Actions)
		}
	}
	return out, nil
}

func milliseconds(d time.Duration) float64 { return d.Seconds() * 1e3 }

// told is what rank 0 is asked, in all members; nil at the end.
func (m *member) told(ctx context.Context, in *bufio.Reader) (*exercise, error) {
	return group.FromFirst(ctx, m.group, "bench: the next exercise", func() (*exercise, error) {
		line, err := in.ReadBytes('\n')
		if err == io.EOF {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		x := new(exercise)
		return x, json.Unmarshal(line, x)
	})
}

// serve answers requests, a line each, until there are no more. Rank 0 reads and writes. Whatever
// goes wrong is the answer, as long as the group goes on.
func (m *member) serve(ctx context.Context, in io.Reader, out io.Writer) error {
	defer m.close()
	write := func(answer any) error {
		if m.group != nil && m.group.Rank() > 0 {
			return nil
		}
		return json.NewEncoder(out).Encode(answer)
	}
	if err := write(map[string]string{"blas": torch.BLASCore(), "torch": torch.Version()}); err != nil {
		return err
	}
	lines := bufio.NewReader(in)
	for {
		x, err := m.told(ctx, lines)
		if x == nil || err != nil {
			return err
		}
		var answer any
		failed := torch.Try(func() { answer, err = m.train(ctx, *x) })
		if failed != nil {
			err = failed
		}
		if err != nil {
			answer = map[string]string{"error": err.Error()}
		}
		if err := write(answer); err != nil {
			return err
		}
	}
}

// beMember is the life of a member.
func beMember(ctx context.Context) error {
	m := &member{trainers: map[string]*trainer{}}
	cfg, several, err := group.FromEnvironment(os.Getenv)
	if err != nil {
		return err
	}
	if several {
		if m.group, err = group.Join(ctx, cfg); err != nil {
			return err
		}
		defer m.group.Close()
	}
	return m.serve(ctx, os.Stdin, os.Stdout)
}

// host is where a member runs.
type host struct {
	address string
	on      []string // what its command line begins with
}

// startMembers starts processes of this program that train together, on this machine.
func startMembers(ctx context.Context, name string, n int) (*child, error) {
	return startMembersOn(ctx, name, slices.Repeat([]host{{address: "127.0.0.1"}}, n))
}

// startMembersOn starts a process of this program on each host. They train together.
func startMembersOn(ctx context.Context, name string, hosts []host) (*child, error) {
	n := len(hosts)
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := &child{name: name}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	env := func(rank int) []string {
		if n == 1 {
			return os.Environ()
		}
		return append(os.Environ(), "MASTER_ADDR="+hosts[0].address, "MASTER_PORT="+port, "WORLD_SIZE="+strconv.Itoa(n), "RANK="+strconv.Itoa(rank))
	}
	words := func(rank int) []string { return append(slices.Clone(hosts[rank].on), self, memberArg) }
	for rank := 1; rank < n; rank++ {
		o := exec.CommandContext(ctx, words(rank)[0], words(rank)[1:]...)
		o.Env, o.Stderr = env(rank), os.Stderr
		if err := o.Start(); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		c.others = append(c.others, o)
	}
	if err := c.start(ctx, words(0)[0], words(0)[1:], env(0)); err != nil {
		return nil, err
	}
	return c, nil
}

// freePort is a port of this machine that nobody listened on a moment ago.
func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, err
}
