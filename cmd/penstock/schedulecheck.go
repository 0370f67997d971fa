package main

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/spf13/cobra"

	"penstock.example/internal/disk"
	"penstock.example/schedule"
)

func newScheduleCheck() *cobra.Command {
	return &cobra.Command{
		Use:   "check FILE",
		Short: "Check that a program of a pipeline can run",
		Long: `Check that the program in a file can run to its end and gives bit-equal results:
every computation is there once, sends and receives match, nothing comes before
what it needs, all stages have their reduction over replicas or none, gradients are summed in ascending order, and no device waits for
another for ever; and whether it still does where nothing waits on a link, and where
links keep order.

FILE is what penstock schedule --format text prints, or a CSV of
torch.distributed.pipelining, or - for standard input. The exit code is 1 if the
program cannot run, and stderr says why: device, number of the action, action and
reason. It is 2 if the file is no program.`,
		Example: `  penstock schedule check program.txt
  penstock schedule zb-h1 --stages 4 --chunks 8 --format csv | penstock schedule check -`,
		Args: filesNamed("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			name := args[0]
			if isStdin(name) {
				name = "standard input"
			}
			text, err := readInput(cmd, args[0])
			var at *fs.PathError
			switch {
			case errors.Is(err, disk.ErrNotRegular):
				return badUsage("%v; want a file with a program", err)
			case errors.As(err, &at):
				return err // it names the file
			case err != nil:
				return fmt.Errorf("%s: %w", name, err)
			}
			p, err := schedule.Load(string(text))
			if err != nil {
				return badUsage("%s: %s", name, message(err))
			}
			if err := schedule.Check(p, schedule.Limits{}); err != nil {
				return fmt.Errorf("%s: %s", name, message(err))
			}
			links := "on links of any kind"
			switch meet, order := schedule.Check(p, schedule.Limits{Meet: true}), schedule.Check(p, schedule.Limits{InOrder: true}); {
			case meet != nil && order != nil:
				links = "on links that hold values and name them, not on links that meet, nor on links in order"
			case meet != nil:
				links = "on links that hold values, not on links that meet"
			case order != nil:
				links = "on links that name what they carry, not on links in order"
			}
			reduced := ""
			if p.Reduces() {
				reduced = ", gradients reduced over replicas"
			}
			width, _ := terminalWidth(cmd.OutOrStdout())
			_, err = fmt.Fprintln(cmd.OutOrStdout(), wrapped(fmt.Sprintf("the program can run %s: %d stages on %d devices, %d micro-batches%s",
				links, p.Stages, len(p.Workers), p.MicroBatches, reduced), width))
			if err == nil {
				scheduleHeld(cmd.OutOrStdout(), p)
			}
			return err
		},
	}
}
