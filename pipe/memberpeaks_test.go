package pipe_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"penstock.example/group"
	"penstock.example/internal/draws"
	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// TestPredictedPeaksOfProcesses: the account of every device sees what was planned, to the byte, in any
// number of processes: what a device holds does not depend on where processes begin and end. Each device
// is measured in a step of its own, in which all others are as late as the program lets them.
func TestPredictedPeaksOfProcesses(t *testing.T) {
	torchtest.Check(t)
	draws.Checks(t, 15, 100)
	rapid.Check(t, func(t *rapid.T) {
		d := drawRun(t, 1)
		cfg := d.config()
		q := d.problem()
		if q.steps, d.Short = 1, d.Rows; cfg.Budget == nil {
			cfg.Checkpoint = pipe.Never
			q.randomBudgets(t, &cfg)
		}
		if cfg.Budget == nil {
			return
		}
		processes := rapid.IntRange(1, d.devices()).Draw(t, "processes")
		if wrong := q.predictedApart(t, cfg, processes); wrong != "" {
			t.Fatal(wrong)
		}
	})
}

// predictedApart is predicted of a pipe whose stages are in several processes.
func (q problem) predictedApart(t test, cfg pipe.Config, processes int) (wrong string) {
	t.Helper()
	var mu sync.Mutex
	holds := map[int]func(worker, action int){} // by device; all processes have the same
	texts, errs := each(processes, func(g *group.Group) (wrong string, err error) {
		err = q.on(g, cfg, func(m process) error {
			plan, err := m.PlanFor(context.Background(), m.batch(0), q.loss)
			if err != nil {
				return err
			}
			for at, d := range m.Devices() {
				here := slices.ContainsFunc(m.Stages(), func(s *pipe.Stage) bool { return s.Here && s.Device == d })
				mu.Lock()
				if holds[at] == nil {
					holds[at] = late(plan.Program.Graph(), at)
				}
				m.Hold(holds[at])
				mu.Unlock()
				if here {
					d.ResetPeak()
				}
				if err := m.train(context.Background(), 0); err != nil {
					return err
				}
				m.Hold(nil)
				if peak, planned := d.Memory().Peak, plan.Devices[at].Peak; here && planned > 0 && (peak > planned || planned > peak+bound(plan, at)) {
					wrong += fmt.Sprintf("%v in process %d of %d: %d bytes, planned %d (%+d)\n", d, g.Rank(), processes, peak, planned, planned-peak)
				}
			}
			if wrong != "" {
				wrong += fmt.Sprint(plan)
			}
			return nil
		})
		return wrong, err
	})
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	for _, text := range texts {
		wrong += text
	}
	return wrong
}

// A worker receives from another process no earlier than the program says, although it need not see the
// send there: first a neighbour in its own process has taken what it was sent. In this program the worker
// of stages 0 and 3 holds the outputs of stage 0 until then:
//
//	worker 0   0F0 0F1 0F2   2>3F0 3F0 ...      2>3F0 needs 2F0>3, which needs 0>1F0
//	worker 1         0>1F0 1F0 1F0>2 ...        late
//	worker 2, in another process    1>2F0 ...
func TestMemoryOfNeighboursInOneProcess(t *testing.T) {
	torchtest.Check(t)
	q := problem{model: func() *nn.Sequential {
		return nn.NewSequential(nn.NewTanh(), nn.NewLinear(64, 2), nn.NewLinear(2, 2), nn.NewLinear(2, 3))
	}, loss: nn.CrossEntropy(), input: normal(24, 64), target: classes(24, 3)}
	run := func(budget int64) int64 {
		peaks, errs := each(2, func(g *group.Group) (peak int64, err error) {
			cfg := pipe.Config{Balance: []int{1, 1, 1, 1}, Chunks: 3, Ranks: []int{0, 0, 1, 0},
				Devices:    []torch.Device{torch.CPU(0), torch.CPU(1), torch.CPU(2), torch.CPU(0)},
				Checkpoint: pipe.PerStage(pipe.Optimal, pipe.Never, pipe.Never, pipe.Optimal), Budget: []int64{budget, 0, 0, budget}}
			err = q.on(g, cfg, func(m process) error {
				for step := range 3 { // sizes are known before they come from the second step on
					if err := m.train(context.Background(), step); err != nil {
						return err
					}
					slow := m.Plan().Program.Graph().First[1]
					m.Hold(func(_, action int) {
						if action == slow {
							time.Sleep(50 * time.Millisecond)
						}
					})
				}
				peak = m.Plan().Devices[0].Peak
				return nil
			})
			return peak, err
		})
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		return peaks[0]
	}
	need := run(1 << 30)
	if again := run(need); again != need {
		t.Errorf("a budget of %d has a plan of %d bytes", need, again)
	}
}
