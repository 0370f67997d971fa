package schedule_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"penstock.example/internal/must"
	"penstock.example/schedule"
)

// The golden files are programs with their grid at unit times as a comment.
func TestGPipeGolden(t *testing.T) {
	tests := []struct {
		file   string
		config schedule.Config
	}{
		{"1x1.txt", schedule.Config{Stages: 1, MicroBatches: 1}},
		{"1x3.txt", schedule.Config{Stages: 1, MicroBatches: 3}},
		{"3x1.txt", schedule.Config{Stages: 3, MicroBatches: 1}},
		{"4x2.txt", schedule.Config{Stages: 4, MicroBatches: 2}},
		{"4x3_always.txt", schedule.Config{Stages: 4, MicroBatches: 3, Recompute: always}},
		{"8x4_except_last.txt", schedule.Config{Stages: 8, MicroBatches: 4, Recompute: exceptLast}},
		{"3x2_forward_only.txt", schedule.Config{Stages: 3, MicroBatches: 2}},
		{"3x2_backward_only_except_last.txt",
			schedule.Config{Stages: 3, MicroBatches: 2, Recompute: exceptLast}},
		{"4x3_always_one_worker.txt", schedule.Config{Stages: 4, MicroBatches: 3, Recompute: always,
			Worker: []int{0, 0, 0, 0}}},
		{"4x3_two_workers_halves.txt", schedule.Config{Stages: 4, MicroBatches: 3,
			Worker: []int{0, 0, 1, 1}}},
		{"4x3_always_two_workers_in_turn.txt",
			schedule.Config{Stages: 4, MicroBatches: 3, Recompute: always, Worker: []int{0, 1, 0, 1}}},
		{"4x2_skips.txt", schedule.Config{Stages: 4, MicroBatches: 2,
			Skips: []schedule.Edge{{From: 1, To: 3}, {From: 0, To: 2}, {From: 0, To: 3}}}},
		{"4x3_except_last_meet.txt", schedule.Config{Stages: 4, MicroBatches: 3, Recompute: exceptLast,
			Capacity: schedule.Meet}},
		{"4x3_capacity_1_skips.txt", schedule.Config{Stages: 4, MicroBatches: 3, Capacity: 1,
			Skips: []schedule.Edge{{From: 0, To: 3}}}},
		{"4x3_except_last_skips_two_workers.txt", schedule.Config{
			Stages: 4, MicroBatches: 3, Recompute: exceptLast, Worker: []int{0, 1, 0, 1},
			Skips: []schedule.Edge{{From: 0, To: 3}, {From: 0, To: 2}},
		}},
	}
	for _, tt := range tests {
		t.Run(tt.file, func(t *testing.T) {
			p := gpipe(t, tt.config)
			for _, phase := range []schedule.Phase{schedule.ForwardOnly, schedule.BackwardOnly} {
				if strings.Contains(tt.file, strings.ReplaceAll(phase.String(), "-", "_")) {
					p = p.Part(phase)
				}
			}
			grid := simulate(t, p, schedule.Unit).Grid()
			text := p.String() + "\n# " + strings.ReplaceAll(strings.TrimSpace(grid), "\n", "\n# ") + "\n"
			must.Match(t, tt.file, text)
			if diff := cmp.Diff(p, parse(t, text)); diff != "" {
				t.Errorf("the golden text is another program (-want +got):\n%s", diff)
			}
		})
	}
}

// Recomputation ahead of the gradient is not ahead of the backward before: one graph at a time,
// whatever the placement.
func TestGPipeHoldsOneGraphPerStage(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		config := drawConfig(t)
		config.Recompute = always
		p := gpipe(t, config)
		for s := range config.Stages {
			alone := *p
			alone.Workers = [][]schedule.Action{nil}
			for _, a := range slices.Concat(p.Workers...) {
				if a.Stage == s {
					alone.Workers[0] = append(alone.Workers[0], a)
				}
			}
			if most := schedule.InFlight(&alone)[0]; most != 1 {
				t.Fatalf("stage %d holds %d graphs, want 1", s, most)
			}
		}
	})
}

func ExampleGPipe() {
	p, err := schedule.GPipe(schedule.Config{
		Stages:       3,
		MicroBatches: 2,
		Recompute:    func(stage, microBatch int) bool { return microBatch > 0 },
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Print(p)
	// Output:
	// program whole stages=3 micro-batches=2
	// worker 0: 0F0 0F0>1 0F1 0F1>1 1>0B0 0B0 0R1 1>0B1 0B1
	// worker 1: 0>1F0 1F0 1F0>2 0>1F1 1F1 1F1>2 2>1B0 1B0 1B0>0 1R1 2>1B1 1B1 1B1>0
	// worker 2: 1>2F0 2F0 1>2F1 2F1 2B0 2B0>1 2R1 2B1 2B1>1
}

// Every pair of stages that is declared or neighbouring has a send and a receive each way for every
// micro-batch, no other has any, and what a computation needs of other stages is what it receives
// along its edges.
func TestGPipeTransfersAlongEdges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		config := drawConfig(t)
		p := drawPart(t, gpipe(t, config))
		g := p.Graph()
		for from := range p.Stages {
			for to := from + 1; to < p.Stages; to++ {
				edge := to == from+1 || slices.Contains(config.Skips, schedule.Edge{From: from, To: to})
				for i := range p.MicroBatches {
					for _, way := range []struct {
						part                  schedule.Phase
						receive, source, user schedule.Action
					}{
						{schedule.ForwardOnly,
							schedule.Action{Kind: schedule.ReceiveActivation, Stage: to, MicroBatch: i,
								Peer: from},
							schedule.Action{Kind: schedule.Forward, Stage: from, MicroBatch: i},
							schedule.Action{Kind: schedule.Forward, Stage: to, MicroBatch: i}},
						{schedule.BackwardOnly,
							schedule.Action{Kind: schedule.ReceiveGradient, Stage: from, MicroBatch: i,
								Peer: to},
							schedule.Action{Kind: schedule.Backward, Stage: to, MicroBatch: i},
							schedule.Action{Kind: schedule.Backward, Stage: from, MicroBatch: i}},
					} {
						want := edge && (p.Phase == schedule.Whole || p.Phase == way.part)
						id, got := g.IndexOf(way.receive)
						sent, sends := g.IndexOf(way.receive.Matching())
						if got != want || sends != want {
							t.Fatalf("%v is there: %v, its send: %v, want %v\n%v", way.receive, got, sends,
								want, p)
						}
						if !got {
							continue
						}
						if !slices.Contains(g.Deps[id], sent) {
							t.Fatalf("%v does not need its send, only %s", way.receive, texts(g, g.Deps[id]))
						}
						if source, _ := g.IndexOf(way.source); !slices.Contains(g.Deps[sent], source) {
							t.Fatalf("%v does not need %v, only %s", g.Actions[sent], way.source,
								texts(g, g.Deps[sent]))
						}
						user, _ := g.IndexOf(way.user)
						if !slices.Contains(g.Deps[user], id) {
							t.Fatalf("%v does not need %v", way.user, way.receive)
						}
					}
				}
			}
		}
	})
}
