package train_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"penstock.example/group"
	"penstock.example/optim"
	"penstock.example/torch"
	"penstock.example/train"
)

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

// A training run, its losses, norms, accuracy and weights, is the same in any number of
// processes, and each of them knows all of it but the weights.
func TestProcessesTrainTheSame(t *testing.T) {
	check(t)
	_, testing := dataset(t)
	var want string
	for _, n := range []int{1, 2, 3} {
		said := make([]string, n)
		for rank, err := range inProcesses(n, func(g *group.Group) error {
			s, closer := newRig(t, setup{balance: []int{2, 3, 3}, optimizer: "adam", config: optim.Config{LR: 0.01}, group: g})
			defer closer()
			s.Steps, s.ClipNorm = 6, 0.3
			var b strings.Builder
			s.OnStep = []train.Hook{func(i train.StepInfo) error {
				_, err := fmt.Fprintln(&b, i.Step, i.Epoch, i.Loss, i.GradNorm)
				return err
			}}
			if _, err := s.Run(context.Background()); err != nil {
				return err
			}
			e, err := train.Evaluate(context.Background(), s.Pipe, testing, train.EvaluateConfig{Batch: 7})
			if err != nil {
				return err
			}
			hash, err := train.ParamsSHA256In(g, s.model)
			fmt.Fprintln(&b, *e.Accuracy, hash)
			said[g.Rank()] = b.String()
			return err
		}) {
			if err != nil {
				t.Fatalf("rank %d of %d: %v", rank, n, err)
			}
		}
		for rank, got := range said {
			if want == "" {
				want = got
			}
			if got != want {
				t.Errorf("rank %d of %d saw\n%swant\n%s", rank, n, got, want)
			}
		}
	}
}

// When the context of one process ends, all end after the same step.
func TestInterruptOfOneProcess(t *testing.T) {
	check(t)
	for _, err := range inProcesses(3, func(g *group.Group) error {
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
			err = fmt.Errorf("rank %d: %+v", g.Rank(), r)
		}
		return err
	}) {
		if err != nil {
			t.Error(err)
		}
	}
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
				s, closer := newRig(t, setup{balance: []int{4, 4}, optimizer: "adam", config: optim.Config{LR: 0.01}, group: g})
				defer closer()
				if g.Rank() == 1 {
					torch.CPU(1).SetLimit(row.limit(torch.CPU(1).Memory().Live))
					defer torch.CPU(1).SetLimit(0)
				}
				s.Steps = 3
				_, err := s.Run(context.Background())
				return err
			}) {
				if err == nil || !strings.Contains(err.Error(), row.want) || !strings.Contains(err.Error(), "memory") ||
					rank == 0 && name != "batch" && !strings.Contains(err.Error(), "rank 1") {
					t.Errorf("rank %d: %v", rank, err)
				}
			}
		})
	}
}
