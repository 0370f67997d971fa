package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"penstock.example/data"
	"penstock.example/internal/draws"
	"penstock.example/nn"
	"penstock.example/planner"
	"penstock.example/planner/search"
	"penstock.example/schedule"
)

// Networks are planned without a limit, and under three from a little more than the least, and take two steps and updates by these plans: each device holds what its plan says, to the byte, and
// never more than the limit. Where values may wait on links, and before the first update makes the optimizer's state,
// it holds no more than the plan says.
func TestPlansOfNetworksRun(t *testing.T) {
	for _, tt := range []struct {
		model     string
		set       []string
		batch     int
		schedules []string
		optimizer string
	}{
		{"mlp", []string{"depth=6,width=128"}, 256, []string{"gpipe", "1f1b"}, "adam"},
		{"gpt", []string{"depth=2,width=32,context=16"}, 4, []string{"1f1b"}, "sgd"},
		{"resnet20", []string{"size=16,width=4"}, 8, []string{"gpipe"}, "sgd"},
		{"amoebanetd", []string{"L=3,D=16,size=32,classes=10"}, 8, []string{"1f1b"}, "sgd"},
		{"unet", []string{"B=1,C=4,size=32,depth=2,dropout=0"}, 4, []string{"gpipe"}, "sgd"},
		{"densenet121", []string{"growth=4,size=32,classes=10"}, 8, []string{"gpipe"}, "sgd"},
	} {
		t.Run(tt.model, func(t *testing.T) {
			want := 3
			if !draws.Full {
				want = 1
			}
			if tt.model != "mlp" && tt.model != "gpt" {
				full(t)
			}
			f := searchFlags{batch: tt.batch, chunks: 4, stages: 2, schedules: tt.schedules,
				of: measureFlags{modelFlags: modelFlags{modelName: tt.model, settings: tt.set}, optimizer: tt.optimizer, threads: 1, repeats: 1, seed: 1}}
			m := &modelSearch{measureFlags: f.of}
			var err error
			if m.measuredModel, err = newMeasuredModel(tt.model, tt.set); err != nil {
				t.Fatal(err)
			}
			job, err := f.measure(t.Context(), io.Discard, m, thisMachine(2), []int{1})
			if err != nil {
				t.Fatal(err)
			}
			most, _, ok := tryPlan(t, &job, 0)
			if !ok {
				t.Fatal("no plan without a limit")
			}
			job.wishes.Limit = 1
			nothing, err := search.Search(t.Context(), job.profile, job.machine, job.wishes)
			if err != nil || nothing.Short == nil {
				t.Fatalf("within one byte: %+v, %v", nothing, err)
			}
			least, again, limits := nothing.Short.Least(), 0, 0
			for _, share := range []float64{0.5, 0.85, 0.65, 0.35, 0.95} {
				limit := least + int64(share*float64(most-least))
				// The search goes by chains, which say less than a step takes. It may miss plans under low limits.
				if _, n, ok := tryPlan(t, &job, limit); ok {
					again, limits = again+n, limits+1
				}
				if limits >= want && again > 0 {
					break
				}
			}
			if limits < want {
				t.Errorf("plans under %d limits from %d to %d bytes, want %d", limits, least, most, want)
			}
			if again == 0 {
				t.Errorf("nothing is run again from %d to %d bytes", least, most)
			}
		})
	}
}

// tryPlan plans under a limit, takes two steps and updates, and returns the greatest peak and how many
// forwards are run again. It is not ok if no plan is found.
func tryPlan(t *testing.T, job *searchJob, limit int64) (most int64, again int, ok bool) {
	t.Helper()
	ctx := context.Background()
	job.wishes.Limit, job.model.limit = limit, limit
	found, err := job.search(ctx, io.Discard)
	var refused *usageError
	var short *planner.MemoryError
	if errors.As(err, &refused) || errors.As(err, &short) {
		return 0, 0, false
	}
	if err != nil {
		t.Fatalf("within %d bytes: %v", limit, err)
	}
	o, err := job.model.open(found.Best)
	if err != nil {
		t.Fatal(err)
	}
	defer o.close()
	if err := o.pipe.Place(); err != nil {
		t.Fatal(err)
	}
	o.freeBatch()
	for step := range 2 {
		if err := o.makeBatch(job.model); err != nil {
			t.Fatal(err)
		}
		o.batch.Step = int64(step)
		for _, d := range o.pipe.Devices() {
			d.ResetPeak()
		}
		if _, err := o.pipe.Step(ctx, o.batch, trainingLoss(data.Classification)); err != nil {
			t.Fatalf("within %d bytes, step %d: %v", limit, step, err)
		}
		plan := o.pipe.Plan()
		again = 0
		for _, s := range plan.Stages {
			again += s.Recomputed()
		}
		exact := plan.Program.Capacity == schedule.Meet && step > 0
		for i, d := range o.pipe.Devices() {
			held, says := d.Memory().Peak, plan.Devices[i].Peak
			if limit > 0 && max(held, says) > limit || held > says || exact && held != says {
				t.Errorf("within %d bytes, step %d: device %d held %d bytes, and the plan says %d", limit, step, i, held, says)
			}
			most = max(most, says)
		}
		o.freeBatch()
		if err := o.pipe.Update(ctx, o.optimizer); err != nil {
			t.Fatal(err)
		}
		nn.ZeroGrads(o.model)
	}
	return most, again, true
}

// What a model's steps take beyond its chains counts in what is said of a limit that is too low: no limit is
// recommended that is not above the one that was given.
func TestLimitThatMayDo(t *testing.T) {
	const limit = 918_809 // that chains keep, and steps do not
	r := command(t, "plan", "--model", "mlp", "--set", "depth=6,width=64", "--batch", "16", "--chunks", "4", "--devices", "2", "--optimizer", "adam",
		"--schedule", "gpipe", "--repeats", "1", "--memory-limit", fmt.Sprint(limit))
	_, said, _ := strings.Cut(r.stderr, "a limit of at least ")
	var least int64
	if _, err := fmt.Sscan(said, &least); err != nil || r.code != exitUsage || least <= limit || !strings.Contains(r.stderr, fmt.Sprintf("may have %d bytes", limit)) {
		t.Errorf("within %d bytes: %+v", limit, r)
	}
}
