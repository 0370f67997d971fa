package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"penstock.example/internal/arg"
	"penstock.example/internal/disk"
)

// configName is the file in --out that says how penstock train can be run again.
const configName = "config.toml"

// neverInFiles are flags that a file of flags does not have: the file itself, what is no setting,
// and what differs from one process of a run to the next.
var neverInFiles = []string{"config", "help", "rank", "processes", "rendezvous"}

// configurable gives a verb the flag --config FILE.
func configurable(cmd *cobra.Command) *cobra.Command {
	var file string
	path(cmd.Flags(), &file, "config", "`FILE` of flags as TOML, such as batch = 64 or balance = [5, 6]; those of the command line come first")
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := readConfig(cmd); err != nil {
			return err
		}
		return run(cmd, args)
	}
	return cmd
}

// plainValue is what TOML reads without quotes.
var plainValue = regexp.MustCompile(`^(true|false|-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?)$`)

// inFiles reports whether a file of flags may have a flag.
func inFiles(name string) bool { return !slices.Contains(neverInFiles, name) }

// readConfig gives the flags that the command line leaves out what the file of --config says.
func readConfig(cmd *cobra.Command) error {
	s := cmd.Flags()
	settings, err := settingsOf(cmd)
	if err != nil {
		return err
	}
	var known []string
	s.VisitAll(func(f *pflag.Flag) {
		if inFiles(f.Name) {
			known = append(known, f.Name)
		}
	})
	file := s.Lookup("config").Value
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		if !slices.Contains(known, name) {
			return badUsage("--config %s: %s is no flag there; %swant flags of %s, without --", file, name, arg.Meant(name, known), cmd.CommandPath())
		}
		if err := setFrom(s, name, settings[name]); err != nil {
			return badUsage("--config %s: %w", file, unread(cmd, err))
		}
	}
	return nil
}

// settingsOf reads the file of --config; nil if there is none.
func settingsOf(cmd *cobra.Command) (settings map[string]any, err error) {
	file := cmd.Flags().Lookup("config").Value.String()
	if file == "" {
		return nil, nil
	}
	text, err := openInput(cmd, file)
	if err != nil {
		var at *fs.PathError
		if errors.As(err, &at) {
			err = at.Err
		}
		return nil, wrongInput(fmt.Errorf("--config %s: %w", file, err))
	}
	_, err = toml.Decode(string(text), &settings)
	var bad toml.ParseError
	switch {
	case errors.As(err, &bad):
		return nil, badUsage("--config %s: line %d: %s", file, bad.Position.Line, bad.Message)
	case err != nil:
		return nil, badUsage("--config %s: %v", file, err)
	}
	return settings, nil
}

// setFrom gives a flag, unless it is set already, a value of a file.
func setFrom(s *pflag.FlagSet, name string, value any) error {
	if s.Changed(name) {
		return nil
	}
	values, err := flagValues(value, s.Lookup(name).Value.Type() == repeatedType)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	for _, v := range values {
		if err == nil {
			err = s.Set(name, v)
		}
	}
	return err
}

// flagValues is what a flag is given for a value of a file: all elements of an array in one, or one by
// one where the flag may be repeated.
func flagValues(value any, repeated bool) ([]string, error) {
	elements, ok := value.([]any)
	if !ok {
		elements = []any{value}
	}
	var texts []string
	for _, e := range elements {
		switch e := e.(type) {
		case string, bool, int64, float64:
			texts = append(texts, fmt.Sprint(e))
		case map[string]any: // as if it were an option of several
			var pairs []string
			for _, key := range slices.Sorted(maps.Keys(e)) {
				pairs = append(pairs, fmt.Sprintf("%s=%v", key, e[key]))
			}
			return nil, fmt.Errorf("a table; want text, as %q", strings.Join(pairs, ","))
		default:
			return nil, fmt.Errorf("%v: want text, a number, true or false, or an array of them", e)
		}
	}
	if repeated {
		return texts, nil
	}
	return []string{strings.Join(texts, ",")}, nil
}

// effectiveConfig is a file of the flags that a verb was given, by whatever.
func effectiveConfig(cmd *cobra.Command) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# %s --config %s\n", cmd.CommandPath(), configName)
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if slices.Contains(neverInFiles, f.Name) || strings.HasSuffix(f.Name, "resume") { // it would go on with this run
			return
		}
		text := tomlText(f.Value.String())
		switch list, ok := f.Value.(pflag.SliceValue); {
		case ok:
			var texts []string
			for _, each := range list.GetSlice() {
				texts = append(texts, tomlText(each))
			}
			text = "[" + strings.Join(texts, ", ") + "]"
		case plainValue.MatchString(f.Value.String()):
			text = f.Value.String()
		}
		fmt.Fprintf(&b, "%s = %s\n", f.Name, text)
	})
	return b.Bytes()
}

// tomlText is a text as TOML quotes it, where Go would write \x for what is no character and \a.
func tomlText(text string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range text {
		switch {
		case r == '"' || r == '\\':
			b.WriteString(`\` + string(r))
		case r < ' ' || r == 0x7f:
			fmt.Fprintf(&b, `\u%04X`, r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String() + `"`
}

// keepConfig writes the flags of the run beside its checkpoints.
func (j *job) keepConfig() error {
	file := filepath.Join(j.out, configName)
	return unwritable("out", j.out, disk.Write(file, func(w io.Writer) error { _, err := w.Write(j.effective); return err }))
}
