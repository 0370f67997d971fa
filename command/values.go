package command

import (
	"cmp"
	"errors"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"penstock.example/internal/arg"
	"penstock.example/internal/option"
	"penstock.example/torch"
)

// gpuFlags say how GPUs compute, in training and in measuring for it.
type gpuFlags struct{ deterministic, tf32 bool }

func (f *gpuFlags) register(s *pflag.FlagSet) {
	s.BoolVar(&f.deterministic, "deterministic", true,
		"have GPUs compute the same bits each time, but slower; CPUs always do")
	s.BoolVar(&f.tf32, "tf32", false, "have GPUs multiply and convolve float32 in TF32, which is faster")
}

func (f gpuFlags) check(s *pflag.FlagSet, devices []torch.Device) error {
	gpu := slices.ContainsFunc(devices, func(d torch.Device) bool { return d.Kind != torch.KindCPU })
	return checkPair(s, gpu, "a GPU among --devices", "deterministic", "tf32")
}

// apply must come before anything is computed.
func (f gpuFlags) apply() {
	torch.SetDeterministic(f.deterministic)
	torch.SetTF32(f.tf32)
}

func autocastFlag(s *pflag.FlagSet, to *torch.Autocast) {
	words := []string{"off", "bfloat16", "float16"}
	s.Var(&option.Value{Text: words[0], Words: words, Read: func(text string) (err error) {
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

func flagError(cmd *cobra.Command, err error) error { return badUsage("%w", option.Error(cmd, err)) }

func readDevice(word string) (torch.Device, error) {
	d, err := torch.ParseDevice(word)
	if err != nil {
		err = errors.New(message(err))
	}
	return d, err
}
