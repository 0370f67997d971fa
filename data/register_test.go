package data_test

import (
	"strings"
	"testing"

	"penstock.example/data"
	"penstock.example/internal/must"
)

// A data set of one's own is opened by its name. Samples of another form than a model was trained on are
// refused.
func TestRegister(t *testing.T) {
	open := func(path string, _ data.Options) (train, test data.Dataset, err error) {
		set, err := data.FromSlices([]float32{1, 2, 3, 4}, []int64{2}, []int64{0, 1})
		if path == "more" {
			set, err = data.FromSlices([]float32{1, 2, 3, 4}, []int64{1}, []int64{0, 1, 0, 1})
		}
		return set, set, err
	}
	tasks := []data.Task{data.Classification}
	must.Do(t, data.Register("own", tasks, open))
	defer data.Forget("own")
	train, _, err := data.Open("own", "", data.Options{})
	if err != nil || train.Len() != 2 {
		t.Fatalf("%v, %v", train, err)
	}
	info := train.Info()
	if _, _, err := data.Open("own", "more", data.Options{TrainedOn: &info}); err == nil ||
		!strings.Contains(err.Error(), "own: the data have inputs float32 [1]") {
		t.Errorf("other samples: %v", err)
	}
	for want, err := range map[string]error{
		"there is a set of that name": data.Register("own", tasks, open),
		"without blanks":              data.Register("", tasks, open),
		"want its tasks":              data.Register("none", nil, open),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
