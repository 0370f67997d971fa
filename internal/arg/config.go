// Package arg checks settings, and writes and reads sizes and names in the one way that messages have them.
package arg

import (
	"cmp"
	"fmt"
)

// ConfigError is a setting that is refused. Packages with settings have it under a name of their own,
// such as pipe.ConfigError.
type ConfigError struct {
	Of      string // the owner of the setting: a package, or something in it, such as "optim: sgd"
	Field   string // of the configuration
	Value   any
	Problem string // the mistake in the value, if the remedy does not say it
	Remedy  string // the value to give instead
}

// Error names the field, the value and the remedy.
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

// refuse is a ConfigError unless ok.
func refuse(ok bool, of, field string, value any, remedy string, args ...any) error {
	if ok {
		return nil
	}
	return &ConfigError{Of: of, Field: field, Value: value, Remedy: fmt.Sprintf(remedy, args...)}
}

// Between refuses a value that is below least or above most.
func Between[T cmp.Ordered](of, field string, value, least, most T) error {
	return refuse(value >= least && value <= most, of, field, value, "want %v to %v", least, most)
}

// AtLeast refuses a value that is below least.
func AtLeast[T cmp.Ordered](of, field string, value, least T) error {
	return refuse(value >= least, of, field, value, "want at least %v", least)
}

// Balance checks that every stage has layers and that they are all of the model's.
func Balance(of string, counts []int, layers int) error {
	left := layers
	for _, n := range counts {
		if n < 1 || n > left {
			left = -1
			break
		}
		left -= n
	}
	return refuse(left == 0, of, "Balance", counts,
		"want at least 1 layer in each stage and the %d layers in all", layers)
}
