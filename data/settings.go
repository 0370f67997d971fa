package data

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"penstock.example/internal/arg"
	"penstock.example/internal/disk"
)

// Set changes the options of the set called name by assignments such as "size=64". A string may hold
// several, separated by commas. A name occurs once in a string; a later string overrides it. The error
// lists the set's options, and o is then unchanged. Open checks options that depend on each other.
func Set(name string, o *Options, assignments []string) error {
	s, err := find(name)
	if err != nil {
		return err
	}
	changed := *o
	if err := arg.Set(name, s.settings(&changed), assignments); err != nil {
		return fmt.Errorf("data: %w", err)
	}
	*o = changed
	return nil
}

// Settings of several sets.

func holdout(o *Options) arg.Setting {
	return arg.Setting{Name: "holdout", Default: "0.1", Read: arg.Share(&o.Holdout)}
}

func seed(to *uint64) arg.Setting {
	return arg.Setting{Name: "seed", Default: "0", Read: arg.Whole(to, 0, math.MaxUint64)}
}

func classCount(o *Options) arg.Setting {
	return arg.Setting{Name: "classes", Default: "the greatest and one",
		Read: arg.Whole(&o.Classes, 1, 1<<20)}
}

// imageSettings returns the settings of images. normal describes the default mean and deviation.
func imageSettings(o *Options, normal string) []arg.Setting {
	return []arg.Setting{
		{Name: "crop", Default: "0", Read: arg.Whole(&o.Augment.Crop, 1, 1<<12)},
		{Name: "flip", Default: "0", Read: arg.Flag(&o.Augment.Flip)},
		{Name: "mean", Default: normal, Read: ofChannels(&o.Mean)},
		{Name: "std", Default: normal, Read: ofChannels(&o.Std)},
	}
}

// ofChannels reads a number for each channel.
func ofChannels(to *[]float64) arg.Reader {
	return func(text string) error {
		var all []float64
		for one := range strings.SplitSeq(text, ":") {
			x, err := strconv.ParseFloat(one, 64)
			if err != nil || math.IsNaN(x) || math.IsInf(x, 0) {
				return errors.New("want a number for each channel, such as 0.485:0.456:0.406")
			}
			all = append(all, x)
		}
		*to = all
		return nil
	}
}

// choice returns a setting whose value is one of several words.
func choice[T any](name, usual string, values map[string]T, to *T) arg.Setting {
	return arg.Setting{Name: name, Default: usual, Read: func(text string) error {
		err := arg.Word(&text, slices.Sorted(maps.Keys(values))...)(text)
		*to = values[text]
		return err
	}}
}

// text returns a setting whose value is any text but the empty one.
func text(name, usual, want string, to *string) arg.Setting {
	return arg.Setting{Name: name, Default: usual, Read: func(text string) error {
		if *to = text; text == "" {
			return errors.New(want)
		}
		return nil
	}}
}

func folderSettings(o *Options) []arg.Setting {
	return append(append([]arg.Setting{
		{Name: "size", Default: "224", Read: arg.Whole(&o.Size, 1, 1<<14)},
		{Name: "channels", Default: "3", Read: arg.Whole(&o.Channels, 1, 3)},
		{Name: "scale", Default: "none", Read: arg.Share(&o.Augment.Scale)},
	}, imageSettings(o, "ImageNet's")...), holdout(o), seed(&o.Seed))
}

func npySettings(o *Options) []arg.Setting {
	return append(imageSettings(o, "none"), classCount(o), holdout(o), seed(&o.Seed))
}

func tokenSettings(o *Options) []arg.Setting {
	return []arg.Setting{choice("type", "uint16", map[string]int{"uint16": 2, "uint32": 4},
		&o.TokenBytes),
		classCount(o), holdout(o)}
}

func textSettings(o *Options) []arg.Setting {
	return []arg.Setting{text("tokenizer", "none, bytes",
		"want the path of a tokenizer.json, or of a directory with vocab.json and merges.txt", &o.Tokenizer),
		holdout(o)}
}

func jsonlSettings(o *Options) []arg.Setting {
	j := &o.JSONL
	return append(textSettings(o), seed(&o.Seed), arg.Setting{Name: "apart", Default: "0",
		Read: arg.Flag(&j.Apart)},
		text("begin", "the tokenizer's", "want a token before each text, or none", &j.Begin),
		text("end", "<|endoftext|> or its like", "want a token after each text", &j.End))
}

func csvSettings(o *Options) []arg.Setting {
	return []arg.Setting{
		text("target", "the last column", "want the name of a column, or its number from 1", &o.CSV.Target),
		choice("task", "by the targets", map[string]Task{string(Classification): Classification,
			string(Regression): Regression}, &o.CSV.Task),
		{Name: "header", Default: "1 if the first line differs from the columns below it",
			Read: func(text string) error {
				o.CSV.Header = new(bool)
				return arg.Flag(o.CSV.Header)(text)
			}},
		choice("separator", "comma", map[string]rune{"comma": ',', "semicolon": ';', "tab": '\t'},
			&o.CSV.Separator),
		{Name: "standardise", Default: "0", Read: arg.Flag(&o.CSV.Standardise)}, holdout(o), seed(&o.Seed),
	}
}

func syntheticSettings(o *Options) []arg.Setting {
	s := &o.Synthetic
	return []arg.Setting{
		{Name: "size", Default: "28", Read: func(text string) error {
			err := arg.Whole(&s.Width, 1, 1<<14)(text)
			s.Height = s.Width
			return err
		}},
		{Name: "channels", Default: "1", Read: arg.Whole(&s.Channels, 1, 1<<12)},
		{Name: "classes", Default: "10", Read: arg.Whole(&s.Classes, 1, 1<<20)},
		{Name: "train", Default: "1024", Read: arg.Whole(&s.Train, 1, disk.MaxSamples)},
		{Name: "test", Default: "256", Read: arg.Whole(&s.Test, 1, disk.MaxSamples)},
		seed(&s.Seed),
	}
}
