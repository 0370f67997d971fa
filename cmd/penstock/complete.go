package main

import (
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"penstock.example/models"
	"penstock.example/pipe"
)

// completeValues lets shells complete the values of all flags, and arguments that are names.
func completeValues(cmd *cobra.Command) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if complete := valuesOf(f); complete != nil {
			// The error is of a flag that is not there, or has one already.
			_ = cmd.RegisterFlagCompletionFunc(f.Name, complete)
		}
	})
	if cmd.Name() == "models" {
		cmd.ValidArgsFunction = cobra.FixedCompletions(models.Names(), cobra.ShellCompDirectiveNoFileComp)
	}
	for _, child := range cmd.Commands() {
		completeValues(child)
	}
}

// valuesOf completes a flag's value; nil leaves it to the shell, which completes files.
func valuesOf(f *pflag.Flag) cobra.CompletionFunc {
	const only = cobra.ShellCompDirectiveNoFileComp
	switch f.Name {
	case "schedule": // or a file
		return cobra.FixedCompletions(pipelineSchedules(), cobra.ShellCompDirectiveDefault)
	case "plan":
		return cobra.FixedCompletions([]string{auto}, cobra.ShellCompDirectiveDefault)
	case "checkpoint":
		return cobra.FixedCompletions([]string{string(pipe.Never), string(pipe.ExceptLast), string(pipe.Always), string(pipe.Optimal)}, only)
	case "set":
		return modelSettings
	}
	switch v, ok := f.Value.(*value); {
	case ok && v.words != nil:
		return cobra.FixedCompletions(v.words, only)
	case ok && v.path:
		return nil
	case ok:
		return cobra.NoFileCompletions
	}
	return nil
}

// modelSettings completes the options of the model that the command line names.
func modelSettings(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	const only = cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	name := ""
	if flag := cmd.Flags().Lookup("model"); flag != nil {
		name = flag.Value.String()
	} else if len(args) > 0 {
		name = args[0]
	}
	if !slices.Contains(models.Names(), name) {
		return nil, only
	}
	settings, err := models.Settings(name, models.Options{})
	if err != nil {
		return nil, only
	}
	var all []string
	for _, s := range settings {
		all = append(all, s.Name+"=")
	}
	return all, only
}
