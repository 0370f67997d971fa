package data

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"penstock.example/internal/arg"
)

// setting is an option of a data set that has a name, for Set.
type setting struct {
	name    string
	usually string // what holds without it
	read    func(o *Options, text string) error
}

// Set changes options by assignments such as "size=64", by the names that the set has; one may hold
// several, separated by commas, each once. The last list that has a name holds. It returns an error that lists what
// there is, and leaves o as it was, where an assignment is none, its name is unknown, or its value
// cannot be. What goes together is for Open to check.
func Set(name string, o *Options, assignments []string) error {
	s, err := find(name)
	if err != nil {
		return err
	}
	changed := *o
	for _, list := range assignments {
		if again, twice := arg.Twice(list); again != "" {
			return fmt.Errorf("data: %s: %s is given twice; want it once", again, twice)
		}
		for assignment := range strings.SplitSeq(list, ",") {
			if want := s.set(&changed, assignment); want != "" {
				if !strings.Contains(assignment, "=") {
					assignment = strconv.Quote(assignment)
				}
				return fmt.Errorf("data: %s: %swant %s; %s has %s", assignment, s.meant(assignment), want, name, s.listed())
			}
		}
	}
	*o = changed
	return nil
}

// set makes an assignment, or says what is wanted instead.
func (s set) set(o *Options, assignment string) (want string) {
	name, text, ok := strings.Cut(assignment, "=")
	if !ok {
		return "NAME=VALUE"
	}
	i := slices.IndexFunc(s.settings, func(a setting) bool { return a.name == name })
	if i < 0 {
		return "one of the data set's options"
	}
	if err := s.settings[i].read(o, text); err != nil {
		return err.Error()
	}
	return ""
}

// meant asks for the option that an assignment to none probably means, or is "".
func (s set) meant(assignment string) string {
	name, _, _ := strings.Cut(assignment, "=")
	var known []string
	for _, a := range s.settings {
		if a.name == name {
			return ""
		}
		known = append(known, a.name)
	}
	return arg.Meant(name, known)
}

// listed is the set's options with what holds without them.
func (s set) listed() string {
	var all []string
	for _, a := range s.settings {
		all = append(all, a.name+"="+a.usually)
	}
	if all == nil {
		return "none"
	}
	return strings.Join(all, ", ")
}

// whole is a setting of a whole number that is at least 1.
func whole(name, usually string, most int, fields ...func(*Options) *int) setting {
	return setting{name, usually, func(o *Options, text string) error {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > most {
			return fmt.Errorf("a whole number from 1 to %d", most)
		}
		for _, field := range fields {
			*field(o) = n
		}
		return nil
	}}
}

// seeding is a setting of a seed.
func seeding(field func(*Options) *uint64) setting {
	return setting{"seed", "0", func(o *Options, text string) error {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return fmt.Errorf("a whole number from 0 to %d", uint64(math.MaxUint64))
		}
		*field(o) = n
		return nil
	}}
}

// numbers is a setting of a number for each channel.
func numbers(name, usually string, field func(*Options) *[]float32) setting {
	return setting{name, usually, func(o *Options, text string) error {
		var all []float32
		for one := range strings.SplitSeq(text, ":") {
			x, err := strconv.ParseFloat(one, 32)
			if err != nil || !finite(float32(x)) {
				return fmt.Errorf("a number for each channel, such as 0.485:0.456:0.406")
			}
			all = append(all, float32(x))
		}
		*field(o) = all
		return nil
	}}
}

// share is a setting of a number from 0 to 1, and not the ends that are excluded.
func share(name, usually string, field func(*Options) *float64) setting {
	return setting{name, usually, func(o *Options, text string) error {
		x, err := strconv.ParseFloat(text, 64)
		if err != nil || !(x > 0 && x < 1) {
			return fmt.Errorf("a share between 0 and 1")
		}
		*field(o) = x
		return nil
	}}
}

// toggle is a setting of 0 or 1.
func toggle(name, usually string, field func(*Options, bool)) setting {
	return setting{name, usually, func(o *Options, text string) error {
		if text != "0" && text != "1" {
			return fmt.Errorf("0 or 1")
		}
		field(o, text == "1")
		return nil
	}}
}

// Settings that several sets have.
var (
	holdout   = share("holdout", "0.1", func(o *Options) *float64 { return &o.Holdout })
	splitSeed = seeding(func(o *Options) *uint64 { return &o.Seed })

	augmented = []setting{
		whole("crop", "0", 1<<12, func(o *Options) *int { return &o.Augment.Crop }),
		toggle("flip", "0", func(o *Options, on bool) { o.Augment.Flip = on }),
	}
	imageSettings = slices.Concat(augmented, []setting{
		numbers("mean", "the set's", func(o *Options) *[]float32 { return &o.Mean }),
		numbers("std", "the set's", func(o *Options) *[]float32 { return &o.Std }),
	})
	folderSettings = slices.Concat([]setting{
		whole("size", "224", 1<<14, func(o *Options) *int { return &o.Size }),
		whole("channels", "3", 3, func(o *Options) *int { return &o.Channels }),
		share("scale", "none", func(o *Options) *float64 { return &o.Augment.Scale }),
	}, augmented, []setting{
		numbers("mean", "ImageNet's", func(o *Options) *[]float32 { return &o.Mean }),
		numbers("std", "ImageNet's", func(o *Options) *[]float32 { return &o.Std }),
		holdout, splitSeed,
	})
	npySettings = slices.Concat(augmented, []setting{
		numbers("mean", "none", func(o *Options) *[]float32 { return &o.Mean }),
		numbers("std", "none", func(o *Options) *[]float32 { return &o.Std }),
		classCount, holdout, splitSeed,
	})
	classCount    = whole("classes", "the greatest and one", 1<<20, func(o *Options) *int { return &o.Classes })
	tokenSettings = []setting{
		oneOf("type", map[string]func(*Options){
			"uint16": func(o *Options) { o.TokenBytes = 2 }, "uint32": func(o *Options) { o.TokenBytes = 4 },
		}, "uint16"),
		classCount, holdout,
	}
	textSettings = []setting{
		{"tokenizer", "none, bytes", func(o *Options, text string) error {
			if o.Tokenizer = text; text == "" {
				return fmt.Errorf("the path of a tokenizer.json, or of a directory with vocab.json and merges.txt")
			}
			return nil
		}},
		holdout,
	}
	csvSettings = []setting{
		{"target", "the last column", func(o *Options, text string) error {
			if o.CSV.Target = text; text == "" {
				return fmt.Errorf("the name of a column, or its number from 1")
			}
			return nil
		}},
		oneOf("task", map[string]func(*Options){
			"classification": func(o *Options) { o.CSV.Task = Classification }, "regression": func(o *Options) { o.CSV.Task = Regression },
		}, "by the targets"),
		oneOf("header", map[string]func(*Options){
			"1": func(o *Options) { o.CSV.Header = HeaderThere }, "0": func(o *Options) { o.CSV.Header = HeaderAbsent },
		}, "by the first line"),
		oneOf("separator", map[string]func(*Options){
			"comma": func(o *Options) { o.CSV.Separator = ',' }, "semicolon": func(o *Options) { o.CSV.Separator = ';' }, "tab": func(o *Options) { o.CSV.Separator = '\t' },
		}, "comma"),
		toggle("standardise", "0", func(o *Options, on bool) { o.CSV.Standardise = on }),
		holdout, splitSeed,
	}
)

// oneOf is a setting of one of some words.
func oneOf(name string, words map[string]func(*Options), usually string) setting {
	return setting{name, usually, func(o *Options, text string) error {
		choose, ok := words[text]
		if !ok {
			return fmt.Errorf("%s", strings.Join(slices.Sorted(maps.Keys(words)), " or "))
		}
		choose(o)
		return nil
	}}
}
