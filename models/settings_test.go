package models_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"penstock.example/models"
)

func TestSet(t *testing.T) {
	for _, row := range []struct {
		reason, model string
		assignments   []string
		from, want    models.Options
	}{
		{"nothing", "unet", nil, models.Options{}, models.Options{}},
		{"names of the model's own", "unet", []string{"B=11,C=128"}, models.Options{}, models.Options{Convolutions: 11, Width: 128}},
		{"the same letters elsewhere", "amoebanetd", []string{"L=72", "D=512"}, models.Options{}, models.Options{Depth: 72, Width: 512}},
		{"names of all", "gpt", []string{"width=64,depth=2", "heads=8,context=32,classes=100"}, models.Options{},
			models.Options{Width: 64, Depth: 2, Heads: 8, Context: 32, Classes: 100}},
		{"others stay", "resnet18", []string{"classes=10"}, models.Options{Channels: 1}, models.Options{Classes: 10, Channels: 1}},
		{"the last one holds", "unet", []string{"B=1,B=2", "B=3"}, models.Options{Convolutions: 9}, models.Options{Convolutions: 3}},
		{"some dropout", "unet", []string{"dropout=0,dropout=0.25"}, models.Options{}, models.Options{Dropout: 0.25}},
		{"auxiliary classifiers", "googlenet", []string{"aux=1"}, models.Options{}, models.Options{Aux: true}},
		{"none after all", "inception_v3", []string{"aux=1,dropout=0", "aux=0"}, models.Options{}, models.Options{NoDropout: true}},
		{"no dropout, where the default is some", "unet", []string{"dropout=0.25,dropout=0"}, models.Options{}, models.Options{NoDropout: true}},
	} {
		o := row.from
		if err := models.Set(row.model, &o, row.assignments); err != nil || o != row.want {
			t.Errorf("%s: got %+v, %v, want %+v", row.reason, o, err, row.want)
		}
	}
}

func TestSetRefuses(t *testing.T) {
	const unet = "; unet has B=6, C=72, classes=1, channels=3, size=192, depth=5, dropout=0.1"
	for _, row := range []struct{ model, assignments, want string }{
		{"vgg", "B=6", `Model is "vgg"; want one of mlp, `},
		{"unet", "B", `"B": want NAME=VALUE` + unet},
		{"unet", "", `"": want NAME=VALUE` + unet},
		{"unet", "C=2,,B=1", `"": want NAME=VALUE` + unet},
		{"unet", "b=6", "b=6: did you mean B? want one of the model's options" + unet},
		{"unet", "=6", "=6: want one of the model's options" + unet},
		{"unet", "Convolutions=6", "Convolutions=6: want one of the model's options" + unet},
		{"unet", "width=6", "width=6: want one of the model's options" + unet},
		{"unet", "heads=6", "heads=6: want one of the model's options" + unet},
		{"unet", "C=2,B=0", "B=0: want a whole number from 1 to 1024" + unet},
		{"unet", "B=-1", "B=-1: want a whole number from 1 to 1024" + unet},
		{"unet", "B=1025", "B=1025: want a whole number from 1 to 1024" + unet},
		{"unet", "B=99999999999999999999", "B=99999999999999999999: want a whole number from 1 to 1024" + unet},
		{"unet", "B=6.0", "B=6.0: want a whole number from 1 to 1024" + unet},
		{"unet", "B= 6", "B= 6: want a whole number from 1 to 1024" + unet},
		{"unet", "B=", "B=: want a whole number from 1 to 1024" + unet},
		{"unet", "B=1=2", "B=1=2: want a whole number from 1 to 1024" + unet},
		{"unet", "dropout=1", "dropout=1: want a number that is at least 0 and below 1" + unet},
		{"unet", "dropout=NaN", "dropout=NaN: want a number that is at least 0 and below 1" + unet},
		{"unet", "dropout=some", "dropout=some: want a number that is at least 0 and below 1" + unet},
		{"googlenet", "aux=2", "aux=2: want 0 or 1; googlenet has classes=1000, channels=3, size=224, dropout=0.2, aux=0"},
		{"googlenet", "aux=true", "aux=true: want 0 or 1; googlenet has"},
		{"vgg11", "aux=1", "aux=1: want one of the model's options; vgg11 has classes=1000, channels=3, size=224, width=4096, dropout=0.5"},
		{"densenet121", "width=8", "width=8: want one of the model's options; densenet121 has growth=32, classes=1000, channels=3, size=224, dropout=0"},
		{"resnet18", "dropout=0", "dropout=0: want one of the model's options; resnet18 has classes=1000, channels=3, size=224"},
	} {
		before := models.Options{Classes: 7}
		o := before
		err := models.Set(row.model, &o, []string{"classes=8", row.assignments})
		if err == nil || !strings.HasPrefix(err.Error(), "models: "+row.want) || o != before {
			t.Errorf("%q: got %v and %+v, want %q", row.assignments, err, o, row.want)
		}
	}
}

func TestSettings(t *testing.T) {
	got, err := models.Settings("unet", models.Options{Convolutions: 11, NoDropout: true})
	want := []models.Setting{{"B", 11}, {"C", 72}, {"classes", 1}, {"channels", 3}, {"size", 192}, {"depth", 5}, {"dropout", 0.0}}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
	got, err = models.Settings("inception_v3", models.Options{Aux: true})
	want = []models.Setting{{"classes", 1000}, {"channels", 3}, {"size", 299}, {"dropout", 0.5}, {"aux", 1}}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
	for _, row := range []struct {
		model string
		o     models.Options
	}{{"vgg", models.Options{}}, {"mlp", models.Options{Heads: 1}}, {"mlp", models.Options{Depth: -1}}} {
		if got, err := models.Settings(row.model, row.o); err == nil {
			t.Errorf("%s %+v: got %v", row.model, row.o, got)
		}
	}
}

// What Settings writes Set reads, for every option of every model.
func TestSettingsAreAssignments(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.SampledFrom(models.Names()).Draw(t, "model")
		defaults, err := models.Settings(name, models.Options{})
		if err != nil {
			t.Fatal(err)
		}
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
		if err := models.Set(name, &o, assignments); err != nil {
			t.Fatal(err)
		}
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
