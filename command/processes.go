package command

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"penstock.example/group"
	"penstock.example/internal/launch"
	"penstock.example/internal/option"
	"penstock.example/torch"
	"penstock.example/train"
)

// Several replicas may run in one process. Each is a member of the group. They share the data set.
//
//	penstock train --replicas 2 --stages 2     process 0  member 0: cpu:0 cpu:1  member 1: cpu:2 cpu:3

// config returns the place of this process in its group, by flags or else by the environment.
func (f groupFlags) config(s *pflag.FlagSet, getenv func(string) string) (group.Config, error) {
	set := map[string]string{}
	if s.Changed("rank") || s.Changed("processes") {
		set["RANK"], set["WORLD_SIZE"] = fmt.Sprint(f.rank), fmt.Sprint(f.processes)
	}
	if host, port, err := net.SplitHostPort(f.rendezvous); err == nil {
		set["MASTER_ADDR"], set["MASTER_PORT"] = host, port
		set["TORCHELASTIC_USE_AGENT_STORE"] = "" // the agent has another address
	}
	cfg, _, err := group.FromEnvironment(func(name string) string {
		if value, ok := set[name]; ok {
			return value
		}
		return getenv(name)
	})
	if err != nil {
		err = badUsage("environment variable %s; --processes, --rank and --rendezvous override it",
			message(err))
	}
	cfg.Timeout, cfg.Silence = f.joinTimeout, f.silence
	return cfg, err
}

// checkGroup finds which members are in this process. By default a process of a replica has one stage.
func (o *runOptions) checkGroup(s *pflag.FlagSet) (err error) {
	if o.member, err = o.groupFlags.config(s, o.getenv); err != nil {
		return err
	}
	processes := max(o.member.Size, 1)
	if o.membersHere = 1; o.replicas%processes == 0 {
		o.membersHere = o.replicas / processes
	}
	if o.membersHere > 1 {
		o.member.Rank, o.member.Size = o.membersHere*o.member.Rank, o.replicas
	}
	if o.replicas > 1 {
		o.config.Replicas = o.replicas
	}
	if o.grouped = o.member.Size > 1; o.grouped && !s.Changed("stages") && !s.Changed("balance") {
		o.stages = o.pipelineProcesses()
	}
	return nil
}

// pipelineProcesses returns how many processes have the stages of one replica, at least 1.
func (o *runOptions) pipelineProcesses() int { return max(o.member.Size/o.replicas, 1) }

func (o *runOptions) processCount() int { return max(o.member.Size/o.membersHere, 1) }

func (o runOptions) members() (all []runOptions) {
	o.read = sync.OnceValues(o.open)
	localGroups := make([]*group.Group, o.membersHere)
	if o.grouped && o.membersHere == o.member.Size {
		localGroups = group.Local(o.membersHere)
	}
	perReplica := 0 // device numbers
	for _, d := range o.config.Devices {
		perReplica = max(perReplica, d.Index+1)
	}
	for k := range o.membersHere {
		m := o
		m.localGroup, m.member.Rank = localGroups[k], o.member.Rank+k
		m.config.Devices = slices.Clone(o.config.Devices)
		m.deviceLimits = maps.Clone(o.deviceLimits)
		for i, d := range o.config.Devices {
			m.config.Devices[i].Index += k * perReplica
			if limit, has := o.deviceLimits[d]; has {
				m.deviceLimits[m.config.Devices[i]] = limit
			}
		}
		all = append(all, m)
	}
	return all
}

// runTraining runs the members of the group in this process. If one fails it returns the cause.
func runTraining(cmd *cobra.Command, o runOptions) (first error) {
	members := o.members()
	errs := make([]error, len(members))
	var all sync.WaitGroup
	for k, m := range members {
		all.Go(func() { errs[k] = runMember(cmd, m) })
	}
	all.Wait()
	for k, err := range errs {
		byPeer := errors.As(err, new(*group.MemberError)) || errors.As(err, new(*group.FailedError)) ||
			errors.As(err, new(*group.LostError))
		switch first = cmp.Or(first, err); {
		case err == nil || byPeer:
		case k == 0:
			return err
		default:
			return &remedyError{err, fmt.Sprintf("replica %d: %s", members[k].member.Rank, message(err))}
		}
	}
	return first
}

// localFlags are flags in which the processes of a run may differ.
var localFlags = []string{"rank", "rendezvous", "join-timeout", "data-dir", "dashboard", "format", "help",
	"config"}

// commonFlags returns the given flags, which must be equal in all processes of a run. Paths may differ.
func (o *runOptions) commonFlags() map[string]string {
	out := map[string]string{}
	o.flags.Visit(func(f *pflag.Flag) {
		text := f.Value.String()
		if v, _ := f.Value.(*option.Value); v != nil && v.Path && f.Name != "schedule" && text != auto {
			text = "a path"
		}
		if !slices.Contains(localFlags, f.Name) {
			out["--"+f.Name] = text
		}
	})
	if o.program != "" {
		out["--schedule"] = fmt.Sprintf("a program with the SHA-256 %.6x", sha256.Sum256([]byte(o.program)))
	}
	return out
}

func (j *job) openGroup(ctx context.Context, _ io.Writer) (err error) {
	if !j.grouped {
		return nil
	}
	if j.group = j.localGroup; j.group == nil {
		j.group, err = group.Join(ctx, j.member)
	}
	if j.config.Group = j.group; errors.As(err, new(*group.ConfigError)) {
		return &usageError{err}
	} else if err != nil {
		return err
	}
	// The launcher of each machine counts its restarts. The highest count is used.
	restarts, err := group.Meet(ctx, j.group, "restarts", j.member.Restart, nil)
	j.member.Restart = slices.Max(append(restarts, 0))
	return err
}

// failGroup tells the group why this member fails. It returns a usage error if the first failure is one.
func failGroup(g *group.Group, err error) error {
	if g == nil || err == nil {
		return err
	}
	if errors.As(err, new(*group.MemberError)) { // that member fails the group next
		select {
		case <-g.Failed():
		case <-time.After(patience):
		}
	}
	g.Fail(group.FailedError{Stage: -1, MicroBatch: -1, Message: message(err),
		Usage: errors.As(err, new(*usageError))})
	if first := (*group.FailedError)(nil); errors.As(g.Err(), &first) && first.Usage {
		return &usageError{err}
	}
	return err
}

func (j *job) agree(ctx context.Context, _ io.Writer) error {
	if j.group == nil {
		return nil
	}
	facts := j.commonFlags()
	facts["penstock"], facts["libtorch"] = ownVersion(), torch.Version()
	facts["data with the fingerprint"] = fmt.Sprint(settingsOf(j.recipe.Data)["fingerprint"])
	err := train.Agree(ctx, j.group, facts)
	if errors.As(err, new(*train.DisagreementError)) {
		return wrongInput(err)
	}
	return err
}

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
	if o, ok := stdout.(*output); ok { // so that rank 0 gets a file itself
		stdout = o.to
	}
	job := launch.Job{Path: program, Args: train, Stdout: stdout, Stderr: stderr, Restarts: restarts,
		OnRestart: func(restart int, after *launch.Failure) {
			fmt.Fprintf(stderr, "%s: %s; starting again, restart %d of %d\n", programName, message(after),
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
	root := &cobra.Command{Use: programName, SilenceErrors: true, SilenceUsage: true}
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
