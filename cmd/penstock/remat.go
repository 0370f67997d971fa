package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"penstock.example/remat"
	"penstock.example/remat/planfile"
)

func newRemat() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "remat",
		Short: "Plan what to keep and what to compute again under a memory limit",
		Long: `Plan what to keep and what to compute again, so that a step of training stays
under a number of bytes at the least time.

A chain is a file that says what each layer costs: times of forward and backward,
bytes of the output, of what is saved for the backward, of gradients and
temporaries. A plan is a list of operations on the layers. The limit is for all
that the chain counts: the input, activations, gradients and temporaries.

  {"version":1,
  "input_bytes":602112,
  "layers":[
  {"name":"conv1","forward_us":812.5,"backward_us":1650,"output_bytes":3211264,
   "saved_bytes":3211264,"forward_tmp_bytes":0,"backward_tmp_bytes":0}
  ],
  "loss":{"backward_us":3.5,"tmp_bytes":0}}`,
		Example: `  penstock remat solve chain.json --limit 700MiB --out plan.json
  penstock remat explain chain.json --limit 700MiB
  penstock remat curve chain.json --out curve.svg`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newRematSolve(), newRematExplain(), newRematCompare(), newRematCurve(), newRematCheck())
	return cmd
}

// filesNamed refuses anything but one argument for each of these.
func filesNamed(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < len(names):
			return badUsage("%s is missing for %q; see %s --help", names[len(args)], cmd.CommandPath(), cmd.CommandPath())
		case len(args) > len(names):
			return badUsage("unexpected argument %q for %q; see %s --help", args[len(names)], cmd.CommandPath(), cmd.CommandPath())
		}
		for i, arg := range args {
			if arg == "" {
				return badUsage("%s is an empty name; want a file, or - for standard input", names[i])
			}
		}
		return nil
	}
}

// readChain reads a chain from a file, or standard input for "-".
func readChain(cmd *cobra.Command, path string) (remat.Chain, error) {
	return readRemat(cmd, path, planfile.ParseChain)
}

// readRemat reads a file. What is wrong in it is a usage error.
func readRemat[T any](cmd *cobra.Command, path string, parse func([]byte) (T, error)) (T, error) {
	var zero T
	text, err := readInput(cmd, path)
	if err != nil {
		return zero, err
	}
	value, err := parse(text)
	if err != nil {
		return zero, badUsage("%s: %s", inputName(path), message(err))
	}
	return value, nil
}

// tableOrJSON is the flag --format of verbs that print a table.
func tableOrJSON(s *pflag.FlagSet, to *string, usage string) {
	word(s, to, "format", "table", "`FORMAT` of the output: "+usage, "table", "json")
}

// limitFlag is the flag --limit, which is needed.
func limitFlag(cmd *cobra.Command, to *int64) {
	size(cmd.Flags(), to, "limit", "most memory, as a `SIZE` such as 700MiB")
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if *to == 0 {
			return badUsage("--limit is needed: the most memory, such as 700MiB")
		}
		return nil
	}
}

// noPlanError is that no plan stays under a limit.
func noPlanError(limit int64, least remat.LeastLimit, c remat.Chain) error {
	of := "the loss"
	if least.Op.Kind != remat.LossStep {
		of = fmt.Sprintf("layer %d, %s, in %v", least.Op.Layer, c.Layers[least.Op.Layer].Name, least.Op.Kind)
	}
	return fmt.Errorf("no plan stays under %s (%d bytes); the least is %s (%d bytes), which %s sets: it needs %s",
		formatBytes(limit), limit, formatBytes(least.Bytes), least.Bytes, of, partsOf(least.Parts))
}

// interruptible puts words to what a signal ended.
func interruptible(what string, run func(cmd *cobra.Command, args []string) error) func(cmd *cobra.Command, args []string) error {
	return func(cmd *cobra.Command, args []string) error {
		err := run(cmd, args)
		if stop := cmd.Context().Err(); stop != nil && errors.Is(err, stop) {
			return fmt.Errorf("interrupted while %s; nothing is written", what)
		}
		return err
	}
}
