// Package setting reads NAME=VALUE options: of models, of data sets, of groups of parameters.
package setting

import (
	"encoding"
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
	Name string
	// Value is what Set changes: a *int, *uint64, *float64, *bool, *string, *[]float32, an
	// encoding.TextUnmarshaler, or a func(text string) error that says what is wanted.
	Value any
	// Default is what List shows; "" is the present value.
	Default string
	// Numbers must be at least Least and at most Most. Without Most nothing bounds them from above.
	Least, Most float64
	Words       []string // if not nil, the only values
}

// Set changes settings by assignments such as "size=64,classes=5". A name may be once in each. The
// last assignment counts. The error names the assignment, says what is wanted, and lists the settings.
func Set(of string, settings []Setting, assignments []string) error {
	for _, list := range assignments {
		var given []string
		for text := range strings.SplitSeq(list, ",") {
			name, value, ok := strings.Cut(text, "=")
			i := slices.IndexFunc(settings, func(s Setting) bool { return s.Name == name })
			problem := ""
			switch {
			case !ok:
				text, problem = strconv.Quote(text), "want NAME=VALUE"
			case i < 0:
				problem = arg.Meant(name, names(settings)) + "want one of the options"
			case slices.Contains(given, name):
				return fmt.Errorf("%s: %s is given twice; want it once", text, name)
			default:
				if err := settings[i].read(value); err != nil {
					problem = "want " + err.Error()
				}
			}
			if problem != "" {
				return fmt.Errorf("%s: %s; %s has %s", text, problem, of, List(settings))
			}
			given = append(given, name)
		}
	}
	return nil
}

// List writes settings with their defaults: "size=32, classes=10".
func List(settings []Setting) string {
	var all []string
	for _, s := range settings {
		all = append(all, s.Name+"="+s.Text())
	}
	if all == nil {
		return "none"
	}
	return strings.Join(all, ", ")
}

func names(settings []Setting) (all []string) {
	for _, s := range settings {
		all = append(all, s.Name)
	}
	return all
}

// Text is the default, or the present value. Booleans are 0 and 1.
func (s Setting) Text() string {
	if s.Default != "" {
		return s.Default
	}
	switch v := s.Value.(type) {
	case *int:
		return strconv.Itoa(*v)
	case *uint64:
		return strconv.FormatUint(*v, 10)
	case *float64:
		return strconv.FormatFloat(*v, 'g', -1, 64)
	case *bool:
		return map[bool]string{false: "0", true: "1"}[*v]
	case *string:
		return *v
	case *[]float32:
		return strings.ReplaceAll(strings.Trim(fmt.Sprint(*v), "[]"), " ", ":")
	}
	return "none"
}

// read reads a value. The error says what is wanted.
func (s Setting) read(text string) (err error) {
	if s.Words != nil && !slices.Contains(s.Words, text) {
		return errors.New(strings.Join(s.Words, " or "))
	}
	inside := func(x float64) bool { return x >= s.Least && (s.Most == 0 || x <= s.Most) }
	switch v := s.Value.(type) {
	case *int:
		n, bad := strconv.Atoi(text)
		if bad != nil || !inside(float64(n)) {
			return errors.New("a whole number" + s.bounds())
		}
		*v = n
	case *uint64:
		if *v, err = strconv.ParseUint(text, 10, 64); err != nil {
			return errors.New("a whole number that is not negative")
		}
	case *float64:
		x, bad := strconv.ParseFloat(text, 64)
		if bad != nil || math.IsInf(x, 0) || !inside(x) {
			return errors.New("a number" + s.bounds())
		}
		*v = x
	case *bool:
		if *v, err = strconv.ParseBool(text); err != nil {
			return errors.New("0 or 1")
		}
	case *string:
		if *v = text; text == "" {
			return errors.New("a text")
		}
	case *[]float32:
		*v = nil
		for one := range strings.SplitSeq(text, ":") {
			x, bad := strconv.ParseFloat(one, 32)
			if bad != nil || math.IsInf(x, 0) || math.IsNaN(x) {
				return errors.New("numbers with colons between them, such as 0.485:0.456:0.406")
			}
			*v = append(*v, float32(x))
		}
	case encoding.TextUnmarshaler:
		return v.UnmarshalText([]byte(text))
	case func(string) error:
		return v(text)
	default:
		panic(fmt.Sprintf("setting: %s has a value of type %T", s.Name, v))
	}
	return nil
}

func (s Setting) bounds() string {
	if s.Most == 0 {
		return fmt.Sprintf(" from %v", s.Least)
	}
	return fmt.Sprintf(" from %v to %.0f", s.Least, s.Most)
}
