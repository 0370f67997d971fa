package arg

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Reader parses the text of a flag or a setting, and stores its value. The error states the valid values.
type Reader = func(text string) error

// Whole reads a whole number from least to most, which are not negative.
func Whole[T int | int64 | uint64](to *T, least, most T) Reader {
	return func(text string) error {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil || n < uint64(least) || n > uint64(most) {
			return fmt.Errorf("want a whole number from %d to %d", least, most)
		}
		*to = T(n)
		return nil
	}
}

// Amount reads a number from 0 to below end, which may be infinite.
func Amount(to *float64, end float64) Reader {
	return func(text string) error {
		x, err := strconv.ParseFloat(text, 64)
		switch {
		case err == nil && x >= 0 && x < end:
			*to = x
			return nil
		case math.IsInf(end, 0):
			return errors.New("want a finite number that is not negative")
		}
		return fmt.Errorf("want a number from 0 to below %v", end)
	}
}

// Share reads a number above 0 and below 1.
func Share(to *float64) Reader {
	return func(text string) error {
		if err := Amount(to, 1)(text); err != nil || *to == 0 {
			return errors.New("want a share between 0 and 1, such as 0.1")
		}
		return nil
	}
}

// Flag reads 0 or 1, or false or true.
func Flag(to *bool) Reader {
	return func(text string) (err error) {
		if *to, err = strconv.ParseBool(text); err != nil {
			return errors.New("want 0 or 1")
		}
		return nil
	}
}

// Word reads one of the words.
func Word(to *string, words ...string) Reader {
	return func(text string) error {
		if !slices.Contains(words, text) {
			return errors.New(OneOf(text, words))
		}
		*to = text
		return nil
	}
}

// Setting is an option of the form NAME=VALUE.
type Setting struct {
	Name    string
	Default string // for ListSettings
	Read    Reader
}

// SplitSettings returns the assignments in a list, with their quotes. Commas between double quotes
// are part of a value.
func SplitSettings(list string) []string {
	const separator = "\x00"
	parts := strings.Split(list, `"`)
	for i := 0; i < len(parts); i += 2 { // outside of quotes
		parts[i] = strings.ReplaceAll(parts[i], ",", separator)
	}
	return strings.Split(strings.Join(parts, `"`), separator)
}

// Set reads lists of assignments, separated by commas. A name occurs once in a list; a later list
// overrides it. The error names the owner and lists its options. After an error some are set.
func Set(owner string, settings []Setting, assignments []string) error {
	var names []string
	for _, s := range settings {
		names = append(names, s.Name)
	}
	for _, list := range assignments {
		seen := map[string]bool{}
		for _, a := range SplitSettings(list) {
			name, text, ok := strings.Cut(strings.ReplaceAll(a, `"`, ""), "=")
			i := slices.Index(names, name)
			var err error
			switch {
			case !ok:
				a, err = strconv.Quote(a), errors.New("want NAME=VALUE")
			case seen[name]:
				err = fmt.Errorf("%s is given twice; want it once", name)
			case i < 0:
				err = fmt.Errorf("%swant one of its options", Meant(name, names))
			default:
				err = settings[i].Read(text)
			}
			if err != nil {
				return fmt.Errorf("%s: %w; %s has %s", a, err, owner, ListSettings(settings))
			}
			seen[name] = true
		}
	}
	return nil
}

// ListSettings returns the options with their defaults, such as "size=28, classes=10".
func ListSettings(settings []Setting) string {
	var all []string
	for _, s := range settings {
		all = append(all, s.Name+"="+s.Default)
	}
	if all == nil {
		return "none"
	}
	return strings.Join(all, ", ")
}
