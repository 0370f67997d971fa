package main

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"penstock.example/internal/launch"
)

func newLaunch() *cobra.Command {
	var processes, restarts int
	cmd := &cobra.Command{
		Use:   "launch --processes N [flags] -- train ...",
		Short: "Start the processes of a training run on this machine",
		Long: `Start the processes that share a training run on this machine, and end them
together.

Each gets its rank by torchrun's environment variables, and a common secret in
PENSTOCK_TOKEN. Standard output is that of rank 0. What processes write to
standard error, and the others to standard output, goes to standard error with
the rank in front of each line.

When a process fails the others are ended, and launch exits with its exit code,
or 1 if a signal ended it. Ctrl-C or SIGTERM lets all finish their step and save;
a second one ends all at once. With --restarts a run that fails is started
again, from its newest checkpoint if it has an --out; one that exits with 2 is not,
as its command line or data would be refused again.

On several machines, torchrun, srun, mpirun or Kubernetes start penstock train.`,
		Example: `  penstock launch --processes 2 -- train --model resnet20 --data fashion-mnist --stages 2 --out out/fashion
  penstock launch --processes 4 --restarts 3 -- train --model gpt --data text --data-dir shakespeare.txt --out out/gpt`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 || args[0] != "train" {
				return badUsage("launch starts penstock train: want penstock launch --processes %d -- "+
					"train ...; "+
					"see penstock launch --help", processes)
			}
			return launchRun(cmd, processes, restarts, args)
		},
	}
	s := cmd.Flags()
	s.SetInterspersed(false) // what follows train is train's, also without "--"
	s.SortFlags = false
	count(s, &processes, "processes", 1, "`N` processes")
	whole(s, &restarts, "restarts", 0, 0, 1<<31-1, "start a run that fails again, up to `N` times "+
		"(default not)")
	return cmd
}

// token is the environment variable of the secret that the processes of a run share.
const token = "PENSTOCK_TOKEN"

// launchRun starts the processes with the command line of train and the variables of torchrun, and again
// after failures.
func launchRun(cmd *cobra.Command, processes, restarts int, train []string) error {
	port, err := launch.KeepPort()
	if err != nil {
		return err
	}
	defer port.Release()
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding the program to start: %w", err)
	}
	stderr := cmd.ErrOrStderr()
	job := launch.Job{Path: program, Args: train, Stdout: fileOf(cmd.OutOrStdout()), Stderr: stderr, Restarts: restarts,
		OnRestart: func(restart int, after *launch.Failure) {
			fmt.Fprintf(stderr, "penstock: %s; starting again, restart %d of %d\n", message(after),
				restart, restarts)
		}}
	common := append(os.Environ(), token+"="+cmp.Or(os.Getenv(token), rand.Text()))
	for rank := range processes {
		r, n := strconv.Itoa(rank), strconv.Itoa(processes)
		job.Env = append(job.Env, append(slices.Clip(common), "RANK="+r, "WORLD_SIZE="+n, "LOCAL_RANK="+r,
			"LOCAL_WORLD_SIZE="+n, "MASTER_ADDR=127.0.0.1", fmt.Sprint("MASTER_PORT=", port.Number),
			"TORCHELASTIC_USE_AGENT_STORE=")) // an agent's store is at another address
	}
	if err = job.Run(cmd.Context()); err != nil && cmd.Context().Err() != nil {
		return errors.New("interrupted")
	}
	return err
}

// fileOf is the file that a writer is, so that a process can have it, or else the writer.
func fileOf(w io.Writer) io.Writer {
	if o, ok := w.(*output); ok {
		if f, ok := o.to.(*os.File); ok {
			return f
		}
	}
	return w
}
