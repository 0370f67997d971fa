// Package setting reads options that are written as NAME=VALUE.
package setting

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"penstock.example/internal/arg"
)

// Setting is an option with a name.
type Setting struct {
	Name    string
	Default string   // as List prints it
	Most    int      // of a whole number; 0 is MaxInt32
	Words   []string // the only values; nil is any

	// Value is where the value goes:
	//
	//	*int                 a whole number from 1 to Most
	//	*uint64              any whole number
	//	*float64             a number above 0 and below 1
	//	*bool                0, 1, false, true
	//	*[]float32           numbers with colons between them
	//	func(string) error   any text; the error names the wanted form
	Value any
}

// Set reads assignments. One may hold several with commas between them, each name once; the last
// assignment of a name counts. The error lists the options, of is their owner. After an error some are set.
func Set(of string, settings []Setting, assignments []string) error {
	var names []string
	for _, s := range settings {
		names = append(names, s.Name)
	}
	for _, list := range assignments {
		seen := map[string]bool{}
		for a := range strings.SplitSeq(list, ",") {
			name, text, ok := strings.Cut(a, "=")
			i := slices.Index(names, name)
			var err error
			switch {
			case !ok:
				a, err = strconv.Quote(a), errors.New("want NAME=VALUE")
			case seen[name]:
				err = fmt.Errorf("%s is given twice; want it once", name)
			case i < 0:
				err = fmt.Errorf("%swant one of its options", arg.Meant(name, names))
			default:
				if err = settings[i].Read(text); err != nil {
					err = fmt.Errorf("want %w", err)
				}
			}
			if err != nil {
				return fmt.Errorf("%s: %w; %s has %s", a, err, of, List(settings))
			}
			seen[name] = true
		}
	}
	return nil
}

// List is the options with their defaults, such as "size=28, classes=10".
func List(settings []Setting) string {
	var all []string
	for _, s := range settings {
		all = append(all, s.Name+"="+s.Default)
	}
	if all == nil {
		return "none"
	}
	return strings.Join(all, ", ")
}

// Read reads the value. The error names the wanted form.
func (s Setting) Read(text string) error {
	if s.Words != nil && !slices.Contains(s.Words, text) {
		return errors.New(strings.Join(s.Words, " or "))
	}
	switch to := s.Value.(type) {
	case *int:
		most := s.Most
		if most == 0 {
			most = math.MaxInt32
		}
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > most {
			return fmt.Errorf("a whole number from 1 to %d", most)
		}
		*to = n
	case *uint64:
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return fmt.Errorf("a whole number from 0 to %d", uint64(math.MaxUint64))
		}
		*to = n
	case *float64:
		x, err := strconv.ParseFloat(text, 64)
		if err != nil || !(x > 0 && x < 1) {
			return errors.New("a share between 0 and 1")
		}
		*to = x
	case *bool:
		on, err := strconv.ParseBool(text)
		if err != nil {
			return errors.New("0 or 1")
		}
		*to = on
	case *[]float32:
		var all []float32
		for one := range strings.SplitSeq(text, ":") {
			x, err := strconv.ParseFloat(one, 32)
			if err != nil || math.IsNaN(x) || math.IsInf(x, 0) {
				return errors.New("a number for each channel, such as 0.485:0.456:0.406")
			}
			all = append(all, float32(x))
		}
		*to = all
	case func(string) error:
		return to(text)
	}
	return nil
}
