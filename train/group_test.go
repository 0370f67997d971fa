package train_test

import (
	"bytes"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"penstock.example/group"
	"penstock.example/internal/must"
	"penstock.example/nn"
	"penstock.example/optim"
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
	var saved []optim.SavedTensor
	steps := map[string]int64{}
	for _, p := range m.places()[0].Params {
		if steps[p.Name] = int64(seed); strings.HasSuffix(p.Name, "bias") {
			steps[p.Name] = 0 // which has no state
			continue
		}
		for _, slot := range []string{"exp_avg", "exp_avg_sq"} {
			name := slot + "." + p.Name
			saved = append(saved, optim.SavedTensor{Name: name, DType: p.DType(), Shape: p.Shape(),
				Read: func() ([]byte, error) { return noise(name, seed, p.Bytes()), nil }})
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
		return errors.Join(m.loadState(seed), m.store().Prepare(), m.save(step))
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
			if n > 0 && (state[name] == nil || !bytes.Equal(torch.Bytes(state[name]), noise(name, seed, p.Bytes()))) {
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

// TestCheckpointsFitAnyGroup: whoever saved, with whatever cut, any other group restores the same bits.
func TestCheckpointsFitAnyGroup(t *testing.T) {
	check(t)
	temp := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		dir := must.Get(os.MkdirTemp(temp, ""))(t)
		n, m := rapid.IntRange(1, 4).Draw(t, "savers"), rapid.IntRange(1, 4).Draw(t, "restorers")
		const seed = 3
		onAll(t, newMembers(t, dir, n, seed, drawOwners(t, "savers' parameters", n)), func(_ int, m member) error {
			return errors.Join(m.loadState(seed), m.store().Prepare(), m.save(7))
		})
		onAll(t, newMembers(t, dir, m, seed+1, drawOwners(t, "restorers' parameters", m)), func(_ int, m member) error {
			step, err := m.restore()
			if err == nil && step != 7 {
				err = fmt.Errorf("step %d", step)
			}
			return errors.Join(err, m.same(seed))
		})
	})
}

// TestHashInAGroup: the members of a group find the hash of the whole model, however it is spread.
func TestHashInAGroup(t *testing.T) {
	check(t)
	whole := newMembers(t, "", 1, 3, func(int, int) bool { return true })[0]
	defer whole.free()
	want := train.ParamsSHA256(whole.model)
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 4).Draw(t, "members")
		all := newMembers(t, "", n, 3, drawOwners(t, "parameters", n))
		onAll(t, all, func(_ int, m member) error {
			got, err := train.ParamsSHA256In(m.group, m.model)
			if err == nil && got != want {
				err = fmt.Errorf("hash %s, want %s", got, want)
			}
			return err
		})
	})
	// A parameter that is nowhere is an error on every member, and so is another model.
	for what, all := range map[string][]member{
		"exists in no process": newMembers(t, "", 2, 3, func(rank, param int) bool { return param == rank }),
		"want the same model": func() []member {
			all := newMembers(t, "", 2, 3, func(rank, param int) bool { return true })
			all[1].model.Add("more", nn.NewLinear(1, 1))
			return all
		}(),
	} {
		for rank, err := range each(all, func(_ int, m member) error {
			defer m.free()
			_, err := train.ParamsSHA256In(m.group, m.model)
			return err
		}) {
			if err == nil || !strings.Contains(err.Error(), what) {
				t.Errorf("rank %d: %v; want %q", rank, err, what)
			}
		}
	}
}
