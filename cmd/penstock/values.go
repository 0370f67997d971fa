package main

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"penstock.example/internal/arg"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// value is a flag whose text is read, and refused, when the command line is parsed. read stores
// what the text says.
type value struct {
	text  string
	read  func(text string) error
	words []string      // what it may be, where that is one of some words
	path  bool          // it names a file or a directory
	shown func() string // what is said of it, if not the text
}

func (v *value) String() string {
	if v.shown != nil {
		return v.shown()
	}
	return v.text
}
func (v *value) Type() string { return "" }
func (v *value) Set(text string) error {
	err := v.read(text)
	if err == nil {
		v.text = text
	}
	return err
}

// whole is a flag of a whole number from least to most.
func whole[T int | int64](s *pflag.FlagSet, to *T, name string, otherwise, least, most T, usage string) {
	*to = otherwise
	s.Var(&value{text: fmt.Sprint(otherwise), read: func(text string) error {
		n, err := strconv.ParseInt(text, 10, 64)
		switch {
		case errors.Is(err, strconv.ErrSyntax):
			return fmt.Errorf("want a whole number, at least %d", least)
		case n < int64(least):
			return fmt.Errorf("want at least %d", least)
		case n > int64(most):
			return fmt.Errorf("want at most %d", most)
		}
		*to = T(n)
		return nil
	}}, name, usage)
}

// count is a flag of a whole number above 0. Left out it is otherwise, which may be 0.
func count[T int | int64](s *pflag.FlagSet, to *T, name string, otherwise T, usage string) {
	whole(s, to, name, otherwise, 1, math.MaxInt32, usage)
}

// amount is a flag of a number from 0 to below an end, which may be infinite.
func amount(s *pflag.FlagSet, to *float64, name string, end float64, usage string) {
	s.Var(&value{text: "0", read: func(text string) error {
		x, err := strconv.ParseFloat(text, 64)
		switch {
		case err == nil && x >= 0 && x < end:
		case math.IsInf(end, 0):
			return errors.New("want a finite number that is not negative")
		default:
			return fmt.Errorf("want a number from 0 to below %v", end)
		}
		*to = x
		return nil
	}}, name, usage)
}

// duration is a flag of a time above 0.
func duration(s *pflag.FlagSet, to *time.Duration, name, usage string) {
	s.Var(&value{read: func(text string) error {
		d, err := time.ParseDuration(text)
		if err != nil || d <= 0 {
			return errors.New("want a time with its unit, such as 90s or 10m")
		}
		*to = d
		return nil
	}}, name, usage)
}

// word is a flag of one of some words.
func word(s *pflag.FlagSet, to *string, name, otherwise, usage string, words ...string) {
	*to = otherwise
	s.Var(&value{text: otherwise, words: words, read: func(text string) error {
		if !slices.Contains(words, text) {
			return errors.New(arg.OneOf(text, words))
		}
		*to = text
		return nil
	}}, name, usage)
}

// gpuFlags say how GPUs compute. Verbs that train on them and verbs that measure for that have the same.
type gpuFlags struct{ deterministic, tf32 bool }

func (f *gpuFlags) register(s *pflag.FlagSet) {
	s.BoolVar(&f.deterministic, "deterministic", true, "have GPUs compute the same bits each time, which costs speed; CPUs always do")
	s.BoolVar(&f.tf32, "tf32", false, "have GPUs multiply and convolve float32 in TF32, which is faster and has 10 bits of mantissa")
}

// apply comes before anything is computed.
func (f gpuFlags) apply() {
	torch.SetDeterministic(f.deterministic)
	torch.SetTF32(f.tf32)
}

// autocastFlag is --autocast, which alone is bfloat16.
func autocastFlag(s *pflag.FlagSet, to *torch.Autocast, usage string) {
	words := []string{torch.AutocastOff.String(), torch.AutocastBFloat16.String(), torch.AutocastFloat16.String()}
	s.Var(&value{words: words, shown: func() string { return to.String() }, read: func(text string) (err error) {
		switch text {
		case "true":
			*to = torch.AutocastBFloat16
		case "false":
			*to = torch.AutocastOff
		default:
			if *to, err = torch.ParseAutocast(text); err != nil {
				return errors.New(arg.OneOf(text, words))
			}
		}
		return nil
	}}, "autocast", usage+", in `TYPE` bfloat16, or float16 as --autocast=float16")
	s.Lookup("autocast").NoOptDefVal = torch.AutocastBFloat16.String()
}

// size is a flag of a number of bytes above 0.
func size(s *pflag.FlagSet, to *int64, name, usage string) {
	s.Var(&value{read: func(text string) (err error) {
		if *to, err = arg.ParseBytes(text); err == nil && *to < 1 {
			err = errors.New("want more than 0 bytes, such as 700MiB")
		}
		return err
	}}, name, usage)
}

// path is a flag of a file's name.
func path(s *pflag.FlagSet, to *string, name, usage string) {
	s.Var(&value{path: true, read: func(text string) error {
		if *to = text; text == "" {
			return errors.New("want a path, or the flag left out")
		}
		return nil
	}}, name, usage)
}

// list is a flag of elements with commas between.
func list[T any](s *pflag.FlagSet, to *[]T, name, usage string, read func(word string) (T, error)) {
	s.Var(&value{read: func(text string) error {
		*to = nil
		words := strings.Split(text, ",")
		for i, word := range words {
			x, err := read(strings.TrimSpace(word))
			if err != nil && len(words) == 1 {
				return err
			}
			if err != nil {
				return fmt.Errorf("%q, element %d: %w", word, i, err)
			}
			*to = append(*to, x)
		}
		return nil
	}}, name, usage)
}

// several is a flag that may be given several times, of an element each time.
func several[T any](s *pflag.FlagSet, to *[]T, name, usage string, read func(text string) (T, error)) {
	s.Var(&repeated{read: func(text string) error {
		x, err := read(text)
		if err == nil {
			*to = append(*to, x)
		}
		return err
	}, clear: func() { *to = nil }}, name, usage)
}

// repeated is the value of a flag that may be given several times.
type repeated struct {
	texts []string
	read  func(text string) error // adds an element
	clear func()                  // removes all
}

func (r *repeated) String() string { return strings.Join(r.texts, ",") }
func (r *repeated) Type() string   { return repeatedType }
func (r *repeated) Append(text string) error {
	err := r.read(text)
	if err == nil {
		r.texts = append(r.texts, text)
	}
	return err
}
func (r *repeated) Set(text string) error { return r.Append(text) }
func (r *repeated) GetSlice() []string    { return r.texts }
func (r *repeated) Replace(texts []string) error {
	r.texts = nil
	r.clear()
	for _, text := range texts {
		if err := r.Append(text); err != nil {
			return err
		}
	}
	return nil
}

// repeatedType is the type of flags that may be given several times, of package pflag's own too.
const repeatedType = "stringArray"

// layers reads the number of layers of a stage.
func layers(word string) (int, error) {
	n, err := strconv.Atoi(word)
	switch {
	case errors.Is(err, strconv.ErrRange):
		return 0, errors.New("out of range; want numbers of layers, such as 5,6")
	case err != nil:
		return 0, errors.New("want numbers of layers, such as 5,6")
	}
	return n, nil
}

// device reads the name of a device.
func device(word string) (torch.Device, error) {
	d, err := torch.ParseDevice(word)
	if err != nil {
		return d, errors.New(message(err))
	}
	return d, nil
}

// unread is the usage error of a flag that could not be read.
func unread(cmd *cobra.Command, err error) error {
	var value *pflag.InvalidValueError
	if errors.As(err, &value) {
		cause := errors.Unwrap(value)
		var number *strconv.NumError
		if errors.As(cause, &number) { // flags of package pflag's own types
			cause = map[string]error{"ParseBool": errors.New("want true or false"),
				"ParseInt": errors.New("want a whole number"), "ParseUint": errors.New("want a whole number that is not negative")}[number.Func]
		}
		return badUsage("--%s %s: %w; see %s --help", value.GetFlag().Name, quoted(value.GetValue()), cause, cmd.CommandPath())
	}
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) {
		var flags []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { flags = append(flags, f.Name) })
		if near := arg.Nearest(unknown.GetSpecifiedName(), flags); near != "" {
			return badUsage("%w; did you mean --%s? see %s --help", err, near, cmd.CommandPath())
		}
	}
	return badUsage("%w; see %s --help", err, cmd.CommandPath())
}

// quoted is a flag's value as it was typed, in quotes if it is a word.
func quoted(text string) string {
	if strings.Trim(text, "0123456789.,:+-eE") == "" && text != "" || strings.Contains(text, ",") || strings.Contains(text, ":") {
		return text
	}
	if _, err := strconv.ParseFloat(text, 64); err == nil {
		return text
	}
	return strconv.Quote(text)
}

// flagOfSetting is the flag that sets a field of a configuration.
var flagOfSetting = map[string]string{
	"Balance": "balance", "Devices": "devices", "Chunks": "chunks", "Checkpoint": "checkpoint", "Threads": "threads",
	"Optimizer": "optimizer", "LR": "lr", "Momentum": "momentum", "Nesterov": "nesterov", "WeightDecay": "weight-decay",
	"Schedule": "schedule", "WarmupSteps": "warmup", "TotalSteps": "schedule-steps", "Repeats": "repeats",
	"MostUnits": "max-units", "Stages": "stages", "Batch": "batch",
}

// inFlags turns the refusal of a setting into a usage error that names the flag in place of the
// field. Other errors stay as they are.
func inFlags(s *pflag.FlagSet, err error) error {
	var e *pipe.ConfigError
	if !errors.As(err, &e) {
		return err
	}
	flag := s.Lookup(flagOfSetting[e.Field])
	if flag == nil {
		return badUsage("%s", message(err))
	}
	value := flag.Value.String()
	advice := e.Remedy
	if e.Problem != "" {
		problem := message(errors.New(e.Problem)) // a schedule says its own name, which is the value
		advice = strings.TrimPrefix(problem, value+": ") + "; " + e.Remedy
	}
	advice = strings.Replace(advice, "balance.Partition finds a balance", "left out, layers are timed and cut evenly", 1)
	advice = strings.Replace(advice, "other Balance, Devices or Chunks", "other --stages, --balance, --devices or --chunks", 1)
	if value == "" {
		value = "left out"
	}
	return badUsage("--%s %s: %s", flag.Name, value, advice)
}
