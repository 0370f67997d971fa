package data

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"penstock.example/internal/disk"
	"penstock.example/internal/setting"
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
	if err := setting.Set(name, s.settings(&changed), assignments); err != nil {
		return fmt.Errorf("data: %w", err)
	}
	*o = changed
	return nil
}

// Settings of several sets.

func holdout(o *Options) setting.Setting {
	return setting.Setting{Name: "holdout", Default: "0.1", Value: &o.Holdout}
}

func seed(to *uint64) setting.Setting {
	return setting.Setting{Name: "seed", Default: "0", Value: to}
}

func classCount(o *Options) setting.Setting {
	return setting.Setting{Name: "classes", Default: "the greatest and one", Value: &o.Classes, Most: 1 << 20}
}

// imageSettings returns the settings of images. normal describes the default mean and deviation.
func imageSettings(o *Options, normal string) []setting.Setting {
	return []setting.Setting{
		{Name: "crop", Default: "0", Value: &o.Augment.Crop, Most: 1 << 12},
		{Name: "flip", Default: "0", Value: &o.Augment.Flip},
		{Name: "mean", Default: normal, Value: &o.Mean}, {Name: "std", Default: normal, Value: &o.Std},
	}
}

// choice returns a setting whose value is one of several words.
func choice[T any](name, usual string, values map[string]T, to *T) setting.Setting {
	return setting.Setting{Name: name, Default: usual, Words: slices.Sorted(maps.Keys(values)),
		Value: func(text string) error { *to = values[text]; return nil }}
}

// text returns a setting whose value is any text but the empty one.
func text(name, usual, want string, to *string) setting.Setting {
	return setting.Setting{Name: name, Default: usual, Value: func(text string) error {
		if *to = text; text == "" {
			return errors.New(want)
		}
		return nil
	}}
}

func folderSettings(o *Options) []setting.Setting {
	return append(append([]setting.Setting{
		{Name: "size", Default: "224", Value: &o.Size, Most: 1 << 14},
		{Name: "channels", Default: "3", Value: &o.Channels, Most: 3},
		{Name: "scale", Default: "none", Value: &o.Augment.Scale},
	}, imageSettings(o, "ImageNet's")...), holdout(o), seed(&o.Seed))
}

func npySettings(o *Options) []setting.Setting {
	return append(imageSettings(o, "none"), classCount(o), holdout(o), seed(&o.Seed))
}

func tokenSettings(o *Options) []setting.Setting {
	return []setting.Setting{choice("type", "uint16", map[string]int{"uint16": 2, "uint32": 4},
		&o.TokenBytes),
		classCount(o), holdout(o)}
}

func textSettings(o *Options) []setting.Setting {
	return []setting.Setting{text("tokenizer", "none, bytes",
		"the path of a tokenizer.json, or of a directory with vocab.json and merges.txt", &o.Tokenizer),
		holdout(o)}
}

func jsonlSettings(o *Options) []setting.Setting {
	j := &o.JSONL
	return append(textSettings(o), seed(&o.Seed), setting.Setting{Name: "apart", Default: "0", Value: &j.Apart},
		text("begin", "none", "a token before each text", &j.Begin),
		text("end", "<|endoftext|> or its like", "a token after each text", &j.End))
}

func csvSettings(o *Options) []setting.Setting {
	return []setting.Setting{
		text("target", "the last column", "the name of a column, or its number from 1", &o.CSV.Target),
		choice("task", "by the targets", map[string]Task{string(Classification): Classification,
			string(Regression): Regression}, &o.CSV.Task),
		{Name: "header", Default: "1 if the first line differs from the columns below it",
			Value: func(text string) error {
				o.CSV.Header = new(bool)
				return setting.Setting{Value: o.CSV.Header}.Read(text)
			}},
		choice("separator", "comma", map[string]rune{"comma": ',', "semicolon": ';', "tab": '\t'},
			&o.CSV.Separator),
		{Name: "standardise", Default: "0", Value: &o.CSV.Standardise}, holdout(o), seed(&o.Seed),
	}
}

func syntheticSettings(o *Options) []setting.Setting {
	s := &o.Synthetic
	return []setting.Setting{
		{Name: "size", Default: "28", Value: func(text string) error {
			err := setting.Setting{Value: &s.Width, Most: 1 << 14}.Read(text)
			s.Height = s.Width
			return err
		}},
		{Name: "channels", Default: "1", Value: &s.Channels, Most: 1 << 12},
		{Name: "classes", Default: "10", Value: &s.Classes, Most: 1 << 20},
		{Name: "train", Default: "1024", Value: &s.Train, Most: disk.MaxSamples},
		{Name: "test", Default: "256", Value: &s.Test, Most: disk.MaxSamples},
		seed(&s.Seed),
	}
}
