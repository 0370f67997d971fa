package setting_test

import (
	"errors"
	"strings"
	"testing"

	"penstock.example/internal/setting"
)

func TestSet(t *testing.T) {
	size, rate, flip, mean, seed, name := 32, 0.5, false, []float32{1}, uint64(0), "a"
	settings := []setting.Setting{
		{Name: "size", Value: &size, Least: 1, Most: 64}, {Name: "rate", Value: &rate, Most: 1},
		{Name: "flip", Value: &flip}, {Name: "mean", Value: &mean, Default: "the set's"},
		{Name: "seed", Value: &seed}, {Name: "name", Value: &name, Words: []string{"a", "b"}},
		{Name: "odd", Value: func(text string) error {
			if text != "x" {
				return errors.New("x")
			}
			return nil
		}},
	}
	const list = "size=32, rate=0.5, flip=0, mean=the set's, seed=0, name=a, odd=none"
	if got := setting.List(settings); got != list {
		t.Errorf("list %q", got)
	}
	err := setting.Set("it", settings, []string{"size=2,rate=0.25,flip=1", "size=3,mean=0.5:2,seed=7,name=b,odd=x"})
	if err != nil || size != 3 || rate != 0.25 || !flip || len(mean) != 2 || mean[1] != 2 || seed != 7 || name != "b" {
		t.Errorf("%v %d %v %v %v %d %s", err, size, rate, flip, mean, seed, name)
	}
	for text, want := range map[string]string{
		"size=65":       "size=65: want a whole number from 1 to 64; it has size=",
		"size=x":        "want a whole number from 1 to 64",
		"rate=NaN":      "want a number from 0 to 1",
		"flip=2":        "want 0 or 1",
		"mean=1:x":      "want numbers with colons between them",
		"seed=-1":       "want a whole number that is not negative",
		"name=c":        "want a or b",
		"odd=y":         "want x",
		"sise=1":        "did you mean size? want one of the options",
		"size":          `"size": want NAME=VALUE`,
		"size=1,size=2": "size=2: size is given twice",
	} {
		if err := setting.Set("it", settings, []string{text}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
