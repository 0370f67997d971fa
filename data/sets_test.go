package data_test

import (
	"maps"
	"reflect"
	"slices"
	"testing"

	"penstock.example/data"
	"penstock.example/internal/must"
)

func TestNames(t *testing.T) {
	want := []string{"cifar10", "csv", "fashion-mnist", "images", "jsonl", "mnist", "npy", "synthetic",
		"text",
		"tokens"}
	if got := data.Names(); !slices.Equal(got, want) {
		t.Errorf("Names() = %v, want %v", got, want)
	}
	_, _, err := data.Open("imagenet", "", data.Options{})
	wantError(t, err, `Data is "imagenet"; want one of cifar10, csv, fashion-mnist, images, jsonl, `+
		`mnist, npy, `+
		`synthetic, text, tokens`)
}

// Each task has targets of its own, which a sample keeps wherever it is in a batch.
func TestSyntheticTasks(t *testing.T) {
	for _, row := range []struct {
		task          data.Task
		input, target []int64
	}{
		{data.Classification, []int64{3, 8, 6}, nil},
		{data.Segmentation, []int64{3, 8, 6}, []int64{8, 6}},
		{data.NextToken, []int64{6}, []int64{6}},
	} {
		set, _, err := data.Synthetic{Task: row.task, Classes: 4, Channels: 3, Height: 8, Width: 6}.Open()
		must.Do(t, err)
		info := set.Info()
		if info.Task() != row.task || info.Outputs() != 4 || !slices.Equal(info.Input.Shape, row.input) ||
			!slices.Equal(info.Target.Shape, row.target) {
			t.Errorf("%s: %s, %+v", row.task, info.Task(), info)
		}
		one, many := fill(t, set, 7), fill(t, set, 3, 7)
		if !slices.Equal(one.Target.Int64, many.Target.Int64[len(one.Target.Int64):]) ||
			!slices.Equal(one.Input.Float32, many.Input.Float32[len(one.Input.Float32):]) {
			t.Errorf("%s: sample 7 depends on those next to it", row.task)
		}
		seen := map[int64]bool{}
		for _, label := range fill(t, set, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9).Target.Int64 {
			seen[label] = true
		}
		if len(seen) != 4 || slices.Max(slices.Collect(maps.Keys(seen))) > 3 {
			t.Errorf("%s: targets %v, want 0 to 3", row.task, seen)
		}
	}
	_, _, err := data.Synthetic{Task: data.Regression}.Open()
	wantError(t, err, `Task is regression; want one of classification, segmentation, next token`)
}

func TestSet(t *testing.T) {
	var o data.Options
	must.Do(t, data.Set("synthetic", &o,
		[]string{"size=8,channels=3", "classes=4,train=50,test=20,seed=7", "size=16"}))
	if want := (data.Synthetic{Seed: 7, Train: 50, Test: 20, Classes: 4, Channels: 3, Height: 16,
		Width: 16}); o.Synthetic != want {
		t.Errorf("%+v, want %+v", o.Synthetic, want)
	}
	before := o
	wantError(t, data.Set("synthetic", &o, []string{"train=9", "size=0"}),
		"data: size=0: want a whole number from 1 to 16384; synthetic has size=28, channels=1, classes=10")
	if o.Synthetic != before.Synthetic {
		t.Errorf("options are changed: %+v", o.Synthetic)
	}
	for _, row := range []struct {
		set, assignment string
		got             func(o data.Options) any
		want            any
	}{
		{"images", "scale=0.25,flip=1", func(o data.Options) any { return o.Augment },
			data.Augment{Scale: 0.25, Flip: true}},
		{"csv", "separator=tab,header=1,task=regression,target=x",
			func(o data.Options) any { return o.CSV }, data.CSV{Separator: '\t', Header: new(true),
				Task: data.Regression, Target: "x"}},
		{"text", `tokenizer="a,b",holdout=0.2`, func(o data.Options) any { return o.Tokenizer }, "a,b"},
		{"tokens", "type=uint32", func(o data.Options) any { return o.TokenBytes }, 4},
		{"mnist", "mean=0.5", func(o data.Options) any { return o.Mean[0] }, 0.5},
	} {
		var o data.Options
		if err := data.Set(row.set, &o, []string{row.assignment}); err != nil ||
			!reflect.DeepEqual(row.got(o), row.want) {
			t.Errorf("%s %s: %+v, %v", row.set, row.assignment, o, err)
		}
	}
	wantError(t, data.Set("mnits", &o, nil), `Data is "mnits"`)
	if tasks, err := data.Tasks("text"); err != nil || !slices.Equal(tasks, []data.Task{data.NextToken}) {
		t.Errorf("text: %v, %v", tasks, err)
	}
}
