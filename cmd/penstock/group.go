package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"penstock.example/group"
	"penstock.example/internal/arg"
	"penstock.example/pipe"
	"penstock.example/torch"
	"penstock.example/train"
)

// groupFlags say which process of which group this one is, where no launcher has said it in the
// environment.
type groupFlags struct {
	rank, processes, replicas int
	rendezvous                string
	joinTimeout, silence      time.Duration
}

func (f *groupFlags) register(s *pflag.FlagSet) {
	count(s, &f.processes, "processes", 1, "`N` processes that share the run and are started one by one (default: as penstock launch, torchrun, srun or mpirun says)")
	whole(s, &f.rank, "rank", 0, 0, 1<<31-1, "`R` of this process among --processes, from 0")
	count(s, &f.replicas, "replicas", 1, "`N` times the pipeline, each on its own rows of a batch, in an equal share of the processes or several in each; gradients are summed over them")
	address(s, &f.rendezvous, "rendezvous", "`HOST:PORT` of rank 0, where processes meet")
	duration(s, &f.joinTimeout, "join-timeout", "`TIME` to wait for the others at a start, such as 90s (default 5m)")
	duration(s, &f.silence, "silence", "`TIME` without a word after which another process is lost, such as 30s; one that dies is noticed at once (default 5s)")
}

// ofOneProcess are flags in which the processes of a run may differ.
var ofOneProcess = []string{"rank", "rendezvous", "join-timeout", "data-dir", "format", "help", "config"}

// onlyGiven are flags whose values are paths or addresses: processes may have different ones, but all or none
// must have one.
var onlyGiven = []string{"init", "out", "trace", "tensorboard", "dashboard"}

// facts is what flags say that all processes of a run must have in common. Of the file of --schedule it is
// the program; those of --config and --plan say it by the flags that they give.
func (p *plan) facts(s *pflag.FlagSet) (out []train.Fact) {
	s.VisitAll(func(f *pflag.Flag) {
		value := f.Value.String()
		switch {
		case slices.Contains(ofOneProcess, f.Name):
			return
		case f.Name == "plan" && value != "" && value != auto, slices.Contains(onlyGiven, f.Name) && f.Changed:
			value = "a path"
		case f.Name == "schedule" && p.program != "":
			value = fmt.Sprintf("a program with the SHA-256 %.6x", sha256.Sum256([]byte(p.program)))
		case !f.Changed && slices.Contains([]string{"0", "0s", "[]"}, f.DefValue): // which is not what it stands for
			value = ""
		}
		out = append(out, train.Fact{Name: "--" + f.Name, Value: value})
	})
	return out
}

// config is the place of this process in its group, by flags and environment. found is whether there
// are several processes.
func (f groupFlags) config(s *pflag.FlagSet, getenv func(string) string) (cfg group.Config, found bool, err error) {
	byHand := s.Changed("rank") || s.Changed("processes")
	switch {
	case byHand && !(s.Changed("rank") && s.Changed("processes")):
		return cfg, false, badUsage("--rank and --processes: want both, or neither where a launcher says it")
	case byHand && f.rank >= f.processes:
		return cfg, false, badUsage("--rank %d: there are --processes %d; want 0 to %d", f.rank, f.processes, f.processes-1)
	case byHand && f.processes > 1 && f.rendezvous == "":
		return cfg, false, badUsage("--processes %d needs --rendezvous HOST:PORT, an address of rank 0 that the others reach", f.processes)
	}
	instead := map[string]string{}
	if byHand {
		for _, name := range torchrunVariables {
			instead[name] = ""
		}
		instead["RANK"], instead["WORLD_SIZE"] = strconv.Itoa(f.rank), strconv.Itoa(f.processes)
	}
	if f.rendezvous != "" {
		instead["MASTER_ADDR"], instead["MASTER_PORT"], _ = net.SplitHostPort(f.rendezvous)
		instead["TORCHELASTIC_USE_AGENT_STORE"] = "" // it is at another address
	}
	cfg, found, err = group.FromEnvironment(func(name string) string {
		if text, ok := instead[name]; ok {
			return text
		}
		return getenv(name)
	})
	var refused *group.ConfigError
	if errors.As(err, &refused) {
		return cfg, false, badUsage("environment variable %s", message(err))
	}
	if err == nil && !found && f.rendezvous != "" && !byHand {
		return cfg, false, badUsage("--rendezvous %s: this is one process; want --rank and --processes with it", f.rendezvous)
	}
	cfg.Timeout = f.joinTimeout
	cfg.Silence, cfg.Heartbeat = f.silence, f.silence/heartbeats
	return cfg, found, err
}

// heartbeats is how often a process says that it is alive in the time of --silence.
const heartbeats = 5

// torchrunVariables say which process this one is.
var torchrunVariables = []string{"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
	"TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RESTART_COUNT"}

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

// checkGroup finds out which process of which group this one is. Without --stages and --balance each
// member gets a stage.
func (p *plan) checkGroup(s *pflag.FlagSet) (err error) {
	if p.member, _, err = p.groupFlags.config(s, p.getenv); err == nil {
		err = p.countMembers()
	}
	if err != nil || !p.grouped {
		return err
	}
	if !s.Changed("stages") && !s.Changed("balance") {
		p.stages = p.member.Size / p.replicas
	}
	return nil
}

// checkProcesses checks that every process has a device.
func (p *plan) checkProcesses() error {
	devices, each := p.stages, p.pipelineProcesses()
	if p.sideBySide > 0 {
		devices = p.sideBySide
	}
	switch {
	case !p.grouped || devices >= each:
		return nil
	case p.planned != "" && p.planned != auto:
		return badUsage("--plan %s has %d devices, and one device is in one process, of which there are %d: want a plan for --devices %[3]d or more, --plan auto, or fewer processes",
			p.planned, devices, each)
	}
	return badUsage("%d processes share %s, and one device is in one process: want --stages %[1]d or more, or fewer processes",
		each, counted(devices, "device"))
}

// asMember is the group of the run before this process has met the others: it has their number and the
// rank of this one.
func (p *plan) asMember(config pipe.Config) pipe.Config {
	if p.grouped {
		config.Group = group.Local(p.member.Size)[p.member.Rank]
	}
	if p.replicas > 1 {
		config.Replicas = p.replicas
	}
	return config
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
	// Launchers of several machines count restarts by themselves. All take the way that one has to.
	restarts, err := group.Meet(ctx, j.group, "restarts", j.member.Restart, nil)
	if err != nil {
		return err
	}
	j.member.Restart = slices.Max(restarts)
	return nil
}

// tellGroup tells the other processes that this one cannot go on. Those that know it, because they
// could not either, are not waiting any more.
func (j *job) tellGroup(err error) {
	if j.group != nil && err != nil {
		j.group.Fail(group.Failure{Stage: -1, MicroBatch: -1, Message: message(err)})
	}
}

// agree finds out whether all processes run the same training.
func (j *job) agree(ctx context.Context, stderr io.Writer) error {
	if j.group == nil {
		return nil
	}
	data, ok := j.recipe.Data.Settings.(map[string]any)
	if !ok {
		return errors.New("the data set has no fingerprint") // openData makes it
	}
	err := train.Agree(ctx, j.group, append([]train.Fact{{Name: "penstock", Value: ownVersion()}, {Name: "libtorch", Value: torch.Version()}},
		append(j.common, train.Fact{Name: "data with the fingerprint", Value: fmt.Sprint(data["fingerprint"])})...))
	var differ *train.DisagreementError
	if errors.As(err, &differ) {
		return wrongInput(err)
	}
	if err != nil {
		return err
	}
	return j.compareKernels(ctx, stderr)
}

// compareKernels warns of machines that compute in other ways, on which the last bits depend.
func (j *job) compareKernels(ctx context.Context, stderr io.Writer) error {
	var kernels []train.Fact
	names := torch.KernelNames()
	for _, library := range slices.Sorted(maps.Keys(names)) {
		kernels = append(kernels, train.Fact{Name: library + " kernels", Value: names[library]})
	}
	var gpus []string
	for _, d := range j.config.Devices {
		if name := d.Model(); name != "" && !slices.Contains(gpus, name) {
			gpus = append(gpus, name)
		}
	}
	if gpus != nil {
		kernels = append(kernels, train.Fact{Name: "GPU kernels", Value: fmt.Sprintf("%s, for %s", torch.CUDALibraries(), strings.Join(gpus, ", "))})
	}
	err := train.Agree(ctx, j.group, kernels)
	var differ *train.DisagreementError
	if !errors.As(err, &differ) {
		return err
	}
	var each []string
	for _, d := range differ.Differences {
		each = append(each, d.String())
	}
	fmt.Fprintf(stderr, "%s: the last bits of the weights may differ from those of one process\n", strings.Join(each, "; "))
	return nil
}
