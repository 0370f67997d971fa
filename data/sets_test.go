package data_test

import (
	"maps"
	"slices"
	"testing"

	"penstock.example/data"
	"penstock.example/internal/must"
)

func TestNames(t *testing.T) {
	want := []string{"cifar10", "csv", "fashion-mnist", "images", "mnist", "npy", "synthetic", "text", "tokens"}
	if got := data.Names(); !slices.Equal(got, want) {
		t.Errorf("Names() = %v, want %v", got, want)
	}
	_, _, err := data.Open("imagenet", "", data.Options{})
	wantError(t, err, `Data is "imagenet"; want one of cifar10, csv, fashion-mnist, images, mnist, npy, synthetic, text, tokens`)
}

func TestSynthetic(t *testing.T) {
	train, test, err := data.Open("synthetic", "", data.Options{Synthetic: data.Synthetic{
		Seed: 3, Train: 50, Test: 20, Classes: 4, Channels: 3, Height: 5, Width: 6,
	}})
	if err != nil {
		t.Fatal(err)
	}
	if train.Len() != 50 || test.Len() != 20 || train.Info().Classes != 4 || !slices.Equal(train.Info().Input.Shape, []int64{3, 5, 6}) {
		t.Errorf("%d and %d samples of %+v", train.Len(), test.Len(), train.Info())
	}
	one, many := fill(t, train, 7), fill(t, train, 3, 7, 7)
	if !slices.Equal(one.Input.Float32, many.Input.Float32[90:180]) || one.Target.Int64[0] != many.Target.Int64[1] {
		t.Error("sample 7 depends on those next to it")
	}
	if slices.Equal(fill(t, train, 0).Input.Float32, fill(t, test, 0).Input.Float32) {
		t.Error("the first sample to train and to test with are the same")
	}

	other, _, err := data.Synthetic{Seed: 4, Train: 50, Classes: 4, Channels: 3, Height: 5, Width: 6}.Open()
	if err != nil {
		t.Fatal(err)
	}
	if slices.Equal(one.Input.Float32, fill(t, other, 7).Input.Float32) {
		t.Error("another seed makes the same sample")
	}
	_, _, err = data.Synthetic{Classes: -1}.Open()
	wantError(t, err, "data: synthetic: ", "a number below 0")
}

// The set can be learnt: the mean of a class's images to train with is nearest to its images to
// test with.
func TestSyntheticCanBeLearnt(t *testing.T) {
	train, test, err := data.Synthetic{}.Open()
	if err != nil {
		t.Fatal(err)
	}
	size, classes := train.Info().Input.Size(), train.Info().Classes
	sums, counts := make([][]float64, classes), make([]float64, classes)
	for class := range sums {
		sums[class] = make([]float64, size)
	}
	for i := range train.Len() {
		batch := fill(t, train, i)
		class := batch.Target.Int64[0]
		counts[class]++
		for j, x := range batch.Input.Float32 {
			sums[class][j] += float64(x)
		}
	}
	right := 0
	for i := range test.Len() {
		batch := fill(t, test, i)
		nearest, least := 0, 0.0
		for class := range sums {
			distance := 0.0
			for j, x := range batch.Input.Float32 {
				d := float64(x) - sums[class][j]/counts[class]
				distance += d * d
			}
			if class == 0 || distance < least {
				nearest, least = class, distance
			}
		}
		if int64(nearest) == batch.Target.Int64[0] {
			right++
		}
	}
	if right != test.Len() {
		t.Errorf("%d of %d test images are nearest to the mean of their class", right, test.Len())
	}
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
		if err != nil {
			t.Fatal(err)
		}
		info := set.Info()
		if info.Task() != row.task || info.Outputs() != 4 || !slices.Equal(info.Input.Shape, row.input) || !slices.Equal(info.Target.Shape, row.target) {
			t.Errorf("%s: %s, %+v", row.task, info.Task(), info)
		}
		one, many := fill(t, set, 7), fill(t, set, 3, 7)
		if !slices.Equal(one.Target.Int64, many.Target.Int64[len(one.Target.Int64):]) || !slices.Equal(one.Input.Float32, many.Input.Float32[len(one.Input.Float32):]) {
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
	must.Do(t, data.Set("synthetic", &o, []string{"size=8,channels=3", "classes=4,train=50,test=20,seed=7", "size=16"}))
	if want := (data.Synthetic{Seed: 7, Train: 50, Test: 20, Classes: 4, Channels: 3, Height: 16, Width: 16}); o.Synthetic != want {
		t.Errorf("%+v, want %+v", o.Synthetic, want)
	}
	before := o
	wantError(t, data.Set("synthetic", &o, []string{"train=9", "size=0"}), "data: size=0: want a whole number from 1 to 16384; synthetic has size=28, channels=1, classes=10")
	if o.Synthetic != before.Synthetic {
		t.Errorf("options are changed: %+v", o.Synthetic)
	}
	for _, row := range []struct {
		set, assignment string
		got             func(o data.Options) any
		want            any
	}{
		{"images", "scale=0.25,flip=1", func(o data.Options) any { return o.Augment }, data.Augment{Scale: 0.25, Flip: true}},
		{"csv", "separator=tab,header=0,task=regression,target=x", func(o data.Options) any { return o.CSV }, data.CSV{Separator: '\t', Header: data.HeaderAbsent, Task: data.Regression, Target: "x"}},
		{"tokens", "type=uint32", func(o data.Options) any { return o.TokenBytes }, 4},
		{"mnist", "mean=0.5", func(o data.Options) any { return o.Mean[0] }, float32(0.5)},
	} {
		var o data.Options
		if err := data.Set(row.set, &o, []string{row.assignment}); err != nil || row.got(o) != row.want {
			t.Errorf("%s %s: %+v, %v", row.set, row.assignment, o, err)
		}
	}
	wantError(t, data.Set("mnits", &o, nil), `Data is "mnits"`)
	if tasks, err := data.Tasks("text"); err != nil || !slices.Equal(tasks, []data.Task{data.NextToken}) {
		t.Errorf("text: %v, %v", tasks, err)
	}
}
