package models_test

import (
	"slices"
	"strings"
	"testing"

	"penstock.example/internal/must"
	"penstock.example/models"
	"penstock.example/nn"
)

// A model of one's own is made by its name, with the options that it has and with no others.
func TestRegister(t *testing.T) {
	build := func(o models.Options) (*nn.Sequential, error) {
		width := int64(o.Width)
		return nn.NewSequential(nn.NewLinear(3, width), nn.NewLinear(width, int64(o.Classes))), nil
	}
	own := models.Info{Name: "own", Input: []int64{3}, Defaults: models.Options{Width: 5}}
	must.Do(t, models.Register(own, build))
	defer models.Forget()
	var o models.Options
	must.Do(t, models.Set("own", &o, []string{"width=7"}))
	model, err := models.New("own", o)
	if err != nil || nn.Count(model) != 3*7+7+7*10+10 || !slices.Contains(models.Names(), "own") {
		t.Errorf("%v, %v", model, err)
	}
	if err := models.Set("own", &o, []string{"depth=2"}); err == nil ||
		!strings.Contains(err.Error(), "own has classes=10, width=5") {
		t.Errorf("an option that it lacks: %v", err)
	}
	for want, i := range map[string]models.Info{
		"there is a model of that name": own,
		"without blanks":                {Name: "a b", Input: []int64{3}},
		"its input is []":               {Name: "no-input"},
		"its input is [3]":              {Name: "channels", Input: []int64{3}, Defaults: models.Options{Channels: 3}},
	} {
		if err := models.Register(i, build); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", i, err, want)
		}
	}
	if err := models.Register(models.Info{Name: "none", Input: []int64{3}}, nil); err == nil {
		t.Error("a model that nothing makes is taken")
	}
}
