package models

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"penstock.example/internal/arg"
)

// Setting is an option of a model and its value.
type Setting struct {
	// Name is the model's own, such as "B" of unet, or else that of the field in Options in small
	// letters
	Name  string
	Value any // an int, for aux 0 or 1; a float64 for dropout
}

// Settings lists every option of a model as New would take o, those that have a name of the model's
// own first. Its errors are those of New, except about options that do not go together and images
// that are too small.
func Settings(name string, o Options) ([]Setting, error) {
	m, err := find(name)
	if err != nil {
		return nil, err
	}
	if err := m.complete(&o); err != nil {
		return nil, err
	}
	return m.settings(o), nil
}

func (m model) settings(o Options) []Setting {
	all := make([]Setting, len(m.own)) // own names first
	for _, n := range o.numbers() {
		i := slices.IndexFunc(m.own, func(a alias) bool { return a.field == n.field })
		switch {
		case i >= 0:
			all[i] = Setting{m.own[i].name, *n.value}
		case *n.value != 0:
			all = append(all, Setting{strings.ToLower(n.field), *n.value})
		}
	}
	if m.dropout {
		all = append(all, Setting{"dropout", o.Dropout})
	}
	if m.aux {
		all = append(all, Setting{"aux", map[bool]int{true: 1}[o.Aux]})
	}
	return all
}

// SettingName is the name by which Set and Settings of a model know a field of Options, such as "C" of
// unet for Width; "" if there is no such model, or it has no such option.
func SettingName(name, field string) string {
	m, err := find(name)
	if err != nil {
		return ""
	}
	own := slices.IndexFunc(m.own, func(a alias) bool { return a.field == field })
	switch {
	case own >= 0:
		return m.own[own].name
	case field == "Dropout" && m.dropout, field == "Aux" && m.aux:
		return strings.ToLower(field)
	}
	defaults := m.Defaults
	for _, n := range defaults.numbers() {
		if n.field == field && *n.value != 0 {
			return strings.ToLower(field)
		}
	}
	return ""
}

// Set changes options by assignments such as "B=6", by the names of Settings; one may hold several,
// separated by commas. The last one for a name holds. It returns an error that lists what there is,
// and leaves o as it was, where an assignment is none, its name is unknown, or its value is no
// number or out of range. What goes together is for New to check.
func Set(name string, o *Options, assignments []string) error {
	m, err := find(name)
	if err := err; err != nil {
		return err
	}
	changed := *o
	for _, list := range assignments {
		for a := range strings.SplitSeq(list, ",") {
			if err := m.set(&changed, a); err != nil {
				return err
			}
		}
	}
	*o = changed
	return nil
}

func (m model) set(o *Options, assignment string) error {
	meant := ""
	refuse := func(want string) error {
		var have []string
		for _, s := range m.settings(m.Defaults) {
			have = append(have, fmt.Sprintf("%s=%v", s.Name, s.Value))
		}
		return fmt.Errorf("models: %s: %swant %s; %s has %s", assignment, meant, want, m.Name, strings.Join(have, ", "))
	}
	name, text, ok := strings.Cut(assignment, "=")
	if !ok {
		assignment = strconv.Quote(assignment)
		return refuse("NAME=VALUE")
	}
	if name == "dropout" && m.dropout {
		p, err := strconv.ParseFloat(text, 64)
		if err != nil || !probable(p) {
			return refuse("a number that is at least 0 and below 1")
		}
		o.Dropout, o.NoDropout = p, p == 0
		return nil
	}
	if name == "aux" && m.aux {
		if text != "0" && text != "1" {
			return refuse("0 or 1")
		}
		o.Aux = text == "1"
		return nil
	}
	for _, n := range o.numbers() {
		if !m.names(n.field, name) {
			continue
		}
		v, err := strconv.Atoi(text)
		if err != nil || v < 1 || v > n.most {
			return refuse(fmt.Sprintf("a whole number from 1 to %d", n.most))
		}
		*n.value = v
		return nil
	}
	var known []string
	for _, s := range m.settings(m.Defaults) {
		known = append(known, s.Name)
	}
	meant = arg.Meant(name, known)
	return refuse("one of the model's options")
}

// names says whether the model has an option for a field of Options, by this name.
func (m model) names(field, name string) bool {
	for _, a := range m.own {
		if a.field == field {
			return a.name == name
		}
	}
	defaults := m.Defaults
	i := slices.IndexFunc(defaults.numbers(), func(n number) bool { return n.field == field })
	return *defaults.numbers()[i].value != 0 && strings.ToLower(field) == name
}
