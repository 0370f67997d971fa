package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"sync"

	"github.com/spf13/pflag"

	"penstock.example/group"
	"penstock.example/pipe"
	"penstock.example/torch"
	"penstock.example/train"
)

// A process may have several replicas of the pipeline. Each of them is then a member of the group, as
// a process is elsewhere: with a model, a pipe, a loop and devices of its own. They share the data set.
//
//	penstock train --replicas 2 --stages 2      process 0   member 0: cpu:0 cpu:1   member 1: cpu:2 cpu:3

// config is the place of this process in its group, by the environment. Flags come before its variables.
func (f groupFlags) config(s *pflag.FlagSet, getenv func(string) string) (group.Config, error) {
	set := map[string]string{}
	if s.Changed("rank") || s.Changed("processes") {
		set["RANK"], set["WORLD_SIZE"] = fmt.Sprint(f.rank), fmt.Sprint(f.processes)
	}
	if host, port, err := net.SplitHostPort(f.rendezvous); err == nil {
		set["MASTER_ADDR"], set["MASTER_PORT"] = host, port
		set["TORCHELASTIC_USE_AGENT_STORE"] = "" // it is at another address
	}
	cfg, _, err := group.FromEnvironment(func(name string) string {
		if value, ok := set[name]; ok {
			return value
		}
		return getenv(name)
	})
	if err != nil {
		err = badUsage("environment variable %s; --processes, --rank and --rendezvous come before the "+
			"environment", message(err))
	}
	cfg.Timeout, cfg.Silence = f.joinTimeout, f.silence
	return cfg, err
}

// checkGroup finds the members of this process in their group. Without --stages and --balance each member
// gets a stage.
func (o *runOptions) checkGroup(s *pflag.FlagSet) (err error) {
	if o.member, err = o.groupFlags.config(s, o.getenv); err != nil {
		return err
	}
	processes := max(o.member.Size, 1)
	if o.here = 1; o.replicas%processes == 0 {
		o.here = o.replicas / processes
	}
	if o.here > 1 {
		o.member.Rank, o.member.Size = o.here*o.member.Rank, o.replicas
	}
	if o.grouped = o.member.Size > 1; o.grouped && !s.Changed("stages") && !s.Changed("balance") {
		o.stages = o.pipelineProcesses()
	}
	return nil
}

// pipelineProcesses returns how many processes have the stages of one replica, at least 1.
func (o *runOptions) pipelineProcesses() int { return max(o.member.Size/o.replicas, 1) }

// processCount returns how many processes run the training.
func (o *runOptions) processCount() int { return max(o.member.Size/o.here, 1) }

// checkProcesses checks that every process has a device.
func (o *runOptions) checkProcesses() error {
	devices, each := cmp.Or(o.sideBySide, o.stages), o.pipelineProcesses()
	if !o.grouped || devices >= each {
		return nil
	}
	return badUsage("%d processes share %s, and one device is in one process: want --stages %[1]d or "+
		"more, or fewer processes", each, counted(devices, "device"))
}

// devicesPerReplica returns the distance between the device numbers of two replicas of this process.
func (o *runOptions) devicesPerReplica() (n int) {
	for _, d := range o.config.Devices {
		n = max(n, d.Index+1)
	}
	return n
}

// asMember gives a configuration the group of the run before this process has met the others: it has their
// number and the rank of this one.
func (o *runOptions) asMember(config pipe.Config) pipe.Config {
	if o.grouped {
		config.Group = group.Local(o.member.Size)[o.member.Rank]
	}
	if o.replicas > 1 {
		config.Replicas = o.replicas
	}
	return config
}

// members are the options of the members of the group that are in this process.
func (o runOptions) members() (all []runOptions) {
	o.read = sync.OnceValues(o.open)
	within := make([]*group.Group, o.here)
	if o.grouped && o.here == o.member.Size {
		within = group.Local(o.here)
	}
	for k := range o.here {
		m := o
		m.within, m.member.Rank = within[k], o.member.Rank+k
		m.config.Devices = slices.Clone(o.config.Devices)
		m.bytes = maps.Clone(o.bytes)
		for i, d := range o.config.Devices {
			m.config.Devices[i].Index += k * o.devicesPerReplica()
			if bytes, has := o.bytes[d]; has {
				m.bytes[m.config.Devices[i]] = bytes
			}
		}
		all = append(all, m)
	}
	return all
}

// runMembers runs the members of the group in this process. It returns the error of the member that failed
// first, not the errors of members that were told so.
func runMembers(members []runOptions, run func(runOptions) error) error {
	errs := make([]error, len(members))
	var all sync.WaitGroup
	for k, m := range members {
		all.Go(func() { errs[k] = run(m) })
	}
	all.Wait()
	var first error
	for k, err := range errs {
		switch {
		case err == nil:
		case !isPeerFailure(err):
			if k > 0 {
				err = &remedyError{err, fmt.Sprintf("replica %d: %s", members[k].member.Rank, message(err))}
			}
			return err
		case first == nil:
			first = err
		}
	}
	return first
}

// isPeerFailure says whether an error tells of the failure of another member.
func isPeerFailure(err error) bool {
	var met *group.MemberError
	var failed *group.FailedError
	var lost *group.LostError
	return errors.As(err, &met) || errors.As(err, &failed) || errors.As(err, &lost)
}

// localFlags are flags in which the processes of a run may differ.
var localFlags = []string{"rank", "rendezvous", "join-timeout", "data-dir", "dashboard", "format", "help",
	"config"}

// facts are the flags that must be equal in all processes of a run. Of paths only whether they are given
// is compared: of a file with a schedule its program, and of --config and --plan the flags in the file.
func (o *runOptions) facts(s *pflag.FlagSet) map[string]string {
	out := map[string]string{}
	s.VisitAll(func(f *pflag.Flag) {
		text := f.Value.String()
		switch v, _ := f.Value.(*value); {
		case slices.Contains(localFlags, f.Name):
			return
		case f.Name == "schedule" && o.program != "":
			text = fmt.Sprintf("a program with the SHA-256 %.6x", sha256.Sum256([]byte(o.program)))
		case f.Name != "schedule" && f.Changed && v != nil && v.path && text != auto:
			text = "a path"
		case !f.Changed && slices.Contains([]string{"0", "0s", "[]"}, f.DefValue):
			text = "" // a default that depends on other flags
		}
		out["--"+f.Name] = text
	})
	return out
}

// openGroup meets the other members of the run.
func (j *job) openGroup(ctx context.Context, _ io.Writer) (err error) {
	if !j.grouped {
		return nil
	}
	if j.group = j.within; j.group == nil {
		j.group, err = group.Join(ctx, j.member)
		var refused *group.ConfigError
		if errors.As(err, &refused) {
			return &usageError{err}
		}
		if err != nil {
			return err
		}
	}
	if j.config.Group = j.group; j.replicas > 1 {
		j.config.Replicas = j.replicas
	}
	// Launchers of several machines count restarts by themselves. All go by the highest count.
	restarts, err := group.Meet(ctx, j.group, "restarts", j.member.Restart, nil)
	if err != nil {
		return err
	}
	j.member.Restart = slices.Max(restarts)
	return nil
}

// failGroup tells the other processes that this one cannot go on.
func (j *job) failGroup(err error) {
	if j.group != nil && err != nil {
		j.group.Fail(group.FailedError{Stage: -1, MicroBatch: -1, Message: message(err)})
	}
}

// agree finds out whether all processes run the same training.
func (j *job) agree(ctx context.Context, _ io.Writer) error {
	if j.group == nil {
		return nil
	}
	described, _ := j.recipe.Data.Settings.(map[string]any) // by openData
	facts := maps.Clone(j.common)
	facts["penstock"], facts["libtorch"] = ownVersion(), torch.Version()
	facts["data with the fingerprint"] = fmt.Sprint(described["fingerprint"])
	err := train.Agree(ctx, j.group, facts)
	if differ := (*train.DisagreementError)(nil); errors.As(err, &differ) {
		return wrongInput(err)
	}
	return err
}
