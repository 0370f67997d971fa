package schedule_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"penstock.example/schedule"
)

func TestMemory(t *testing.T) {
	tests := []struct {
		name, text string
		want       []schedule.StageMemory
	}{
		{"GPipe keeps all", "program whole stages=1 micro-batches=3\nworker 0: 0F0 0F1 0F2 0B0 0B1 0B2\n",
			[]schedule.StageMemory{{Saved: 3, Whole: 3}}},
		{"always", "program whole stages=1 micro-batches=3\nworker 0: 0F0 0F1 0F2 0R0 0B0 0R1 0B1 0R2 0B2\n",
			[]schedule.StageMemory{{Saved: 1, Whole: 1, Inputs: 3}}},
		{"except last: 0B0 frees its graph before 0R1 makes one", "program whole stages=1 micro-batches=3\nworker 0: 0F0 0F1 0F2 0B0 0R1 0B1 0R2 0B2\n",
			[]schedule.StageMemory{{Saved: 1, Whole: 1, Inputs: 2}}},
		{"recomputed far ahead", "program whole stages=1 micro-batches=3\nworker 0: 0F0 0F1 0F2 0R0 0R1 0R2 0B0 0B1 0B2\n",
			[]schedule.StageMemory{{Saved: 3, Whole: 3, Inputs: 3}}},
		{"one forward one backward", "program whole stages=2 micro-batches=3\n" +
			"worker 0: 0F0 0F0>1 0F1 0F1>1 1>0B0 0B0 0F2 0F2>1 1>0B1 0B1 1>0B2 0B2\n" +
			"worker 1: 0>1F0 1F0 1B0 1B0>0 0>1F1 1F1 1B1 1B1>0 0>1F2 1F2 1B2 1B2>0\n",
			[]schedule.StageMemory{{Saved: 2, Whole: 2}, {Saved: 1, Whole: 1}}},
		{"what arrived is not held yet", "program forward-only stages=2 micro-batches=2\nworker 0: 0F0 0F0>1 0F1 0F1>1 0>1F0 0>1F1 1F0 1F1\n",
			[]schedule.StageMemory{{Saved: 2, Whole: 2}, {Saved: 2, Whole: 2}}},
		{"what came along a skip is part of the input, and of the graph", "program whole stages=3 micro-batches=1 skips=0>2\n" +
			"worker 0: 0F0 0F0>1 0F0>2 0>1F0 1F0 1F0>2 0>2F0 1>2F0 2F0 2R0 2B0 2B0>1 2B0>0 2>1B0 1B0 1B0>0 2>0B0 1>0B0 0B0\n",
			[]schedule.StageMemory{{Saved: 1, Whole: 1}, {Saved: 1, Whole: 1}, {Saved: 1, Whole: 1, Inputs: 1}}},
		{"copies run ahead", "program forward-only stages=2 micro-batches=2\nworker 0: 0F0 0F0>1 0F1 0F1>1\nworker 1: 1F0 1F1\nworker 2:\nworker 3: 0>1F0 0>1F1\n",
			[]schedule.StageMemory{{Saved: 2, Whole: 2}, {Saved: 2, Whole: 2}}},
		{"backward begins with all held", "program backward-only stages=1 micro-batches=3\nworker 0: 0B0 0R1 0B1 0R2 0B2\n",
			[]schedule.StageMemory{{Saved: 1, Whole: 1, Inputs: 2}}},
		{"parts: a graph is whole until the first has ended, and held until the second has",
			"program whole stages=1 micro-batches=3\nworker 0: 0F0 0I0 0F1 0I1 0F2 0I2 0W0 0W1 0W2\n",
			[]schedule.StageMemory{{Saved: 3, Whole: 1}}},
		{"three places for four micro-batches in two parts",
			"program whole stages=1 micro-batches=4\nworker 0: 0F0 0F1 0I0 0F2 0W0 0F3 0I1 0W1 0I2 0W2 0I3 0W3\n",
			[]schedule.StageMemory{{Saved: 3, Whole: 3}}},
		{"parts of what is recomputed", "program whole stages=1 micro-batches=2\nworker 0: 0F0 0F1 0R0 0I0 0R1 0I1 0W0 0W1\n",
			[]schedule.StageMemory{{Saved: 2, Whole: 1, Inputs: 2}}},
		{"what does not belong is ignored", "program whole stages=1 micro-batches=1\nworker 0: 0F0 0B0 0F1 5F0 5R0\n",
			[]schedule.StageMemory{{Saved: 1, Whole: 1}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, schedule.Memory(parse(t, tt.text))); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// Each micro-batch of a stage is held in one way at a time, and GPipe holds all of them between
// forward and backward.
func TestMemoryOfGPipe(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		config := drawConfig(t)
		p := gpipe(t, config).Part(rapid.SampledFrom([]schedule.Phase{schedule.Whole, schedule.BackwardOnly}).Draw(t, "half"))
		for s, got := range schedule.Memory(p) {
			recomputed := 0
			for i := range config.MicroBatches {
				if config.Recompute(s, i) {
					recomputed++
				}
			}
			kept := config.MicroBatches - recomputed
			if got.Inputs != recomputed || got.Whole != got.Saved || got.Saved < max(kept, 1) || got.Saved > min(kept+1, config.MicroBatches) {
				t.Fatalf("stage %d holds %+v, of which %d are recomputed and %d kept", s, got, recomputed, kept)
			}
		}
	})
}

// The stages of a worker are not all at their most at the same time.
func TestWorkerMemory(t *testing.T) {
	p := parse(t, "program whole stages=2 micro-batches=2\nworker 0: 0F0 0F0>1 0>1F0 1F0 1B0 1B0>0 0F1 0F1>1 1>0B0 0B0 0>1F1 1F1 1B1 1B1>0 1>0B1 0B1\nworker 1:\n")
	want := []schedule.StageMemory{{Saved: 2, Whole: 2}, {}}
	if diff := cmp.Diff(want, schedule.WorkerMemory(p)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func ExampleMemory() {
	always := func(stage, microBatch int) bool { return true }
	for _, recompute := range []func(int, int) bool{nil, always} {
		p, err := schedule.GPipe(schedule.Config{Stages: 2, MicroBatches: 8, Recompute: recompute})
		if err != nil {
			fmt.Println(err)
			return
		}
		for s, holds := range schedule.Memory(p) {
			fmt.Printf("stage %d holds up to %d graphs and %d inputs\n", s, holds.Saved, holds.Inputs)
		}
	}
	// Output:
	// stage 0 holds up to 8 graphs and 0 inputs
	// stage 1 holds up to 8 graphs and 0 inputs
	// stage 0 holds up to 1 graphs and 8 inputs
	// stage 1 holds up to 1 graphs and 8 inputs
}
