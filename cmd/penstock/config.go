package main

import (
	"bytes"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// configName is the file in --out that says how penstock train can be run again.
const configName = "config.toml"

// neverInFiles are flags that a file of flags must not have: they differ between processes, or are no
// options.
var neverInFiles = []string{"config", "help", "rank", "processes", "rendezvous"}

// configurable gives a verb the flag --config FILE.
func configurable(cmd *cobra.Command) *cobra.Command {
	path(cmd.Flags(), new(string), "config", "`FILE` of flags in TOML, such as batch = 64; the command "+
		"line comes first")
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := readConfig(cmd); err != nil {
			return err
		}
		return run(cmd, args)
	}
	return cmd
}

// readConfig sets flags from the file of --config, unless the command line sets them.
func readConfig(cmd *cobra.Command) error {
	s := cmd.Flags()
	file := s.Lookup("config").Value.String()
	if file == "" {
		return nil
	}
	text, err := readInput(cmd, file)
	if err != nil {
		return badUsage("--config %w", err)
	}
	var settings map[string]any
	if _, err = toml.Decode(string(text), &settings); err != nil {
		return badUsage("--config %s: %s", file, strings.TrimPrefix(err.Error(), "toml: "))
	}
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		if s.Lookup(name) == nil || slices.Contains(neverInFiles, name) {
			return badUsage("--config %s: %s is no flag there; want flags of %s, without --", file, name,
				cmd.CommandPath())
		}
		if s.Changed(name) {
			continue
		}
		for _, v := range flagValues(settings[name], s.Lookup(name).Value.Type() == repeatedType) {
			if err := s.Set(name, v); err != nil {
				return badUsage("--config %s: %w", file, flagError(cmd, err))
			}
		}
	}
	return nil
}

// flagValues returns the texts of a flag for a value of a file: the elements of an array joined, or one by
// one if the flag may be repeated.
func flagValues(value any, repeated bool) []string {
	elements, ok := value.([]any)
	if !ok {
		elements = []any{value}
	}
	var texts []string
	for _, e := range elements {
		texts = append(texts, fmt.Sprint(e))
	}
	if repeated {
		return texts
	}
	return []string{strings.Join(texts, ",")}
}

// plainValue is what TOML reads without quotes.
var plainValue = regexp.MustCompile(`^(true|false|-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?)$`)

// effectiveConfig is a file of the flags that a verb was given, by whatever.
func effectiveConfig(cmd *cobra.Command) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# %s --config %s\n", cmd.CommandPath(), configName)
	cmd.Flags().Visit(func(f *pflag.Flag) {
		list, several := f.Value.(pflag.SliceValue)
		switch text := f.Value.String(); {
		case slices.Contains(neverInFiles, f.Name), strings.HasSuffix(f.Name, "resume"): // with this run
		case several:
			_ = toml.NewEncoder(&b).Encode(map[string]any{f.Name: list.GetSlice()}) // texts can be encoded
		case plainValue.MatchString(text):
			fmt.Fprintf(&b, "%s = %s\n", f.Name, text)
		default:
			_ = toml.NewEncoder(&b).Encode(map[string]any{f.Name: text})
		}
	})
	return b.Bytes()
}
