//go:build linux

package main

import (
	"math"
	"os"
	"testing"
	"time"

	"penstock.example/internal/nettest"
	"penstock.example/pipe"
	"penstock.example/schedule"
)

// A step of two processes over a slow network takes as long as the simulator says of the program, with
// what the stages' actions took in that step, and the delay and the rate of the network. It wants a
// machine with nothing else to do.
func TestSimulatedNetwork(t *testing.T) {
	if os.Getenv("BENCH_NETWORK") == "" {
		t.Skip("it measures times: set BENCH_NETWORK to run it on a machine with nothing else to do")
	}
	const within = 0.05
	for _, net := range []nettest.Link{{Delay: time.Millisecond, Rate: 1e9 / 8}, {Delay: 5 * time.Millisecond, Rate: 100e6 / 8}} {
		w := nettest.New(t, 2, net)
		if !w.Carries() {
			t.Skip("there is no delay and no rate to predict")
		}
		c, err := startMembersOn(t.Context(), "machines", []host{{w.Address(0), w.On(0)}, {w.Address(1), w.On(1)}})
		if err != nil {
			t.Fatal(err)
		}
		defer c.stop()
		for _, p := range pairings() {
			if p.Model != mlp || p.Schedule == "interleaved" { // whose first stage ends the step
				continue
			}
			program, bytes := p.moves(t)
			links := schedule.Uniform(schedule.Rendezvous, net.Delay, net.Rate*nettest.Payload, func(schedule.Action) int64 { return bytes })
			x := p.exercise
			x.Steps, x.Record = 12, true
			var out trained
			for range 2 { // TCP has found its pace
				out = trained{}
				if err := c.ask(x, &out); err != nil {
					t.Fatal(err)
				}
			}
			var measured, simulated, ratios []float64
			for _, step := range out.Steps {
				predicted, err := links.Simulate(program, func(a schedule.Action) time.Duration {
					if a.Kind.Transfer() {
						return 0
					}
					return step.Actions[a.String()]
				})
				if err != nil {
					t.Fatal(err)
				}
				measured, simulated = append(measured, milliseconds(step.Makespan)), append(simulated, milliseconds(predicted.Makespan()))
				ratios = append(ratios, float64(step.Makespan)/float64(predicted.Makespan()))
			}
			off := median(ratios) - 1
			t.Logf("%s, %v, %.0f Mbit/s: measured %.1f ms, simulated %.1f ms; the median of %d steps takes %+.1f %%",
				p.Schedule, net.Delay, net.Rate*8/1e6, median(measured), median(simulated), len(ratios), 100*off)
			if math.Abs(off) > within {
				t.Errorf("the step takes %+.1f %% of what was simulated; want at most %.0f %% more or less", 100*off, 100*within)
			}
		}
	}
}

// moves is the program of a pairing, and the bytes of each value that is sent.
func (p pairing) moves(t *testing.T) (*schedule.Program, int64) {
	t.Helper()
	s, err := schedule.Named(p.Schedule)
	if err != nil {
		t.Fatal(err)
	}
	one, err := p.workload().unstarted(pipe.Config{Balance: p.Balance, Schedule: s.Generate}, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer one.close()
	program, err := one.pipe.Program(p.Chunks)
	if err != nil {
		t.Fatal(err)
	}
	const width = 1024
	return program, p.Batch / int64(p.Chunks) * width * 4
}
