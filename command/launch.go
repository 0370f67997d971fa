package command

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"penstock.example/internal/launch"
	"penstock.example/internal/option"
)

func newLaunch() *cobra.Command {
	var processes, restarts int
	cmd := &cobra.Command{
		Use:   "launch --processes N [flags] -- train|eval ...",
		Short: "Start the processes of a training run on this machine",
		Long: `Start the processes of penstock train or eval on this machine, and end them together.

Each process gets its rank by the environment variables of torchrun, and a common secret
in PENSTOCK_TOKEN. Standard output is rank 0's. All other output goes to standard error,
with the rank in front of a line. A signal goes to all processes. If a process fails,
launch ends the others and exits with its exit code, or with 1 if a signal ended it.
--restarts goes on from the newest checkpoint in --out, but not after exit code 64.

On several machines, start penstock train by torchrun, srun, mpirun or Kubernetes.`,
		Example: `  penstock launch --processes 2 -- train --model resnet20 --data fashion-mnist --stages 2
  penstock launch --processes 4 --restarts 3 -- train --plan plan.json --out out/gpt`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 || args[0] != "train" && args[0] != "eval" {
				return badUsage("launch starts penstock train or eval: want penstock launch --processes %d "+
					"-- train ...", processes)
			}
			return launchRun(cmd, processes, restarts, args)
		},
	}
	s := cmd.Flags()
	s.SetInterspersed(false) // what follows train is train's, also without "--"
	s.SortFlags = false
	option.Count(s, &processes, "processes", 1, "`N` processes")
	option.Whole(s, &restarts, "restarts", 0, 0, 1<<31-1, "`N` times to start a failed run again, at most")
	return cmd
}

// token is the environment variable of the secret that the processes of a run share.
const token = "PENSTOCK_TOKEN"

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
	stdout := cmd.OutOrStdout()
	if o, ok := stdout.(*output); ok {
		if f, ok := o.to.(*os.File); ok { // rank 0 writes to the file itself
			stdout = f
		}
	}
	job := launch.Job{Path: program, Args: train, Stdout: stdout, Stderr: stderr, Restarts: restarts,
		OnRestart: func(restart int, after *launch.Failure) {
			fmt.Fprintf(stderr, "%s: %s; starting again, restart %d of %d\n", ownName, message(after),
				restart, restarts)
		}}
	common := append(os.Environ(), token+"="+cmp.Or(os.Getenv(token), rand.Text()))
	for rank := range processes {
		r, n := strconv.Itoa(rank), strconv.Itoa(processes)
		job.Env = append(job.Env, append(slices.Clip(common), "RANK="+r, "WORLD_SIZE="+n, "LOCAL_RANK="+r,
			"LOCAL_WORLD_SIZE="+n, "MASTER_ADDR=127.0.0.1", fmt.Sprint("MASTER_PORT=", port.Number),
			"TORCHELASTIC_USE_AGENT_STORE=")) // an agent's store is at another address
	}
	if err := checkLine(train, job.Env[0]); err != nil {
		return err
	}
	losesWork.Store(true)
	if err = job.Run(cmd.Context()); err != nil && cmd.Context().Err() != nil {
		return errors.New("interrupted")
	}
	return err
}

// checkLine returns the error of a command line that every process would refuse.
func checkLine(args, environment []string) error {
	values := map[string]string{}
	for _, variable := range environment { // the last counts
		name, value, _ := strings.Cut(variable, "=")
		values[name] = value
	}
	getenv := func(name string) string { return values[name] }
	root := &cobra.Command{Use: ownName, SilenceErrors: true, SilenceUsage: true}
	root.SetFlagErrorFunc(flagError)
	verb := newTrain(args, getenv, func(*cobra.Command, runOptions) error { return nil })
	if args[0] == "eval" { // flags alone: the rest is in the checkpoint
		verb = newEval()
		verb.RunE = func(*cobra.Command, []string) error { return nil }
	}
	root.AddCommand(verb)
	root.SetArgs(args)
	root.SetOut(io.Discard)
	return root.Execute()
}
