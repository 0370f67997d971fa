package models_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"penstock.example/internal/must"
	"penstock.example/models"
)

func TestSet(t *testing.T) {
	for _, row := range []struct {
		model       string
		assignments []string
		want        models.Options
		refused     string
	}{
		{"unet", []string{"B=11,C=128"}, models.Options{Convolutions: 11, Width: 128}, ""},
		{"gpt", []string{"width=64,depth=2", "heads=8,width=32"}, models.Options{Width: 32, Depth: 2, Heads: 8}, ""},
		{"inception_v3", []string{"aux=1,dropout=0", "aux=0"}, models.Options{NoDropout: true}, ""},
		{"vgg", nil, models.Options{}, `Model is "vgg"; want one of mlp, `},
		{"unet", []string{"classes=2", "b=6"}, models.Options{}, "b=6: did you mean B? want one of its options; unet has B=6, C=72, classes=1, channels=3, size=192, depth=5, dropout=0.1"},
		{"unet", []string{"B=1025"}, models.Options{}, "B=1025: want a whole number from 1 to 1024"},
		{"unet", []string{"dropout=NaN"}, models.Options{}, "want a number that is at least 0 and below 1"},
		{"unet", []string{"width=6"}, models.Options{}, "want one of its options"},
	} {
		var o models.Options
		err := models.Set(row.model, &o, row.assignments)
		if o != row.want || (err == nil) != (row.refused == "") || err != nil && !strings.Contains(err.Error(), row.refused) {
			t.Errorf("%s %q: got %+v, %v, want %+v, %q", row.model, row.assignments, o, err, row.want, row.refused)
		}
	}
}

// What Settings writes Set reads, for every option of every model.
func TestSettingsAreAssignments(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.SampledFrom(models.Names()).Draw(t, "model")
		defaults := must.Get(models.Settings(name, models.Options{}))(t)
		var o models.Options
		var assignments []string
		var want []models.Setting
		for _, s := range defaults {
			if rapid.Bool().Draw(t, "given") {
				switch s.Name {
				case "dropout":
					s.Value = rapid.Float64Range(0, 0.999).Draw(t, s.Name)
				case "aux":
					s.Value = rapid.IntRange(0, 1).Draw(t, s.Name)
				default:
					s.Value = rapid.IntRange(1, 1024).Draw(t, s.Name)
				}
				assignments = append(assignments, fmt.Sprintf("%s=%v", s.Name, s.Value))
			}
			want = append(want, s)
		}
		must.Do(t, models.Set(name, &o, assignments))
		got, err := models.Settings(name, o)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Fatalf("%s %v: %v\n%s", name, assignments, err, diff)
		}
	})
}

func TestSettingName(t *testing.T) {
	for _, row := range []struct{ model, field, want string }{
		{"unet", "Width", "C"}, {"gpt", "Width", "width"}, {"gpt", "Size", ""}, {"inception_v3", "Aux", "aux"}, {"resnet18", "Dropout", ""}, {"none", "Size", ""},
	} {
		if got := models.SettingName(row.model, row.field); got != row.want {
			t.Errorf("%s of %s: %q, want %q", row.field, row.model, got, row.want)
		}
	}
}
