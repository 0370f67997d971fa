package train_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"penstock.example/group"
	"penstock.example/internal/must"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/pipe"
	"penstock.example/train"
)

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
func process(t *testing.T, g *group.Group, dir string, balance []int, ranks []int, from, to int64) (sum string, err error) {
	store := train.Store{Dir: dir, Group: g}
	if err := store.Prepare(); err != nil {
		return "", err
	}
	release, err := store.Lock()
	if err != nil {
		return "", err
	}
	defer release()
	o, err := optim.New("adam", optim.Config{LR: 0.01})
	if err != nil {
		return "", err
	}
	defer o.Close()
	model := tied()
	defer nn.Free(model)
	p, err := pipe.New(model, pipe.Config{Balance: balance, Chunks: 3, Seed: 7, Group: g, Ranks: ranks})
	if err != nil {
		return "", err
	}
	defer p.Close()
	loop := train.Loop{Pipe: p, Optimizer: o, Loss: nn.CrossEntropy(), Steps: to, ClipNorm: 1}
	var at train.Progress
	saved, err := store.Latest()
	switch {
	case errors.Is(err, train.ErrNoCheckpoint) && from == 0:
	case err != nil:
		return "", err
	default:
		if err := saved.Check(recipe(), model); err != nil {
			return "", err
		}
		if err := saved.Restore(p, o); err != nil {
			return "", err
		}
		at = saved.Progress
	}
	if at.Step != from {
		return "", fmt.Errorf("it goes on from step %d, want %d", at.Step, from)
	}
	loop.Loader, loop.Step = loader(t, at.Position), at.Step
	if _, err := loop.Run(t.Context()); err != nil {
		return "", err
	}
	if _, err := store.Save(loop.Progress(), recipe(), model, o); err != nil {
		return "", err
	}
	return train.ParamsSHA256In(g, model)
}

// TestResumeAtAnotherNumberOfProcesses: a run that is saved and resumed by other numbers of
// processes, with other cuts, has the bits of one process.
func TestResumeAtAnotherNumberOfProcesses(t *testing.T) {
	check(t)
	want := must.Get(process(t, nil, t.TempDir(), nil, nil, 0, 9))(t)
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
		for rank, err := range inProcesses(len(sums), func(g *group.Group) (err error) {
			sums[g.Rank()], err = process(t, g, dir, r.balance, r.ranks, from, r.to)
			return err
		}) {
			if err != nil || sums[rank] != sums[0] {
				t.Fatalf("to step %d, rank %d: hash %s, rank 0 has %s; %v", r.to, rank, sums[rank], sums[0], err)
			}
		}
		from, last = r.to, sums[0]
	}
	if last != want {
		t.Errorf("hash %s, want %s", last, want)
	}
}
