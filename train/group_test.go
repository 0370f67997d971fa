package train_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"penstock.example/group"
	"penstock.example/internal/draws"
	"penstock.example/internal/must"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/pipe"
	"penstock.example/safetensors"
	"penstock.example/torch"
	"penstock.example/train"
)

// member stands for a process of a group: its own model, of which a part exists, and its own
// optimizer.
type member struct {
	group *group.Group // nil for one process
	dir   string
	model *nn.Sequential
	opt   optim.Optimizer
}

// store is the member's store.
func (m member) store() train.Store { return train.Store{Dir: m.dir, Group: m.group} }

// places are the parameters that exist in the member's process.
func (m member) places() []optim.Placement {
	var here []nn.NamedParam
	for _, p := range nn.Params(m.model) {
		if p.Exists() {
			here = append(here, p)
		}
	}
	return []optim.Placement{{Device: torch.CPU(0), Params: here}}
}

func (m member) free() {
	m.opt.Close()
	nn.Free(m.model)
}

// newMembers makes a group whose n members keep their checkpoints in dir. Each has the parameters that has
// says, with values of a seed.
func newMembers(t must.T, dir string, n int, seed uint64, has func(rank, param int) bool) []member {
	groups := []*group.Group{nil}
	if n > 1 {
		groups = group.Local(n)
	}
	var all []member
	for rank, g := range groups {
		o := must.Get(optim.New("adam", optim.Config{LR: 0.01}))(t)
		m := member{g, dir, network(), o}
		c := torch.NewCtx(torch.Options{})
		for i, p := range nn.State(m.model) {
			if has(rank, i) {
				nn.Materialise(c, []nn.NamedParam{p}, seed)
			}
		}
		c.Close()
		all = append(all, m)
	}
	return all
}

// loadState gives the optimizer state of a seed and as many updates, for what exists.
func (m member) loadState(seed uint64) error {
	var saved []safetensors.Tensor
	steps := map[string]int64{}
	for _, p := range m.places()[0].Params {
		if steps[p.Name] = int64(seed); strings.HasSuffix(p.Name, "bias") {
			steps[p.Name] = 0 // which has no state
			continue
		}
		for _, slot := range []string{"exp_avg", "exp_avg_sq"} {
			name := slot + "." + p.Name
			saved = append(saved, safetensors.Tensor{Name: name, DType: torch.FileDType(p.DType()),
				Shape: p.Shape(), Load: func(write func([]byte) error) error {
					return write(noise(name, seed, p.Bytes()))
				}})
		}
	}
	return m.opt.Load(saved, steps, m.places())
}

// noise is bytes that belong to a name and a seed.
func noise(name string, seed uint64, n int64) []byte {
	h := fnv.New64a()
	h.Write([]byte(name))
	r := rand.New(rand.NewPCG(seed, h.Sum64()))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// each runs f for all members at the same time and returns their errors by rank.
func each(all []member, f func(rank int, m member) error) []error {
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for rank, m := range all {
		wg.Go(func() { errs[rank] = f(rank, m) })
	}
	wg.Wait()
	return errs
}

// onAll runs f for all members, which it frees, and fails the test on an error.
func onAll(t failer, all []member, f func(rank int, m member) error) {
	t.Helper()
	for rank, err := range each(all, func(rank int, m member) error { defer m.free(); return f(rank, m) }) {
		if err != nil {
			t.Fatalf("rank %d: %v", rank, err)
		}
	}
}

type failer interface {
	Helper()
	Fatalf(string, ...any)
}

// saved writes a checkpoint of a step and of a seed by n members.
func saved(t testing.TB, n int, step int64, seed uint64, has func(rank, param int) bool) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "run")
	onAll(t, newMembers(t, dir, n, seed, has), func(_ int, m member) error {
		return errors.Join(m.loadState(seed), m.save(step))
	})
	return dir
}

// same returns an error unless the member has the bits of the seed in all that exists.
func (m member) same(seed uint64) error {
	whole := network()
	defer nn.Free(whole)
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	nn.Materialise(c, nn.State(whole), seed)
	want := nn.State(whole)
	for i, p := range nn.State(m.model) {
		if p.Exists() && !bytes.Equal(torch.Bytes(p.Tensor()), torch.Bytes(want[i].Tensor())) {
			return fmt.Errorf("%s has other bits than were saved", p.Name)
		}
	}
	state := map[string]*torch.Tensor{}
	for _, s := range m.opt.State() {
		state[s.Name] = s.Tensor
	}
	steps := m.opt.Steps()
	params := m.places()[0].Params
	if len(steps) != len(params) {
		return fmt.Errorf("counts of updates %v for %d parameters", steps, len(params))
	}
	for _, p := range params {
		n := int64(seed)
		if strings.HasSuffix(p.Name, "bias") {
			n = 0
		}
		if steps[p.Name] != n {
			return fmt.Errorf("%s has %d updates, want %d", p.Name, steps[p.Name], n)
		}
		for _, slot := range []string{"exp_avg", "exp_avg_sq"} {
			name := slot + "." + p.Name
			if n > 0 && (state[name] == nil ||
				!bytes.Equal(torch.Bytes(state[name]), noise(name, seed, p.Bytes()))) {
				return fmt.Errorf("%s has other bits than were saved", name)
			}
			delete(state, name)
		}
	}
	if len(state) > 0 {
		return fmt.Errorf("state of parameters that are not here: %v", state)
	}
	return nil
}

func (m member) save(step int64) error {
	_, err := m.store().Save(train.Progress{Step: step}, recipe(), m.model, m.opt)
	return err
}

// restore restores the newest checkpoint and returns its step.
func (m member) restore() (int64, error) {
	c, err := m.store().Latest()
	if err != nil {
		return 0, err
	}
	if err := c.Check(recipe(), m.model); err != nil {
		return 0, err
	}
	return c.Step, c.RestoreInto(m.model, m.places(), m.opt)
}

// drawOwners draws which members have which parameters: each has one at least.
func drawOwners(t *rapid.T, what string, members int) func(rank, param int) bool {
	params := len(nn.State(network()))
	owner := rapid.SliceOfN(rapid.IntRange(0, members-1), params, params).Draw(t, what)
	// a parameter that stages of several processes use
	extra := rapid.SliceOfN(rapid.IntRange(0, 3*members), params, params).Draw(t, what+", also")
	return func(rank, param int) bool { return owner[param] == rank || extra[param] == rank }
}

// TestCheckpointsFitAnyGroup: whoever saved, with whatever cut, any other group restores the same bits, and
// finds the hash of the whole model.
func TestCheckpointsFitAnyGroup(t *testing.T) {
	check(t)
	temp := t.TempDir()
	const seed = 3
	whole := newMembers(t, "", 1, seed, func(int, int) bool { return true })[0]
	defer whole.free()
	want := sumOf(whole.model)
	rapid.Check(t, func(t *rapid.T) {
		dir := must.Get(os.MkdirTemp(temp, ""))(t)
		n, m := rapid.IntRange(1, 4).Draw(t, "savers"), rapid.IntRange(1, 4).Draw(t, "restorers")
		onAll(t, newMembers(t, dir, n, seed, drawOwners(t, "savers' parameters", n)),
			func(_ int, m member) error {
				return errors.Join(m.loadState(seed), m.save(7))
			})
		onAll(t, newMembers(t, dir, m, seed+1, drawOwners(t, "restorers' parameters", m)),
			func(_ int, m member) error {
				step, err := m.restore()
				sum, err2 := train.ParamsSHA256(m.group, m.model)
				if err == nil && (step != 7 || sum != want) {
					err = fmt.Errorf("step %d, hash %s, want %s", step, sum, want)
				}
				return errors.Join(err, err2, m.same(seed))
			})
	})
}

// third gives the parameters to three members in turn.
func third(rank, param int) bool { return param%3 == rank }

// fault refuses the n-th operation on a member's files. From then on a dead member does nothing.
type fault struct {
	mu     sync.Mutex
	at     int // counted from 0; -1 for none
	dies   bool
	member member
	seen   int
	dead   bool
	what   string // the operation that was refused
}

var errFault = errors.New("boom")

func (f *fault) before(operation, path string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.seen
	f.seen++
	if f.dead {
		return errFault
	}
	if n != f.at {
		return nil
	}
	f.what = operation + " " + filepath.Base(path)
	if f.dies {
		f.dead = true
		f.member.group.Close() // the others find that it is gone
	}
	return errFault
}

// TestSaveFailsWholeInAGroup: whatever operation on a file fails on whatever member, or kills it, all
// members have an error or none, and then there is a complete checkpoint: the one that was being
// saved or the one before. A quick run leaves out most operations where members die.
func TestSaveFailsWholeInAGroup(t *testing.T) {
	check(t)
	for rank := range 3 {
		for _, dies := range []bool{false, true} {
			first, step := 0, 1
			if !draws.Full && dies {
				first, step = rank, 3
			}
			for at, more := first, true; more; at += step {
				t.Run(fmt.Sprintf("rank %d, dies %t, operation %d", rank, dies, at), func(t *testing.T) {
					f := &fault{at: at, dies: dies}
					failSave(t, rank, f)
					more = f.what != "" // or there are no more operations
				})
			}
		}
	}
}

func failSave(t *testing.T, rank int, f *fault) {
	dir := saved(t, 3, 1, 1, third)
	all := newMembers(t, dir, 3, 2, third)
	f.member = all[rank]
	errs := each(all, func(r int, m member) error {
		defer m.free()
		if err := m.loadState(2); err != nil {
			return err
		}
		store := m.store()
		store.Keep = 1
		if r == rank {
			store = store.WithFaults(f.before)
		}
		_, err := store.Save(train.Progress{Step: 2}, recipe(), m.model, m.opt)
		return err
	})
	saved := 0
	for r, err := range errs {
		switch {
		case err == nil:
			saved++
		case r == rank && !errors.Is(err, errFault) && !f.dies:
			t.Errorf("%s: the error of rank %d is %v", f.what, r, err)
		}
	}
	// A member that dies after the others need it no more leaves them with a saved checkpoint.
	if (f.what == "") != (saved == len(all)) && !f.dies || f.dies && saved > 0 && f.what != "" &&
		saved < len(all)-1 {
		t.Errorf("%s: %d members have saved; errors %v", f.what, saved, errs)
	}
	if left := leftovers(t, dir); !f.dies && f.what != "" && !strings.HasPrefix(f.what, "remove") &&
		len(left) > 0 {
		t.Errorf("%s leaves %q", f.what, left)
	}

	// Other processes go on from there.
	restored := make([]int64, 3)
	onAll(t, newMembers(t, dir, 3, 3, third), func(r int, m member) error {
		release, err := m.store().Lock()
		if err != nil {
			return err
		}
		defer release()
		if restored[r], err = m.restore(); err != nil {
			return err
		}
		return m.same(uint64(restored[r]))
	})
	if slices.Min(restored) != slices.Max(restored) || saved > 0 && restored[0] != 2 {
		t.Errorf("%s: %d members saved step 2, and steps %v are restored", f.what, saved, restored)
	}
	if left := leftovers(t, dir); len(left) > 0 {
		t.Errorf("%s: after Lock there is %q", f.what, left)
	}
}

// leftovers lists what is no checkpoint in a directory.
func leftovers(t testing.TB, dir string) []string {
	return slices.DeleteFunc(names(t, dir),
		func(name string) bool { return strings.HasPrefix(name, "step-") })
}

// TestNotShared: processes that do not see one directory are refused on every rank before they train.
func TestNotShared(t *testing.T) {
	all := newMembers(t, t.TempDir(), 2, 1, third)
	all[1].dir = t.TempDir()
	for rank, err := range each(all, func(_ int, m member) error {
		defer m.free()
		_, err := m.store().Lock()
		return err
	}) {
		if err == nil || !strings.Contains(err.Error(), "rank 1 does not see rank 0") {
			t.Errorf("rank %d: %v", rank, err)
		}
		if left := names(t, all[rank].dir); len(left) > 0 {
			t.Errorf("rank %d: %q is left", rank, left)
		}
	}
}

// TestDamagedShards: a shard that is missing or damaged is an error on every member that names the file.
func TestDamagedShards(t *testing.T) {
	check(t)
	for _, tt := range []struct {
		file, want string
		do         func(path string) error
	}{
		{"model-00002-of-00003.safetensors", ": no such file", os.Remove},
		{"optimizer-00001-of-00003.safetensors", ": no such file", os.Remove},
		{"model-00003-of-00003.safetensors", " has 100 bytes",
			func(path string) error { return os.Truncate(path, 100) }},
	} {
		dir := saved(t, 3, 1, 1, third)
		must.Do(t, tt.do(filepath.Join(dir, "step-000001", tt.file)))
		for r, err := range each(newMembers(t, dir, 3, 1, third), func(_ int, m member) error {
			defer m.free()
			_, err := m.store().Latest()
			// others may not have seen yet what is wrong
			m.group.Fail(group.FailedError{Stage: -1, MicroBatch: -1, Message: "it goes"})
			return err
		}) {
			var damaged *train.DamagedError
			if !errors.As(err, &damaged) || !strings.Contains(err.Error(), tt.file+tt.want) {
				t.Errorf("%s, rank %d: %v; want %s", tt.file, r, err, tt.want)
			}
		}
	}
}

// TestLockInAGroup: another run is refused on every rank until the first releases its lock.
func TestLockInAGroup(t *testing.T) {
	dir := t.TempDir()
	lock := func(want string) (release func() error) {
		var first sync.Mutex
		for rank, err := range inProcesses(3, func(g *group.Group) error {
			free, err := train.Store{Dir: dir, Group: g}.Lock()
			if first.Lock(); g.Rank() == 0 {
				release = free
			}
			first.Unlock()
			return err
		}) {
			if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("rank %d: %v, want %q", rank, err, want)
			}
		}
		return release
	}
	release := lock("")
	lock(train.ErrLocked.Error())
	if err := release(); err != nil {
		t.Error(err)
	}
	lock("")()
}

// TestRestoreFailsOnAllMembers: a file that is lost after it was checked, or a member that is gone,
// is an error on every member that is there, and nobody waits for ever.
func TestRestoreFailsOnAllMembers(t *testing.T) {
	check(t)
	for _, gone := range []bool{false, true} {
		dir, lost := saved(t, 3, 1, 1, third), "model-00002-of-00003.safetensors"
		all := newMembers(t, dir, 3, 2, third)
		found := make([]*train.Checkpoint, len(all))
		for _, err := range each(all, func(rank int, m member) (err error) {
			found[rank], err = m.store().Latest()
			return err
		}) {
			must.Do(t, err)
		}
		if !gone {
			must.Do(t, os.Remove(filepath.Join(dir, "step-000001", lost)))
		}
		for rank, err := range each(all, func(rank int, m member) error {
			defer m.free()
			if gone && rank == 1 {
				m.group.Close()
				return errFault
			}
			return found[rank].RestoreInto(m.model, m.places(), m.opt)
		}) {
			if err == nil || !gone && !strings.Contains(err.Error(), lost) {
				t.Errorf("a member is gone %t: rank %d: %v", gone, rank, err)
			}
		}
	}
}

// tied is network with a weight that layers of several stages use.
func tied() *nn.Sequential {
	square := nn.NewLinear(12, 12)
	return nn.NewSequential(
		nn.NewFlatten(1, -1), nn.NewLinear(16, 12), nn.NewBatchNorm1d(12, nn.BatchNormConfig{}), square,
		nn.NewDropout(0.2), nn.NewReLU(), nn.NewLinearShared(square.Weight, true), nn.NewLinear(12, 3),
	)
}

// process is what a process of a run does between start and end: it goes on from the newest
// checkpoint, unless it starts at step 0, trains to a step, and saves. It returns the hash of the model.
func process(t *testing.T, g *group.Group, dir string, balance, ranks []int, from, to int64) string {
	store := train.Store{Dir: dir, Group: g}
	release := must.Get(store.Lock())(t)
	defer release()
	o := must.Get(optim.New("adam", optim.Config{LR: 0.01}))(t)
	defer o.Close()
	model := tied()
	defer nn.Free(model)
	p := must.Get(pipe.New(model, pipe.Config{Balance: balance, Chunks: 3, Seed: 7, Group: g,
		Ranks: ranks}))(t)
	defer p.Close()
	var at train.Progress
	if saved, err := store.Latest(); from > 0 || !errors.Is(err, train.ErrNoCheckpoint) {
		must.Do(t, err)
		must.Do(t, saved.Check(recipe(), model))
		must.Do(t, saved.Restore(p, o))
		at = saved.Progress
	}
	if at.Step != from {
		t.Errorf("it goes on from step %d, want %d", at.Step, from)
	}
	loop := train.Loop{Pipe: p, Optimizer: o, Loss: nn.CrossEntropy(), Steps: to, ClipNorm: 1,
		Loader: loader(t, at.Position), Step: at.Step}
	must.Get(loop.Run(t.Context()))(t)
	must.Get(store.Save(loop.Progress(), recipe(), model, o))(t)
	return must.Get(train.ParamsSHA256(g, model))(t)
}

// TestResumeAtAnotherNumberOfProcesses: a run that is saved and resumed by other numbers of
// processes, with other cuts, has the bits of one process.
func TestResumeAtAnotherNumberOfProcesses(t *testing.T) {
	check(t)
	want := process(t, nil, t.TempDir(), nil, nil, 0, 9)
	dir, from, last := filepath.Join(t.TempDir(), "run"), int64(0), ""
	for _, r := range []struct {
		balance, ranks []int
		to             int64
	}{
		{[]int{3, 5}, []int{0, 1}, 2},
		{[]int{2, 1, 3, 2}, []int{2, 0, 1, 2}, 4},
		{[]int{2, 3, 3}, []int{1, 2, 0}, 7},
		{[]int{1, 1, 3, 2, 1}, []int{3, 3, 2, 1, 0}, 9},
	} {
		sums := make([]string, slices.Max(r.ranks)+1)
		inAll(t, len(sums), func(g *group.Group) error {
			sums[g.Rank()] = process(t, g, dir, r.balance, r.ranks, from, r.to)
			return nil
		})
		if slices.Max(sums) != slices.Min(sums) {
			t.Errorf("to step %d: ranks have the hashes %s", r.to, sums)
		}
		from, last = r.to, sums[0]
	}
	if last != want {
		t.Errorf("hash %s, want %s", last, want)
	}
}

// inProcesses runs f for each of so many members of a group at once, and returns their errors.
func inProcesses(n int, f func(g *group.Group) error) []error {
	errs := make([]error, n)
	var all sync.WaitGroup
	for rank, g := range group.Local(n) {
		all.Go(func() { errs[rank] = f(g) })
	}
	all.Wait()
	return errs
}

// inAll is inProcesses for what must not fail.
func inAll(t testing.TB, n int, f func(g *group.Group) error) {
	t.Helper()
	for rank, err := range inProcesses(n, f) {
		if err != nil {
			t.Fatalf("rank %d of %d: %v", rank, n, err)
		}
	}
}

// When the context of one process ends, all end after the same step.
func TestInterruptOfOneProcess(t *testing.T) {
	check(t)
	inAll(t, 3, func(g *group.Group) error {
		s, closer := newRig(t, setup{balance: []int{2, 3, 3}, group: g})
		defer closer()
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		s.OnStep = []train.Hook{func(i train.StepInfo) error {
			if i.Step == 3 && g.Rank() == 1 {
				cancel()
			}
			return nil
		}}
		r, err := s.Run(ctx)
		if err == nil && (!r.Interrupted || r.Step != 3) {
			err = fmt.Errorf("%+v", r)
		}
		return err
	})
}

// A failure in one process is an error in all of them that says where it was.
func TestFailureOfOneProcess(t *testing.T) {
	for name, row := range map[string]struct {
		limit func(live int64) int64
		want  string
	}{
		"batch":  {func(live int64) int64 { return live + 16 }, "placing"},
		"step":   {func(live int64) int64 { return live + 500 }, "stage 1, micro-batch"},
		"update": {func(live int64) int64 { return live + 1700 }, "updating the parameters"},
	} {
		t.Run(name, func(t *testing.T) {
			check(t)
			for rank, err := range inProcesses(2, func(g *group.Group) error {
				s, closer := newRig(t, setup{balance: []int{4, 4}, optimizer: "adam",
					config: optim.Config{LR: 0.01}, group: g})
				defer closer()
				if g.Rank() == 1 {
					torch.CPU(1).SetLimit(row.limit(torch.CPU(1).Memory().Live))
					defer torch.CPU(1).SetLimit(0)
				}
				s.Steps = 3
				_, err := s.Run(context.Background())
				return err
			}) {
				if err == nil || !strings.Contains(err.Error(), row.want) ||
					!strings.Contains(err.Error(), "memory") ||
					rank == 0 && name != "batch" && !strings.Contains(err.Error(), "rank 1") {
					t.Errorf("rank %d: %v", rank, err)
				}
			}
		})
	}
}

func TestAgree(t *testing.T) {
	type facts = map[string]string
	same := facts{"--model": "mlp", "--seed": "8"}
	for _, row := range []struct {
		facts []facts
		want  string // "" is agreement
	}{
		{[]facts{same, same, same}, ""},
		{[]facts{same, same, {"--seed": "8", "--model": "gpt"}, {"--model": "gpt", "--seed": "9"}},
			"rank 2 has --model gpt, rank 0 has mlp; rank 3 has --seed 9, rank 0 has 8"},
		{[]facts{same, {"--model": "mlp"}}, "rank 1 has --seed none, rank 0 has 8"},
		{[]facts{{"--model": "mlp"}, same}, "rank 1 has --seed 8, rank 0 has none"},
	} {
		members := group.Local(len(row.facts))
		var all sync.WaitGroup
		for rank, g := range members {
			all.Go(func() {
				err := train.Agree(t.Context(), g, row.facts[rank])
				var e *train.DisagreementError
				if row.want == "" && err != nil || row.want != "" &&
					(!errors.As(err, &e) ||
						!strings.Contains(err.Error(), "the same training: "+row.want+"; start")) {
					t.Errorf("%v: rank %d: got  %v\nwant %s", row.facts, rank, err, row.want)
				}
			})
		}
		all.Wait()
		for _, g := range members {
			must.Do(t, g.Close())
		}
	}
}
