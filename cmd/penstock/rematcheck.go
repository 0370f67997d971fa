package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"penstock.example/remat"

	"penstock.example/remat/planfile"
)

func newRematCheck() *cobra.Command {
	return &cobra.Command{
		Use:   "check CHAIN PLAN",
		Short: "Check that a plan does what it says",
		Long: `Carry out the operations of a plan on what the chain says that they cost, and check
that each is allowed, that the plan is complete, and that its peak and its time are
as it says and the peak within its limit. The exit code is 1 if anything does not
hold, and stderr says what and why.

CHAIN and PLAN are files; one of them may be - for standard input.`,
		Example: `  penstock remat check chain.json plan.json
  penstock remat solve chain.json --limit 700MiB --format json | penstock remat check chain.json -`,
		Args: filesNamed("CHAIN", "PLAN"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if isStdin(args[0]) && isStdin(args[1]) {
				return badUsage("CHAIN and PLAN are both -; want at least one of them in a file")
			}
			c, err := readChain(cmd, args[0])
			if err != nil {
				return err
			}
			p, err := readRemat(cmd, args[1], planfile.ParsePlan)
			if err != nil {
				return err
			}
			if err := remat.CheckPlan(c, p); err != nil {
				return fmt.Errorf("the plan does not hold: %s", message(err))
			}
			if !p.Feasible {
				_, err := fmt.Fprintf(cmd.OutOrStdout(),
					"no plan: the limit is %d bytes, at least %d are needed\n", p.Limit, p.Peak)
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(),
				"the plan holds: %d operations, peak %s (%d bytes), time %s\n", len(p.Ops), formatBytes(p.Peak), p.Peak, micros(p.Time))
			return err
		},
	}
}
