package main

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"penstock/internal/launch"
)

// launchFlags is the command line of penstock launch up to its "--".
type launchFlags struct {
	processes, nodes, nodeRank, restarts int
	rendezvous                           string
}

func newLaunch() *cobra.Command {
	var flags launchFlags
	cmd := &cobra.Command{
		Use:   "launch --processes N [flags] -- train ...",
		Short: "Start the processes of a training run on this machine",
		Long: `Start the processes that share a training run, and end them together.

Each gets its rank by torchrun's environment variables, and a common secret in
PENSTOCK_TOKEN. Standard output is that of rank 0. What processes write to standard error,
and the others to standard output, goes to standard error with the rank in
front of each line.

When a process fails the others are ended, and launch exits with its exit code,
or 1 if a signal ended it. Ctrl-C or SIGTERM lets all finish their step and save;
a second one ends all at once. With --restarts a run that fails is started
again, from its newest checkpoint if it has an --out; a wrong command line is not.

On several machines, run the same command on each with --rendezvous, an address of
the first that the others reach, --nodes, a --node-rank of its own, and the same
PENSTOCK_TOKEN.`,
		Example: `  penstock launch --processes 2 -- train --model resnet20 --data fashion-mnist --stages 2 --out out/fashion
  penstock launch --processes 4 --restarts 3 -- train --model gpt --data text --data-dir shakespeare.txt --out out/gpt
  penstock launch --processes 1 --nodes 2 --node-rank 1 --rendezvous 10.0.0.1:29500 -- train --model mlp --data synthetic`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.ArgsLenAtDash() != 0 || len(args) == 0 || args[0] != "train" {
				return badUsage("launch starts penstock train: want penstock launch --processes %d -- train ...; see penstock launch --help", flags.processes)
			}
			return flags.run(cmd, args)
		},
	}
	flags.register(cmd)
	return cmd
}

func (f *launchFlags) register(cmd *cobra.Command) {
	s := cmd.Flags()
	s.SortFlags = false
	count(s, &f.processes, "processes", 1, "`N` processes on this machine")
	whole(s, &f.restarts, "restarts", 0, 0, 1<<31-1, "start a run that fails again, up to `N` times (default not)")
	count(s, &f.nodes, "nodes", 1, "`N` machines on which launch is run, each with as many --processes")
	whole(s, &f.nodeRank, "node-rank", 0, 0, 1<<31-1, "`R` number of this machine, from 0")
	address(s, &f.rendezvous, "rendezvous", "`HOST:PORT` of the first machine at which processes meet (default: a free port of this machine's loopback interface)")
}

// address is a flag of a host and a port.
func address(s *pflag.FlagSet, to *string, name, usage string) {
	s.Var(&value{read: func(text string) error {
		host, port, err := net.SplitHostPort(text)
		if n, bad := strconv.ParseUint(port, 10, 16); err != nil || bad != nil || host == "" || n == 0 {
			return errors.New("want HOST:PORT, such as 10.0.0.1:29500")
		}
		*to = text
		return nil
	}}, name, usage)
}

// token is the environment variable of the secret that the processes of a run share.
const token = "PENSTOCK_TOKEN"

// launchedBy is the environment variable in which a process finds the command line of launch, to say
// how to go on.
const launchedBy = "PENSTOCK_LAUNCHED_BY"

// check checks flags against each other.
func (f *launchFlags) check() error {
	switch {
	case f.nodeRank >= f.nodes:
		return badUsage("--node-rank %d: there are --nodes %d; want 0 to %d", f.nodeRank, f.nodes, f.nodes-1)
	case f.nodes > 1 && f.rendezvous == "":
		return badUsage("--nodes %d needs --rendezvous HOST:PORT, an address of the first machine that the others reach", f.nodes)
	case f.nodes > 1 && os.Getenv(token) == "":
		return badUsage("--nodes %d needs the environment variable %s, a secret that is the same on all machines, such as openssl rand -hex 32 prints", f.nodes, token)
	}
	return nil
}

// run starts the processes with the command line of train, and again after failures.
func (f *launchFlags) run(cmd *cobra.Command, train []string) error {
	if err := f.check(); err != nil {
		return err
	}
	secret := os.Getenv(token)
	if secret == "" {
		var random [32]byte
		rand.Read(random[:]) // which never fails
		secret = hex.EncodeToString(random[:])
	}
	first, err := f.job(train, secret, 0)
	if err != nil {
		return err
	}
	if err := checkTraining(train[1:], first.Processes[0].Env); errors.Is(err, pflag.ErrHelp) {
		return newHelp().RunE(cmd, []string{"train"})
	} else if err != nil {
		return err
	}
	ctx, stderr := cmd.Context(), cmd.ErrOrStderr()
	for restart := 0; ; restart++ {
		job, err := f.job(train, secret, restart)
		if err != nil {
			return err
		}
		job.Stdout, job.Stderr = fileOf(cmd.OutOrStdout()), stderr
		err = job.Run(ctx)
		var failure *launch.Failure
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return errors.New("interrupted")
		case !errors.As(err, &failure) || failure.Code == exitUsage || restart == f.restarts:
			return err
		}
		fmt.Fprintf(stderr, "penstock: %s; starting again, restart %d of %d\n", message(err), restart+1, f.restarts)
	}
}

// checkTraining refuses a command line of train that its processes would refuse, so that it is said
// once. The error of --help is pflag.ErrHelp.
func checkTraining(args, environment []string) error {
	var flags trainFlags
	train := &cobra.Command{Use: "train"}
	(&cobra.Command{Use: "penstock"}).AddCommand(train)
	flags.register(train)
	s := train.Flags()
	if err := s.Parse(args); errors.Is(err, pflag.ErrHelp) {
		return err
	} else if err != nil {
		return unread(train, err)
	}
	if err := noArguments(train, s.Args()); err != nil {
		return err
	}
	for _, name := range []string{"rank", "processes", "rendezvous"} {
		if s.Changed(name) {
			return badUsage("--%s %s: launch says which process is which; want it left out after train", name, s.Lookup(name).Value)
		}
	}
	_, err := flags.plan(s, func(name string) string {
		for _, assignment := range slices.Backward(environment) {
			if text, ok := strings.CutPrefix(assignment, name+"="); ok {
				return text
			}
		}
		return ""
	})
	return err
}

// job makes the job of a start.
func (f *launchFlags) job(train []string, secret string, restart int) (launch.Job, error) {
	program, err := os.Executable()
	if err != nil {
		return launch.Job{}, fmt.Errorf("finding the program to start: %w", err)
	}
	at := f.rendezvous
	if at == "" {
		if at, err = freeAddress(); err != nil {
			return launch.Job{}, err
		}
	}
	host, port, err := net.SplitHostPort(at)
	if err != nil {
		return launch.Job{}, err
	}
	var job launch.Job
	for local := range f.processes {
		rank := f.nodeRank*f.processes + local
		job.Processes = append(job.Processes, launch.Process{
			Rank: rank, Path: program, Args: train,
			Env: append(withoutTorchrun(os.Environ()),
				fmt.Sprintf("RANK=%d", rank), fmt.Sprintf("WORLD_SIZE=%d", f.processes*f.nodes),
				fmt.Sprintf("LOCAL_RANK=%d", local), fmt.Sprintf("LOCAL_WORLD_SIZE=%d", f.processes),
				"MASTER_ADDR="+host, "MASTER_PORT="+port, fmt.Sprintf("TORCHELASTIC_RESTART_COUNT=%d", restart), token+"="+secret,
				launchedBy+"="+shellQuoted(os.Args)),
		})
	}
	return job, nil
}

// torchrunVariables say which process this one is.
var torchrunVariables = []string{"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
	"TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RESTART_COUNT"}

// withoutTorchrun is an environment without what it says of this process.
func withoutTorchrun(environment []string) []string {
	return slices.DeleteFunc(environment, func(assignment string) bool {
		name, _, _ := strings.Cut(assignment, "=")
		return name == token || slices.Contains(torchrunVariables, name)
	})
}

// freeAddress is an address of the loopback interface that nobody listens at.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("finding a free port: %w", err)
	}
	return l.Addr().String(), l.Close()
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
