package command

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
	"penstock.example/torch"
)

// value is a flag. read parses and stores its text.
type value struct {
	text  string
	read  func(text string) error
	show  func() string // the value that was read; nil is the text as it was typed
	words []string      // the valid texts; nil is any
	path  bool          // it names a file or a directory
}

func (v *value) String() string { return v.text }
func (v *value) Type() string   { return "" }
func (v *value) Set(text string) error {
	err := v.read(text)
	if v.text = text; err == nil && v.show != nil {
		v.text = v.show()
	}
	return err
}

// whole is a flag of a whole number from least to most.
func whole[T int | int64](s *pflag.FlagSet, to *T, name string, byDefault, least, most T, usage string) {
	*to = byDefault
	s.Var(&value{text: fmt.Sprint(byDefault), read: func(text string) error {
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

// count is a flag of a whole number above 0. Its default may be 0.
func count[T int | int64](s *pflag.FlagSet, to *T, name string, byDefault T, usage string) {
	whole(s, to, name, byDefault, 1, math.MaxInt32, usage)
}

// amount is a flag of a number from 0 to below end, which may be infinite.
func amount(s *pflag.FlagSet, to *float64, name string, end float64, usage string) {
	s.Var(&value{text: "0", show: func() string { return fmt.Sprint(*to) }, read: func(text string) error {
		x, err := strconv.ParseFloat(text, 64)
		if err == nil && x >= 0 && x < end {
			*to = x
			return nil
		} else if math.IsInf(end, 0) {
			return errors.New("want a finite number that is not negative")
		}
		return fmt.Errorf("want a number from 0 to below %v", end)
	}}, name, usage)
}

// duration is a flag of a time above 0.
func duration(s *pflag.FlagSet, to *time.Duration, name, usage string) {
	s.Var(&value{read: func(text string) (err error) {
		if *to, err = time.ParseDuration(text); err != nil || *to <= 0 {
			return errors.New("want a time with its unit, such as 90s or 10m")
		}
		return nil
	}}, name, usage)
}

// address is a flag of a host and a port. With a default host, the port may be 0.
func address(s *pflag.FlagSet, to *string, name, defaultHost, usage string) {
	s.Var(&value{read: func(text string) error {
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

// word is a flag of one of some words.
func word(s *pflag.FlagSet, to *string, name, byDefault, usage string, words ...string) {
	*to = byDefault
	s.Var(&value{text: byDefault, words: words, read: func(text string) error {
		if !slices.Contains(words, text) {
			return errors.New(arg.OneOf(text, words))
		}
		*to = text
		return nil
	}}, name, usage)
}

// size is a flag of a number of bytes above 0.
func size(s *pflag.FlagSet, to *int64, name, usage string) {
	s.Var(&value{show: func() string { return fmt.Sprint(*to) }, read: func(text string) (err error) {
		if *to, err = arg.ParseBytes(text); err == nil && *to < 1 {
			err = errors.New("want more than 0 bytes, such as 700MiB")
		}
		return err
	}}, name, usage)
}

// path is a flag of a file or a directory.
func path(s *pflag.FlagSet, to *string, name, usage string) {
	s.Var(&value{path: true, read: func(text string) error {
		if *to = text; text == "" {
			return errors.New("want a path, or the flag left out")
		}
		return nil
	}}, name, usage)
}

// joined joins elements with commas, as list reads them.
func joined[T any](list []T) string {
	return strings.ReplaceAll(strings.Trim(fmt.Sprint(list), "[]"), " ", ",")
}

// list is a flag of elements with commas between.
func list[T any](s *pflag.FlagSet, to *[]T, name, usage string, read func(word string) (T, error)) {
	s.Var(&value{show: func() string { return joined(*to) }, read: func(text string) error {
		*to = nil
		words := strings.Split(text, ",")
		for i, word := range words {
			x, err := read(strings.TrimSpace(word))
			if err != nil && len(words) > 1 {
				err = fmt.Errorf("%q, element %d: %s", word, i, message(err))
			}
			if err != nil {
				return err
			}
			*to = append(*to, x)
		}
		return nil
	}}, name, usage)
}

// texts is a flag that may be repeated.
func texts(s *pflag.FlagSet, to *[]string, name, usage string) {
	s.StringArrayVar(to, name, nil, usage)
}

// repeatedType is the pflag type of texts.
const repeatedType = "stringArray"

func number(word string) (float64, error) {
	x, err := strconv.ParseFloat(word, 64)
	if err != nil {
		return 0, errors.New("want numbers, such as 0.9,0.999")
	}
	return x, nil
}

func integer(word string) (int, error) {
	n, err := strconv.Atoi(word)
	if err != nil {
		return 0, errors.New("want whole numbers, such as 5,6")
	}
	return n, nil
}

// gpuFlags say how GPUs compute, in training and in measuring for it.
type gpuFlags struct{ deterministic, tf32 bool }

func (f *gpuFlags) register(s *pflag.FlagSet) {
	s.BoolVar(&f.deterministic, "deterministic", true,
		"have GPUs compute the same bits each time, but slower; CPUs always do")
	s.BoolVar(&f.tf32, "tf32", false, "have GPUs multiply and convolve float32 in TF32: faster, with 10 "+
		"bits of mantissa")
}

// check refuses the flags if no device is a GPU.
func (f gpuFlags) check(s *pflag.FlagSet, devices []torch.Device) error {
	gpu := slices.ContainsFunc(devices, func(d torch.Device) bool { return d.Kind != torch.KindCPU })
	return checkPair(s, gpu, "a GPU among --devices", "deterministic", "tf32")
}

// apply must come before anything is computed.
func (f gpuFlags) apply() {
	torch.SetDeterministic(f.deterministic)
	torch.SetTF32(f.tf32)
}

// autocastFlag is --autocast, which without a value is bfloat16.
func autocastFlag(s *pflag.FlagSet, to *torch.Autocast) {
	words := []string{torch.AutocastOff.String(), torch.AutocastBFloat16.String(),
		torch.AutocastFloat16.String()}
	s.Var(&value{text: words[0], words: words, read: func(text string) (err error) {
		inFile := map[string]string{"true": words[1], "false": words[0]}[text] // autocast = true
		if *to, err = torch.ParseAutocast(cmp.Or(inFile, text)); err != nil {
			return errors.New(arg.OneOf(text, words))
		}
		return nil
	}}, "autocast", "run forwards in `TYPE` bfloat16 or float16 where that is safe; weights stay float32")
	s.Lookup("autocast").NoOptDefVal = words[1]
}

// joinAutocast joins --autocast and a type to one argument, as pflag wants it of a flag with NoOptDefVal.
func joinAutocast(args []string) []string {
	for i := len(args) - 1; i > 0; i-- {
		if _, err := torch.ParseAutocast(args[i]); err == nil && args[i-1] == "--autocast" {
			args = slices.Concat(args[:i-1], []string{"--autocast=" + args[i]}, args[i+1:])
		}
	}
	return args
}

// otherNames has the flags that other programs call so.
var otherNames = map[string]string{"learning-rate": "lr", "batch-size": "batch", "bs": "batch",
	"micro-batches": "chunks", "microbatches": "chunks", "gpus": "devices", "device": "devices",
	"bf16": "autocast", "fp16": "autocast", "amp": "autocast", "mixed-precision": "autocast",
	"output": "out", "output-dir": "out", "dataset": "data", "data-path": "data-dir", "log-dir": "tensorboard",
	"workers": "threads", "nproc-per-node": "processes", "world-size": "processes", "recompute": "checkpoint",
	"scheduler": "lr-schedule", "max-steps": "steps", "num-epochs": "epochs", "grad-clip": "clip-norm",
	"gradient-accumulation-steps": "accumulate", "wd": "weight-decay", "beta1": "betas", "beta2": "betas"}

// section puts the flags that have no section yet under a title in the help.
func section(s *pflag.FlagSet, title string) {
	s.VisitAll(func(f *pflag.Flag) {
		if f.Annotations == nil {
			f.Annotations = map[string][]string{"section": {title}}
		}
	})
}

// flagHelp describes flags by section. Flags without one come last.
func flagHelp(s *pflag.FlagSet) string {
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
		text += of[title].FlagUsagesWrapped(usualWidth) + "\n"
	}
	return text
}

func flagError(cmd *cobra.Command, err error) error {
	if value := (*pflag.InvalidValueError)(nil); errors.As(err, &value) {
		cause := errors.Unwrap(value)
		if errors.As(cause, new(*strconv.NumError)) { // pflag's own types of numbers
			cause = errors.New("want a " + value.GetFlag().Value.Type())
		}
		return badUsage("--%s %s: %s; see %s --help", value.GetFlag().Name, quoted(value.GetValue()),
			message(cause), cmd.CommandPath())
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
			return badUsage("%w; did you mean --%s? see %s --help", err, near, cmd.CommandPath())
		}
	}
	return badUsage("%w; see %s --help", err, cmd.CommandPath())
}

// quoted quotes the value of a flag unless it is a number or a list.
func quoted(text string) string {
	if _, err := strconv.ParseFloat(text, 64); err != nil && !strings.ContainsAny(text, ",:") {
		return strconv.Quote(text)
	}
	return text
}

// completeValues lets shells complete the words of flags. Shells complete paths themselves.
func completeValues(cmd *cobra.Command) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if v, ok := f.Value.(*value); ok && !v.path { // the only error is a second registration
			_ = cmd.RegisterFlagCompletionFunc(f.Name,
				cobra.FixedCompletions(v.words, cobra.ShellCompDirectiveNoFileComp))
		}
	})
	for _, child := range cmd.Commands() {
		completeValues(child)
	}
}
