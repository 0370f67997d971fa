package main

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"penstock.example/internal/arg"
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

// fillHelp makes the texts about a verb, and those below it, fit a terminal of the usual width.
func fillHelp(cmd *cobra.Command) {
	cmd.Long, cmd.Example = filled(cmd.Long, usualWidth), continued(cmd.Example, usualWidth)
	for _, sub := range cmd.Commands() {
		fillHelp(sub)
	}
}

// continued breaks commands of the shell that are longer than a line, before a flag or a pipe.
func continued(text string, width int) string {
	const more, indent = ` \`, "      "
	var out []string
	for line := range strings.SplitSeq(text, "\n") {
		for len(line) > width {
			head := line[:width-len(more)]
			at := max(strings.LastIndex(head, " --"), strings.LastIndex(head, " | "))
			if at <= len(indent) {
				break
			}
			out, line = append(out, line[:at]+more), indent+line[at+1:]
		}
		out = append(out, line)
	}
	return strings.Join(out, "\n")
}

// broken is a text in pieces of at most room characters. The sign for per cent stays with its number.
func broken(text string, room int) (pieces []string, ok bool) {
	for utf8.RuneCountInString(text) > room {
		runes := []rune(text)
		at := room
		for at > 0 && runes[at-1] != ',' && (runes[at] != ' ' || at+1 < len(runes) && runes[at+1] == '%') {
			at--
		}
		if at == 0 {
			return nil, false
		}
		pieces = append(pieces, string(runes[:at]))
		text = strings.TrimPrefix(string(runes[at:]), " ")
	}
	return append(pieces, text), true
}

// wrapped is a text in lines of at most width characters, as far as it has commas and blanks to break at.
func wrapped(text string, width int) string {
	pieces, ok := broken(text, width)
	if !ok {
		return text
	}
	for i := range pieces {
		pieces[i] = strings.TrimRight(pieces[i], " ")
	}
	return strings.Join(pieces, "\n")
}

// filled is a text with its paragraphs in lines as long as they may be. Lines that begin with a blank stay.
func filled(text string, width int) string {
	var out, paragraph []string
	end := func() {
		if paragraph != nil {
			out, paragraph = append(out, wrapped(strings.Join(paragraph, " "), width)), nil
		}
	}
	for line := range strings.SplitSeq(text, "\n") {
		if line == "" || line[0] == ' ' {
			end()
			out = append(out, line)
		} else {
			paragraph = append(paragraph, line)
		}
	}
	end()
	return strings.Join(out, "\n")
}
