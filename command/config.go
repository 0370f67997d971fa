package command

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"penstock.example/internal/disk"
	"penstock.example/internal/option"
)

const configName = "config.toml"

// ofOneStart are flags that a directory does not keep for the next start.
var ofOneStart = []string{"resume", "autoresume", "changed-data"}

var neverInFiles = []string{"config", "help", "rank", "processes", "rendezvous"}

func configurable(cmd *cobra.Command) *cobra.Command {
	var file string
	option.Path(cmd.Flags(), &file, "config", "`FILE` of default flags in TOML, such as batch = 64")
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		if file != "" {
			err = readConfig(cmd, file)
		}
		if err == nil {
			err = run(cmd, args)
		}
		return err
	}
	return cmd
}

// together are flags of which saved ones count only if none of them is given.
var together = [][]string{{"steps", "epochs"},
	{"stages", "balance", "devices", "schedule", "virtual", "plan", "replicas"}}

func readSaved(cmd *cobra.Command, out string) error {
	file := filepath.Join(out, configName)
	if _, err := os.Stat(file); out == "" || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var without []string
	for _, group := range together {
		if slices.ContainsFunc(group, cmd.Flags().Changed) {
			without = append(without, group...)
		}
	}
	return readConfig(cmd, file, without...)
}

func readConfig(cmd *cobra.Command, file string, without ...string) error {
	s := cmd.Flags()
	settings, err := readParsed(cmd, file, func(text []byte) (settings map[string]any, err error) {
		if len(text) > disk.MaxFlags {
			return nil, fmt.Errorf("it has %d bytes; want at most %d", len(text), disk.MaxFlags)
		}
		return settings, toml.Unmarshal(text, &settings)
	})
	if err != nil {
		return badUsage("--config %w", err)
	}
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		if s.Lookup(name) == nil || slices.Contains(neverInFiles, name) {
			return badUsage("--config %s: %s is no flag there; want flags of %s, without --", file, name,
				cmd.CommandPath())
		}
		if slices.Contains(without, name) {
			continue
		}
		if err := setFlag(s, name, settings[name]); err != nil {
			return badUsage("--config %s: %w", file, disk.Short(flagError(cmd, err)))
		}
	}
	return nil
}

// setFlag sets a flag to a value in TOML, unless the flag is given. The elements of an array are joined by
// commas, or set one by one if the flag may be repeated.
func setFlag(s *pflag.FlagSet, name string, value any) (err error) {
	if s.Changed(name) {
		return nil
	}
	elements, several := value.([]any)
	if !several {
		elements = []any{value}
	}
	var texts []string
	for _, e := range elements {
		texts = append(texts, fmt.Sprint(e))
	}
	if s.Lookup(name).Value.Type() != option.Repeated {
		texts = []string{strings.Join(texts, ",")}
	}
	for _, text := range texts {
		err = cmp.Or(err, s.Set(name, text))
	}
	return err
}

// plainValue matches values that TOML has without quotes.
var plainValue = regexp.MustCompile(`^(true|false|-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?)$`)

// effectiveConfig returns the flags that were given, as a file for --config.
func effectiveConfig(cmd *cobra.Command) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# %s --config %s\n", cmd.CommandPath(), configName)
	cmd.Flags().Visit(func(f *pflag.Flag) {
		list, several := f.Value.(pflag.SliceValue)
		switch text := f.Value.String(); {
		case slices.Contains(neverInFiles, f.Name), slices.Contains(ofOneStart, f.Name):
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
