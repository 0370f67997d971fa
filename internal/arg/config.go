// Package arg parses and checks settings: values of flags, options of the form NAME=VALUE, and fields of
// configurations. It also formats the sizes and names in messages.
package arg

import (
	"cmp"
	"fmt"
)

// ConfigError is a setting that is refused. Other packages have aliases, such as pipe.ConfigError.
type ConfigError struct {
	Of      string // the setting's owner: a package, or a part such as "optim: sgd"
	Field   string
	Value   any
	Problem string // the mistake in the value; "" if the remedy is enough
	Remedy  string // the valid values
}

func (e *ConfigError) Error() string {
	format := "%s: %s is %v"
	if _, ok := e.Value.(string); ok {
		format = "%s: %s is %q"
	}
	s := fmt.Sprintf(format, e.Of, e.Field, e.Value)
	if e.Problem == "" {
		return s + "; " + e.Remedy
	}
	return s + ": " + e.Problem + "; " + e.Remedy
}

// check returns a ConfigError unless ok.
func check(ok bool, of, field string, value any, remedy string, args ...any) error {
	if ok {
		return nil
	}
	return &ConfigError{Of: of, Field: field, Value: value, Remedy: fmt.Sprintf(remedy, args...)}
}

func Between[T cmp.Ordered](of, field string, value, least, most T) error {
	return check(value >= least && value <= most, of, field, value, "want %v to %v", least, most)
}

func AtLeast[T cmp.Ordered](of, field string, value, least T) error {
	return check(value >= least, of, field, value, "want at least %v", least)
}

// Balance checks that every stage has at least one layer, and that counts add up to layers.
func Balance(of string, counts []int, layers int) error {
	left := layers
	for _, n := range counts {
		if n < 1 || n > left {
			left = -1
			break
		}
		left -= n
	}
	return check(left == 0, of, "Balance", counts,
		"want at least 1 layer in each stage and the %d layers in all", layers)
}
