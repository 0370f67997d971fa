package main

import (
	"cmp"
	"context"
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
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"penstock.example/internal/arg"
	"penstock.example/internal/launch"
)

// launchFlags is the command line of penstock launch up to "train", or to "--" before that.
type launchFlags struct {
	processes, nodeRank, restarts int
	nodes                         span
	rendezvous                    string
	joinTimeout, wait             time.Duration
}

func newLaunch() *cobra.Command {
	var flags launchFlags
	cmd := &cobra.Command{
		Use:   "launch --processes N [flags] -- train ...",
		Short: "Start the processes of a training run on this machine",
		Long: `Start the processes that share a training run, and end them together.

Each gets its rank by torchrun's environment variables, and a common secret in
PENSTOCK_TOKEN. Standard output is that of rank 0. What processes write to
standard error, and the others to standard output, goes to standard error with
the rank in front of each line.

When a process fails the others are ended, and launch exits with its exit code,
or 1 if a signal ended it. Ctrl-C or SIGTERM lets all finish their step and save;
a second one ends all at once. With --restarts a run that fails is started
again, from its newest checkpoint if it has an --out; one that exits with 2 is not,
as its command line or data would be refused again.

On several machines, run the same command on each with --rendezvous, an address of
the first that the others reach, --nodes, a --node-rank of its own, and the same
PENSTOCK_TOKEN. The launchers meet at the first before each start, and --restarts
of the first counts.

With --nodes MIN:MAX a start needs MIN machines and takes more that come within
--wait, up to MAX. A machine that dies or gets Ctrl-C is done without, unless it is
the first: the others start again from the newest checkpoint. One that comes later
has the others save and start again with it, which is no restart to be counted;
without --out it waits for the next. Numbers of processes that train cannot be run
with, because of --replicas or --stages, are left out.`,
		Example: `  penstock launch --processes 2 -- train --model resnet20 --data fashion-mnist --stages 2 --out out/fashion
  penstock launch --processes 4 --restarts 3 -- train --model gpt --data text --data-dir shakespeare.txt --out out/gpt
  penstock launch --processes 1 --nodes 2 --node-rank 1 --rendezvous 10.0.0.1:29500 -- train --model mlp --data synthetic
  penstock launch --nodes 2:4 --node-rank 0 --rendezvous 10.0.0.1:29500 --restarts 10 -- train --model mlp --data synthetic --out out/mlp --save-every 50`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 || args[0] != "train" {
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
	s.SetInterspersed(false) // what follows train is train's, also without "--"
	s.SortFlags = false
	count(s, &f.processes, "processes", 1, "`N` processes on this machine")
	whole(s, &f.restarts, "restarts", 0, 0, 1<<31-1, "start a run that fails again, up to `N` times (default not)")
	from(s, &f.nodes, "nodes", "`N|MIN:MAX` machines on which launch is run, each with as many --processes")
	whole(s, &f.nodeRank, "node-rank", 0, 0, 1<<31-1, "`R` number of this machine, from 0")
	address(s, &f.rendezvous, "rendezvous", "`HOST:PORT` of the first machine at which processes meet, and launchers at the next port (default: a free port of this machine's loopback interface)")
	joinTimeout(s, &f.joinTimeout)
	duration(s, &f.wait, "wait", 30*time.Second, "`TIME` that a start waits for more machines than MIN of --nodes")
}

// span is a range of numbers.
type span struct{ least, most int }

// from is a flag of a number or a range of numbers above 0. Left out it is 1.
func from(s *pflag.FlagSet, to *span, name, usage string) {
	*to = span{1, 1}
	s.Var(&value{text: "1", read: func(text string) error {
		least, most, ranged := strings.Cut(text, ":")
		if !ranged {
			most = least
		}
		a, err := strconv.Atoi(least)
		b, bad := strconv.Atoi(most)
		if err != nil || bad != nil || a < 1 || b < a || b > launch.MaxNodes {
			return fmt.Errorf("want a number from 1 to %d, or two as in 2:4", launch.MaxNodes)
		}
		*to = span{a, b}
		return nil
	}}, name, usage)
}

// address is a flag of a host and a port.
func address(s *pflag.FlagSet, to *string, name, usage string) {
	s.Var(&value{read: func(text string) error {
		host, port, err := net.SplitHostPort(text)
		if n, bad := strconv.ParseUint(port, 10, 16); err != nil || bad != nil || !arg.IsHost(host) || n == 0 {
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
	most := f.nodes.most
	switch {
	case f.nodeRank >= most:
		return badUsage("--node-rank %d: there are --nodes %d; want 0 to %d", f.nodeRank, most, most-1)
	case most > 1 && f.rendezvous == "":
		return badUsage("--nodes %d needs --rendezvous HOST:PORT, an address of the first machine that the others reach", most)
	case most > 1 && strings.HasSuffix(f.rendezvous, ":65535"):
		return badUsage("--rendezvous %s: launchers meet at the next port; want one below 65535", f.rendezvous)
	case most > 1 && os.Getenv(token) == "":
		return badUsage("--nodes %d needs the environment variable %s, a secret that is the same on all machines, such as openssl rand -hex 32 prints", most, token)
	}
	return nil
}

// run starts the processes with the command line of train, and again after failures.
func (f *launchFlags) run(cmd *cobra.Command, train []string) error {
	if err := f.check(); err != nil {
		return err
	}
	flags, err := f.checkTraining(train[1:], f.nodes.most)
	if errors.Is(err, pflag.ErrHelp) {
		return newHelp().RunE(cmd, []string{"train"})
	}
	if err != nil && f.nodes.most < 2 {
		return err
	}
	if f.joinTimeout > 0 && flags.joinTimeout == 0 {
		train = append(slices.Clone(train), "--join-timeout", f.joinTimeout.String())
	}
	l := launcher{launchFlags: *f, train: train, secret: os.Getenv(token), refused: err, stdout: fileOf(cmd.OutOrStdout()), stderr: cmd.ErrOrStderr()}
	if l.secret == "" {
		var random [32]byte
		rand.Read(random[:]) // which never fails
		l.secret = hex.EncodeToString(random[:])
	}
	if f.nodes.most > 1 {
		err = l.onNodes(cmd.Context(), flags.out != "")
	} else {
		err = l.alone(cmd.Context())
	}
	switch {
	case l.refused != nil: // whether or not the other machines could be told
		return l.refused
	case err != nil && cmd.Context().Err() != nil:
		return errors.New("interrupted")
	}
	return err
}

// launcher starts the processes of a command line.
type launcher struct {
	launchFlags
	train          []string
	secret         string
	refused        error // why this machine starts nothing, which the others are told
	stdout, stderr io.Writer
}

// say writes a line to standard error.
func (l *launcher) say(text string) { fmt.Fprintf(l.stderr, "penstock: %s\n", text) }

// alone starts the processes of a run that are all on this machine.
func (l *launcher) alone(ctx context.Context) error {
	for restart := 0; ; restart++ {
		err := l.start(ctx, launch.Place{Start: restart, Size: l.processes}, nil)
		var failure *launch.Failure
		switch {
		case err == nil || ctx.Err() != nil || !errors.As(err, &failure) || restart == l.restarts:
			return err
		case failure.Code == launch.Usage:
			return fmt.Errorf("%w%s", err, launch.Hopeless)
		}
		l.say(fmt.Sprintf("%s; starting again, restart %d of %d", message(err), restart+1, l.restarts))
	}
}

// onNodes starts those of this machine, one of several. saves is whether the run has an --out.
func (l *launcher) onNodes(ctx context.Context, saves bool) error {
	host, port, err := net.SplitHostPort(l.rendezvous)
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(port) // which address has checked
	if err != nil {
		return err
	}
	nodes := launch.Nodes{Address: net.JoinHostPort(host, strconv.Itoa(n+1)), Token: l.secret, Node: l.nodeRank, Processes: l.processes,
		Least: l.nodes.least, Most: l.nodes.most, Restarts: l.restarts, Saves: saves, Wait: l.wait, Timeout: cmp.Or(l.joinTimeout, 5*time.Minute),
		Fits: func(n int) bool { _, err := l.checkTraining(l.train[1:], n); return err == nil }}
	if l.refused != nil {
		nodes.Refusal = message(l.refused)
		l.say(fmt.Sprintf("telling the launchers of the other machines: %s", nodes.Refusal))
	}
	if l.nodeRank == 0 {
		host, err := nodes.Open(ctx, func(text string) { l.say(text) })
		if err != nil {
			return err
		}
		defer host.Close()
		defer host.Wait(ctx)
	}
	return nodes.Run(ctx, l.say, func(ctx context.Context, p launch.Place, abandon <-chan struct{}) error {
		if nodes.Least < nodes.Most {
			l.say(fmt.Sprintf("starting on %s, %s", launch.NameNodes(p.Nodes), processes(p.Size)))
		}
		return l.start(ctx, p, abandon)
	})
}

// start starts the processes of this machine and waits until they have ended.
func (l *launcher) start(ctx context.Context, p launch.Place, abandon <-chan struct{}) error {
	at := l.rendezvous
	if at == "" {
		port, err := launch.KeepPort(0)
		if err != nil {
			return err
		}
		defer port.Release()
		at = port.Address()
	}
	job, err := l.job(p, at)
	if err != nil {
		return err
	}
	job.Stdout, job.Stderr, job.Abandon = l.stdout, l.stderr, abandon
	return job.Run(ctx)
}

// checkTraining refuses a command line of train that its processes on so many nodes would refuse, so that
// it is said once. The error of --help is pflag.ErrHelp.
func (f *launchFlags) checkTraining(args []string, nodes int) (flags trainFlags, err error) {
	train := &cobra.Command{Use: "train"}
	(&cobra.Command{Use: "penstock"}).AddCommand(train)
	flags.register(configurable(train))
	s := train.Flags()
	if err := s.Parse(args); errors.Is(err, pflag.ErrHelp) {
		return flags, err
	} else if err != nil {
		return flags, unread(train, err)
	}
	if err := noArguments(train, s.Args()); err != nil {
		return flags, err
	}
	for _, name := range []string{"rank", "processes", "rendezvous"} {
		if s.Changed(name) {
			return flags, badUsage("--%s %s: launch says which process is which; want it left out after train", name, s.Lookup(name).Value)
		}
	}
	if err := readConfig(train); err != nil {
		return flags, err
	}
	if err := flags.takePlan(train); err != nil {
		return flags, err
	}
	place := launch.Place{Size: f.processes * nodes, First: f.processes * min(f.nodeRank, nodes-1)}
	for local := range f.processes {
		environment := f.environment(place, local, cmp.Or(f.rendezvous, "127.0.0.1:1"))
		if _, err := flags.plan(s, func(name string) string { return environment[name] }); err != nil {
			return flags, err
		}
	}
	return flags, nil
}

// environment is what a process of this machine finds in the environment, which is what torchrun says.
func (f *launchFlags) environment(p launch.Place, local int, at string) map[string]string {
	host, port, _ := net.SplitHostPort(at)
	return map[string]string{
		"RANK": strconv.Itoa(p.First + local), "WORLD_SIZE": strconv.Itoa(p.Size), "LOCAL_RANK": strconv.Itoa(local), "LOCAL_WORLD_SIZE": strconv.Itoa(f.processes),
		"MASTER_ADDR": host, "MASTER_PORT": port, "TORCHELASTIC_RESTART_COUNT": strconv.Itoa(p.Start),
	}
}

// job makes the job of a start, whose processes meet at an address.
func (l *launcher) job(p launch.Place, at string) (job launch.Job, err error) {
	program, err := os.Executable()
	if err != nil {
		return job, fmt.Errorf("finding the program to start: %w", err)
	}
	for local := range l.processes {
		environment := append(withoutTorchrun(os.Environ()), token+"="+l.secret, launchedBy+"="+shellQuoted(os.Args))
		for name, value := range l.environment(p, local, at) {
			environment = append(environment, name+"="+value)
		}
		job.Processes = append(job.Processes, launch.Process{Rank: p.First + local, Path: program, Args: l.train, Env: environment})
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

// fileOf is the file that a writer is, so that a process can have it, or else the writer.
func fileOf(w io.Writer) io.Writer {
	if o, ok := w.(*output); ok {
		if f, ok := o.to.(*os.File); ok {
			return f
		}
	}
	return w
}
