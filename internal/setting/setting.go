// Package setting parses options of the form NAME=VALUE.
package setting

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"penstock.example/internal/arg"
)

// Setting is a named option.
type Setting struct {
	Name    string
	Default string   // for List
	Most    int      // the limit of an *int; 0 is MaxInt32
	Words   []string // the accepted values; nil is any

	// Value is the destination:
	//
	//	*int                 a whole number from 1 to Most
	//	*uint64              any whole number
	//	*float64             a number above 0 and below 1
	//	*Number              a finite number that is not negative
	//	*bool                0, 1, false or true
	//	*[]float64           numbers with colons between them
	//	func(string) error   any text; the error names the wanted form
	Value any
}

// Number is a destination for any number from 0 on.
type Number float64

// Split returns the assignments in a list. Commas between double quotes are part of a value.
func Split(list string) []string {
	const separator = "\x00"
	parts := strings.Split(list, `"`)
	for i := 0; i < len(parts); i += 2 { // outside of quotes
		parts[i] = strings.ReplaceAll(parts[i], ",", separator)
	}
	return strings.Split(strings.Join(parts, ""), separator)
}

// Set reads lists of assignments with commas between them. A list has each name once; the last list with a
// name counts. The error lists the options, with their owner of. After an error some options are set.
func Set(of string, settings []Setting, assignments []string) error {
	var names []string
	for _, s := range settings {
		names = append(names, s.Name)
	}
	for _, list := range assignments {
		seen := map[string]bool{}
		for _, a := range Split(list) {
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

// List returns the options with their defaults, such as "size=28, classes=10".
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

// Read parses a value and stores it. The error names the wanted form.
func (s Setting) Read(text string) error {
	if s.Words != nil && !slices.Contains(s.Words, text) {
		return errors.New(strings.Join(s.Words, " or "))
	}
	switch to := s.Value.(type) {
	case *int:
		most := cmp.Or(s.Most, math.MaxInt32)
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > most {
			return fmt.Errorf("a whole number from 1 to %d", most)
		}
		*to = n
	case *uint64:
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return errors.New("a whole number from 0 to 18446744073709551615")
		}
		*to = n
	case *float64:
		x, err := strconv.ParseFloat(text, 64)
		if err != nil || !(x > 0 && x < 1) {
			return errors.New("a share between 0 and 1")
		}
		*to = x
	case *Number:
		x, err := strconv.ParseFloat(text, 64)
		if err != nil || !(x >= 0) || math.IsInf(x, 0) {
			return errors.New("a finite number that is not negative")
		}
		*to = Number(x)
	case *bool:
		on, err := strconv.ParseBool(text)
		if err != nil {
			return errors.New("0 or 1")
		}
		*to = on
	case *[]float64:
		var all []float64
		for one := range strings.SplitSeq(text, ":") {
			x, err := strconv.ParseFloat(one, 64)
			if err != nil || math.IsNaN(x) || math.IsInf(x, 0) {
				return errors.New("a number for each channel, such as 0.485:0.456:0.406")
			}
			all = append(all, x)
		}
		*to = all
	case func(string) error:
		return to(text)
	}
	return nil
}
