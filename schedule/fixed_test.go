package schedule_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"penstock.example/internal/must"
	"penstock.example/schedule"
)

// A given program is what its generator made, or its computations are in the same order, with the
// recomputations and transfers that the config asks for.
func TestFixed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		stages, microBatches := rapid.IntRange(1, 5).Draw(t, "stages"),
			rapid.IntRange(1, 6).Draw(t, "micro-batches")
		draw := func(m int) schedule.Config {
			c := schedule.Config{Stages: stages, MicroBatches: m,
				Capacity: rapid.IntRange(schedule.Meet, 2).Draw(t, "capacity")}
			again := rapid.SliceOfN(rapid.Bool(), stages*m, stages*m).Draw(t, "recomputed")
			c.Recompute = func(s, i int) bool { return again[s*m+i] }
			for range rapid.IntRange(0, 2).Draw(t, "skips") {
				from := rapid.IntRange(0, stages-1).Draw(t, "from")
				if from < stages-1 {
					c.Skips = append(c.Skips,
						schedule.Edge{From: from, To: rapid.IntRange(from+1, stages-1).Draw(t, "to")})
				}
			}
			return c
		}
		made := draw(microBatches)
		p := must.Get(rapid.SampledFrom([]schedule.Generator{schedule.GPipe, schedule.OneFOneB}).Draw(t,
			"generator")(made))(t)
		fixed := schedule.Fixed(p)
		if again, err := fixed(made); err != nil || again.String() != p.String() {
			t.Fatalf("the program of the same config is\n%v%v, want\n%v", again, err, p)
		}
		asked := draw(rapid.IntRange(1, microBatches).Draw(t, "fewer"))
		got := must.Get(fixed(asked))(t)
		must.Do(t, schedule.Check(got))
		for w := range got.Workers {
			want := ordered(p.Fewer(asked.MicroBatches).Workers[w])
			if have := ordered(got.Workers[w]); !slices.Equal(have, want) {
				t.Fatalf("worker %d does %v, want %v", w, have, want)
			}
		}
		for s := range stages {
			for i := range asked.MicroBatches {
				_, has := got.Graph().IndexOf(schedule.Action{Kind: schedule.Recompute, Stage: s,
					MicroBatch: i})
				if want := asked.Recompute(s, i); has != want {
					t.Fatalf("stage %d recomputes micro-batch %d: %v, want %v", s, i, has, want)
				}
			}
		}
	})
}

// ordered are the forwards and backwards of a list.
func ordered(actions []schedule.Action) []schedule.Action {
	return slices.DeleteFunc(slices.Clone(actions), func(a schedule.Action) bool {
		return a.Kind.Transfer() || a.Kind == schedule.Recompute
	})
}

// Workers of a given program are matched by their stages, not by their numbers.
func TestFixedWorkers(t *testing.T) {
	p := must.Get(schedule.GPipe(schedule.Config{Stages: 3, MicroBatches: 1, Worker: []int{1, 0, 1}}))(t)
	got := must.Get(schedule.Fixed(p)(schedule.Config{Stages: 3, MicroBatches: 1, Worker: []int{0, 1, 0}}))(t)
	if fmt.Sprint(got.Workers) != fmt.Sprint([][]schedule.Action{p.Workers[1], p.Workers[0]}) {
		t.Errorf("got\n%v", got)
	}
}

func TestFixedRefuses(t *testing.T) {
	program := func(worker ...int) *schedule.Program {
		return must.Get(schedule.GPipe(schedule.Config{Stages: 3, MicroBatches: 4, Worker: worker}))(t)
	}
	broken := program()
	broken.Workers[1] = broken.Workers[1][1:]
	for _, tt := range []struct {
		program *schedule.Program
		config  schedule.Config
		want    string
	}{
		{program(), schedule.Config{Stages: 2, MicroBatches: 4},
			"it is whole, for 3 stages and 4 micro-batches; want a whole one for 2 and 4 or more"},
		{program(), schedule.Config{Stages: 3, MicroBatches: 5}, "want a whole one for 3 and 5 or more"},
		{program(), schedule.Config{Stages: 3, MicroBatches: 4, Worker: []int{0, 1, 0}},
			"its stages are on the workers [0 1 2], and [0 1 0] are asked for"},
		{program(0, 1, 0), schedule.Config{Stages: 3, MicroBatches: 4},
			"its stages are on the workers [0 1 0], and [0 1 2] are asked for"},
		{program().Part(schedule.ForwardOnly), schedule.Config{Stages: 3, MicroBatches: 4},
			"it is forward-only"},
		{broken, schedule.Config{Stages: 3, MicroBatches: 4}, "missing: 0>1F0 is on no worker"},
	} {
		_, err := schedule.Fixed(tt.program)(tt.config)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("got %v, want %q", err, tt.want)
		}
	}
}
