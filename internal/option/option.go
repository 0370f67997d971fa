// Package option registers flags with checked values, and writes their help and errors.
package option

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"penstock.example/internal/arg"
	"penstock.example/internal/progress"
)

// Value is a flag. Read parses and stores its text.
type Value struct {
	Text  string
	Read  arg.Reader
	Show  func() string // the value that was read; nil is the text as it was typed
	Words []string      // the valid texts; nil is any
	Path  bool          // it names a file or a directory
}

func (v *Value) String() string { return v.Text }
func (v *Value) Type() string   { return "" }
func (v *Value) Set(text string) error {
	err := v.Read(text)
	if v.Text = text; err == nil && v.Show != nil {
		v.Text = v.Show()
	}
	return err
}

// Whole is a flag of a whole number from least to most.
func Whole[T int | int64](s *pflag.FlagSet, to *T, name string, byDefault, least, most T, usage string) {
	*to = byDefault
	s.Var(&Value{Text: fmt.Sprint(byDefault), Read: arg.Whole(to, least, most)}, name, usage)
}

// Count is a flag of a whole number above 0. Its default may be 0.
func Count[T int | int64](s *pflag.FlagSet, to *T, name string, byDefault T, usage string) {
	Whole(s, to, name, byDefault, 1, math.MaxInt32, usage)
}

// Amount is a flag of a number from 0 to below end, which may be infinite.
func Amount(s *pflag.FlagSet, to *float64, name string, end float64, usage string) {
	s.Var(&Value{Text: "0", Show: func() string { return fmt.Sprint(*to) }, Read: arg.Amount(to, end)}, name,
		usage)
}

func Duration(s *pflag.FlagSet, to *time.Duration, name, usage string) {
	s.Var(&Value{Read: func(text string) (err error) {
		if *to, err = time.ParseDuration(text); err != nil || *to <= 0 {
			return errors.New("want a time with its unit, such as 90s or 10m")
		}
		return nil
	}}, name, usage)
}

// Address is a flag of a host and a port. With a default host, the port may be 0.
func Address(s *pflag.FlagSet, to *string, name, defaultHost, usage string) {
	s.Var(&Value{Read: func(text string) error {
		host, port, err := net.SplitHostPort(text)
		host = cmp.Or(host, defaultHost)
		n, bad := net.LookupPort("tcp", port)
		if err != nil || bad != nil || port == "" || !arg.IsHost(host) || n == 0 && defaultHost == "" {
			return errors.New("want HOST:PORT, such as 10.0.0.1:29500")
		}
		*to = net.JoinHostPort(host, port)
		return nil
	}}, name, usage)
}

func Word(s *pflag.FlagSet, to *string, name, byDefault, usage string, words ...string) {
	*to = byDefault
	s.Var(&Value{Text: byDefault, Words: words, Read: arg.Word(to, words...)}, name, usage)
}

func Size(s *pflag.FlagSet, to *int64, name, usage string) {
	s.Var(&Value{Show: func() string { return fmt.Sprint(*to) }, Read: func(text string) (err error) {
		if *to, err = arg.ParseBytes(text); err == nil && *to < 1 {
			err = errors.New("want more than 0 bytes, such as 700MiB")
		}
		return err
	}}, name, usage)
}

func Path(s *pflag.FlagSet, to *string, name, usage string) {
	s.Var(&Value{Path: true, Read: func(text string) error {
		if *to = text; text == "" {
			return errors.New("want a path, or the flag left out")
		}
		return nil
	}}, name, usage)
}

// Joined joins elements with commas, as [List] reads them.
func Joined[T any](list []T) string {
	return strings.ReplaceAll(strings.Trim(fmt.Sprint(list), "[]"), " ", ",")
}

// List is a flag of elements with commas between.
func List[T any](s *pflag.FlagSet, to *[]T, name, usage string, read func(word string) (T, error)) {
	s.Var(&Value{Show: func() string { return Joined(*to) }, Read: func(text string) error {
		*to = nil
		words := strings.Split(text, ",")
		for i, word := range words {
			x, err := read(strings.TrimSpace(word))
			if err != nil && len(words) > 1 {
				err = fmt.Errorf("%q, element %d: %w", word, i, err)
			}
			if err != nil {
				return err
			}
			*to = append(*to, x)
		}
		return nil
	}}, name, usage)
}

// Repeated is the type of pflag's flags that may be repeated.
const Repeated = "stringArray"

// Number reads a number of a list. Its bound keeps sums finite.
func Number(word string) (float64, error) {
	x, err := strconv.ParseFloat(word, 64)
	if err != nil || !(x >= 0 && x <= 1e100) {
		return 0, errors.New("want numbers from 0 to 1e100, such as 0.9,0.999")
	}
	return x, nil
}

func Integer(word string) (int, error) {
	n, err := strconv.Atoi(word)
	if err != nil {
		return 0, errors.New("want whole numbers, such as 5,6")
	}
	return n, nil
}

// Section puts the flags that have no section yet under a title in the help.
func Section(s *pflag.FlagSet, title string) {
	s.VisitAll(func(f *pflag.Flag) {
		if f.Annotations == nil {
			f.Annotations = map[string][]string{"section": {title}}
		}
	})
}

// Help describes flags by section. Flags without one come last.
func Help(s *pflag.FlagSet) string {
	var titles []string
	of := map[string]*pflag.FlagSet{}
	s.VisitAll(func(f *pflag.Flag) {
		title := strings.Join(f.Annotations["section"], "")
		if of[title] == nil {
			of[title] = pflag.NewFlagSet("", pflag.ContinueOnError)
			of[title].SortFlags = s.SortFlags
			titles = append(titles, title)
		}
		of[title].AddFlag(f)
	})
	text := ""
	for _, title := range titles {
		if title != "" {
			text += title + ":\n"
		}
		text += of[title].FlagUsagesWrapped(progress.UsualWidth) + "\n"
	}
	return text
}

// otherNames has our flag for the name of a flag in other programs.
var otherNames = map[string]string{
	"learning-rate": "lr", "scheduler": "lr-schedule", "wd": "weight-decay", "beta1": "betas",
	"beta2": "betas", "batch-size": "batch", "bs": "batch", "micro-batches": "chunks",
	"microbatches": "chunks", "gradient-accumulation-steps": "accumulate", "grad-clip": "clip-norm",
	"max-steps": "steps", "num-epochs": "epochs", "bf16": "autocast", "fp16": "autocast",
	"amp": "autocast", "mixed-precision": "autocast", "recompute": "checkpoint", "gpus": "devices",
	"device": "devices", "workers": "threads", "nproc-per-node": "processes", "world-size": "processes",
	"dataset": "data", "data-path": "data-dir", "output": "out", "output-dir": "out",
	"log-dir": "tensorboard",
}

// Error names the flag, what is wrong with its value, and perhaps the flag that was meant.
func Error(cmd *cobra.Command, err error) error {
	if value := (*pflag.InvalidValueError)(nil); errors.As(err, &value) {
		cause := errors.Unwrap(value)
		if errors.As(cause, new(*strconv.NumError)) { // pflag's own types of numbers
			cause = errors.New("want a " + value.GetFlag().Value.Type())
		}
		return fmt.Errorf("--%s %s: %s; see %s --help", value.GetFlag().Name, quoted(value.GetValue()),
			cause, cmd.CommandPath())
	}
	if unknown := (*pflag.NotExistError)(nil); errors.As(err, &unknown) {
		var flags []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { flags = append(flags, f.Name) })
		name := unknown.GetSpecifiedName()
		near := otherNames[name]
		if !slices.Contains(flags, near) {
			near = arg.Nearest(name, flags)
		}
		if near != "" {
			return fmt.Errorf("%w; did you mean --%s? see %s --help", err, near, cmd.CommandPath())
		}
	}
	return fmt.Errorf("%w; see %s --help", err, cmd.CommandPath())
}

// quoted quotes the value of a flag unless it is a number or a list.
func quoted(text string) string {
	if _, err := strconv.ParseFloat(text, 64); err != nil && !strings.ContainsAny(text, ",:") {
		return strconv.Quote(text)
	}
	return text
}

// Complete lets shells complete the words of flags. Shells complete paths themselves.
func Complete(cmd *cobra.Command) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if v, ok := f.Value.(*Value); ok && !v.Path { // the only error is a second registration
			_ = cmd.RegisterFlagCompletionFunc(f.Name,
				cobra.FixedCompletions(v.Words, cobra.ShellCompDirectiveNoFileComp))
		}
	})
	for _, child := range cmd.Commands() {
		Complete(child)
	}
}
