package main

import (
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"

	"penstock.example/planner/search"
	"penstock.example/remat"
)

// A size is not left out under the least limit that one of its plans keeps, and is under a part of it.
func TestSizesThatMayFitAreMeasured(t *testing.T) {
	full(t)
	for _, tt := range []struct {
		model string
		set   []string
	}{
		{"mlp", []string{"depth=8,width=16"}},
		{"resnet20", []string{"size=16,width=4"}},
		{"unet", []string{"B=1,C=4,size=32,depth=2,dropout=0"}},
	} {
		t.Run(tt.model, func(t *testing.T) {
			f := searchFlags{batch: 16, stages: 4,
				of: measureFlags{modelFlags: modelFlags{modelName: tt.model, settings: tt.set}, optimizer: "sgd", threads: 1, repeats: 1, seed: 1}}
			m := &modelSearch{measureFlags: f.of}
			var err error
			if m.measuredModel, err = newMeasuredModel(tt.model, tt.set); err != nil {
				t.Fatal(err)
			}
			job, err := f.measure(t.Context(), io.Discard, m, thisMachine(4), []int{1})
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{"1f1b", "zb-h1", "zb-v"} {
				job.wishes.Schedules = []string{name}
				testSizesThatFit(t, job)
			}
		})
	}
	// A unit that takes most has a device of its own, which holds little else.
	var job searchJob
	for rows := range 17 {
		if rows == 0 || 16%rows != 0 {
			continue
		}
		r := int64(rows)
		c := remat.Chain{Rows: rows, Input: 10 * r, InputGradient: 10 * r}
		for _, x := range []int64{100, 4000, 100} {
			c.Layers = append(c.Layers, remat.Layer{Name: "x", Forward: 1, ForwardNoGrad: 1, Backward: 1, Output: x * r, Saved: x*r + 8, Gradient: x * r, WeightGradient: 16})
		}
		job.profile.Measured = append(job.profile.Measured, search.Measured{Rows: rows, Threads: 1, Chain: c})
	}
	job.machine, job.wishes = thisMachine(3), search.Wishes{Batch: 16, Devices: 3, State: 1, Plans: modelPlans}
	for _, name := range []string{"1f1b", "zb-h1"} {
		job.wishes.Schedules = []string{name}
		testSizesThatFit(t, job)
	}
}

func testSizesThatFit(t *testing.T, job searchJob) {
	t.Helper()
	all := job.profile.Measured
	slices.SortFunc(all, func(a, b search.Measured) int { return a.Rows - b.Rows })
	for i, one := range all[2:] {
		job.wishes.Limit = 1
		nothing, err := search.Search(t.Context(), search.Profile{Measured: []search.Measured{one}}, job.machine, job.wishes)
		if err != nil || nothing.Short == nil {
			t.Fatalf("within one byte: %+v, %v", nothing, err)
		}
		least := nothing.Short.Least()
		job.wishes.Limit = least
		if unit, found := search.TooLarge(search.Profile{Measured: []search.Measured{one}}, job.machine, job.wishes); found {
			t.Errorf("%v: %+v is too large for devices of %d bytes, within which there is a plan", job.wishes.Schedules, unit, least)
		}
		for _, fewer := range [][]search.Measured{all[:2], all[i : i+2], all[:i+2]} {
			job.wishes.Limit = least
			if why := job.tooManyRows(one.Rows, fewer); why != "" {
				t.Errorf("%v: %d rows, which have a plan within %d bytes: %s", job.wishes.Schedules, one.Rows, least, why)
			}
			job.wishes.Limit = least / 8
			if why := job.tooManyRows(one.Rows, fewer); !strings.Contains(why, " alone takes ") {
				t.Errorf("%v: %d rows within an eighth of what they need at least: %q", job.wishes.Schedules, one.Rows, why)
			}
		}
	}
}

// Sizes that cannot fit are said in one line, and the plan is one of the others.
func TestSizesThatCannotFitAreNotMeasured(t *testing.T) {
	args := []string{"--model", "resnet20", "--set", "size=32,width=4", "--batch", "32", "--devices", "2", "--threads", "1", "--schedule", "1f1b", "--repeats", "1"}
	r := must(t, with([]string{"plan"}, with(args, "--memory-limit", "900KiB", "--format", "json")...)...)
	said := regexp.MustCompile(`(?m)^micro-batches of 16 and 32 rows are not measured: layer "[^"]+" alone takes [^,]*, and a device may have 921600 bytes`).FindAllStringSubmatch(r.stderr, -1)
	if len(said) != 1 {
		t.Fatalf("stderr:\n%s", r.stderr)
	}
	var line searchLine
	decode(t, r.stdout, &line)
	if line.Rows >= 16 || line.Rows*line.Chunks != 32 {
		t.Errorf("%+v", line)
	}
	if r := must(t, with([]string{"plan"}, args...)...); strings.Contains(r.stderr, "not measured") {
		t.Errorf("without a limit:\n%s", r.stderr)
	}
}
