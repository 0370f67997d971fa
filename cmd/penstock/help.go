package main

import (
	"fmt"
	"penstock.example/internal/arg"
	"strings"

	"github.com/spf13/cobra"
)

// newHelp is cobra's help, but that an unknown verb is an error.
func newHelp() *cobra.Command {
	return &cobra.Command{
		Use:   "help [VERB]",
		Short: "Help about any verb",
		Long:  "Help about any verb, as VERB --help prints it.",
		RunE: func(cmd *cobra.Command, args []string) error {
			about, rest, err := cmd.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return badUsage("unknown command %q for %q; see %s --help", strings.Join(args, " "),
					cmd.Root().CommandPath(), cmd.Root().CommandPath())
			}
			about.InitDefaultHelpFlag()
			return about.Help()
		},
	}
}

// addCompletion adds cobra's completion, but that an unknown shell is an error. The scripts go to
// where the root's output goes by now.
func addCompletion(root *cobra.Command) error {
	root.InitDefaultCompletionCmd()
	completion, _, err := root.Find([]string{"completion"})
	if err != nil {
		return fmt.Errorf("completion: %w", err)
	}
	var shells []string
	for _, shell := range completion.Commands() {
		shell.Args = noArguments
		shells = append(shells, shell.Name())
	}
	completion.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return badUsage("unknown shell %q for %q; %s", args[0], cmd.CommandPath(), arg.OneOf(args[0], shells))
		}
		return nil
	}
	completion.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	return nil
}
