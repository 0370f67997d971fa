package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"penstock.example/internal/arg"
	"penstock.example/internal/launch"
	"penstock.example/torch"
)

// Exit codes.
const (
	exitDone   = 0
	exitFailed = 1            // something went wrong, or a signal ended the run early
	exitUsage  = launch.Usage // the command line is wrong, or what it names: a chain, data, the checkpoint to go on from
)

// usageError is the error of a wrong command line. It is printed as one line: after a page of help
// it would be out of sight.
type usageError struct{ error }

func (e *usageError) Unwrap() error { return e.error }

// badUsage makes a usage error of one line.
func badUsage(format string, args ...any) error {
	return &usageError{fmt.Errorf(format, args...)}
}

// run runs a command line and returns its exit code. Results go to stdout, everything else to
// stderr. When ctx ends, a training run finishes its step, saves and returns.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	out := &output{to: stdout}
	root := newRoot(args)
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(stderr)
	err := addCompletion(root)
	if err == nil {
		err = root.ExecuteContext(ctx)
	}
	if err == nil {
		err = out.err
	}
	if err == nil {
		return exitDone
	}
	tell(stderr, err)
	var usage *usageError
	var launched interface{ ExitCode() int } // of a process of launch
	switch {
	case errors.As(err, &usage):
		return exitUsage
	case errors.As(err, &launched) && launched.ExitCode() > 0:
		return launched.ExitCode()
	}
	return exitFailed
}

// tell writes an error as one line. The stack of a panic follows, as a panic is no user's mistake.
func tell(stderr io.Writer, err error) {
	fmt.Fprintln(stderr, "penstock:", message(err))
	var p *torch.PanicError
	if errors.As(err, &p) {
		fmt.Fprintf(stderr, "\n%s", p.Stack)
	}
}

// newRoot makes the command for a command line.
func newRoot(args []string) *cobra.Command {
	root := &cobra.Command{
		Use:   "penstock",
		Short: "Train neural networks as pipelines of micro-batches",
		Long: `Penstock cuts a network into stages, puts each on a device with a core and a
memory limit of its own, and trains it as a pipeline of micro-batches. The
result does not depend on the cut, to the bit.

penstock completion bash, zsh, fish or powershell writes what lets a shell complete flags and values.

Exit codes: 0 done, 1 failed or interrupted, 2 wrong command line or
input.`,
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
		Version:           ownVersion(),
		Args:              noArguments,
		RunE:              func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), ".FlagUsages", ".FlagUsagesWrapped 80"))
	root.SetVersionTemplate("penstock {{.Version}}\n")
	// For all verbs. Cobra's own messages are of one line and name the flag or argument.
	root.SetFlagErrorFunc(unread)
	root.SetHelpCommand(newHelp())
	root.AddCommand(newTrain(args), newEval(), newPredict(), newExport(), newTokenize(), configurable(newBalance()), configurable(newProfile()), configurable(newPlan()), newRemat(), newSchedule(), newReport(), newCheckpoint(), newModels(),
		newLaunch(), newVersion())
	if len(args) > 0 && strings.HasPrefix(args[0], cobra.ShellCompRequestCmd) { // cobra never frees what it may complete
		completeValues(root)
	}
	fillHelp(root)
	return root
}

// noArguments refuses arguments that are no flags; where there are verbs, it is an unknown verb.
func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	what, remedy := "unexpected argument", ""
	if cmd.HasSubCommands() {
		what = "unknown command"
		var verbs []string
		for _, c := range cmd.Commands() {
			verbs = append(verbs, c.Name())
		}
		remedy = arg.Meant(args[0], verbs)
	}
	return badUsage("%s %q for %q; %ssee %s --help", what, args[0], cmd.CommandPath(), remedy, cmd.CommandPath())
}

// message is an error without the names of packages: users of the command look for the flag, not
// for the package.
func message(err error) string {
	text := err.Error()
	for _, name := range []string{"train: ", "pipe: ", "data: ", "models: ", "optim: ", "torch: ", "trace: ",
		"balance: ", "profile: ", "remat: ", "schedule: ", "search: ", "planner: ", "group: ", "launch: ", "metrics: ", "report: "} {
		text = strings.TrimPrefix(text, name)
	}
	return text
}
