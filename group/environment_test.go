package group_test

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"

	"penstock.example/group"
)

// variables are an environment.
type variables map[string]string

func (v variables) get(name string) string { return v[name] }

// plus is v with other values; "" is a variable that is not set.
func (v variables) plus(pairs ...string) variables {
	out := maps.Clone(v)
	for i := 0; i < len(pairs); i += 2 {
		out[pairs[i]] = pairs[i+1]
	}
	return out
}

var (
	torchrun = variables{"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "node7", "MASTER_PORT": "29500",
		"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "2", "PENSTOCK_TOKEN": "secret"}
	slurm = variables{"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1", "SLURM_STEP_NODELIST": "gpu[07-10,12]",
		"SLURM_NODELIST": "gpu[01-12]", "SLURM_JOB_ID": "4207", "SLURM_STEP_ID": "2", "SLURM_RESTART_COUNT": "1"}
	openMPI = variables{"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "7000"}
)

func TestFromEnvironment(t *testing.T) {
	for name, row := range map[string]struct {
		in    variables
		want  group.Config
		found bool
	}{
		"nothing":  {variables{}, group.Config{}, false},
		"torchrun": {torchrun, group.Config{Rank: 3, Size: 4, Address: "node7:23323", Restart: 2, Token: "secret"}, true},
		"PyTorchJob, which sets the least": {variables{"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456"},
			group.Config{Size: 2, Address: "job-master-0:23456"}, true},
		"torchrun without its agent's store": {torchrun.plus("TORCHELASTIC_USE_AGENT_STORE", "False"),
			group.Config{Rank: 3, Size: 4, Address: "node7:29500", Restart: 2, Token: "secret"}, true},
		"IPv6": {torchrun.plus("MASTER_ADDR", "fe80::1%eth0"),
			group.Config{Rank: 3, Size: 4, Address: "[fe80::1%eth0]:23323", Restart: 2, Token: "secret"}, true},
		"one process of torchrun": {torchrun.plus("RANK", "0", "WORLD_SIZE", "1", "LOCAL_RANK", "0", "MASTER_ADDR", ""),
			group.Config{Size: 1, Restart: 2, Token: "secret"}, false},
		"torchrun on each node of a Slurm job": {torchrun.plus("SLURM_PROCID", "1", "SLURM_STEP_NUM_TASKS", "2"),
			group.Config{Rank: 3, Size: 4, Address: "node7:23323", Restart: 2, Token: "secret"}, true},
		"Slurm": {slurm, group.Config{Rank: 5, Size: 8, Address: "gpu07:24209", Restart: 1}, true},
		"Slurm's job of one list": {slurm.plus("SLURM_STEP_NODELIST", "", "SLURM_STEP_ID", "", "SLURM_LOCALID", ""),
			group.Config{Rank: 5, Size: 8, Address: "gpu01:24207", Restart: 1}, true},
		"Slurm with an address": {slurm.plus("MASTER_ADDR", "ib7", "MASTER_PORT", "700"),
			group.Config{Rank: 5, Size: 8, Address: "ib7:700", Restart: 1}, true},
		"the script of a Slurm job": {slurm.plus("SLURM_PROCID", "0", "SLURM_STEP_NUM_TASKS", ""), group.Config{Restart: 1}, false},
		"one task of Slurm":         {variables{"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, group.Config{Size: 1}, false},
		"Open MPI":                  {openMPI, group.Config{Rank: 1, Size: 2, Address: "10.0.0.1:7000"}, true},
		"one process of Open MPI":   {variables{"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}, group.Config{Size: 1}, false},
		"an address alone":          {variables{"MASTER_ADDR": "node7", "MASTER_PORT": "29500", "LOCAL_RANK": "x"}, group.Config{}, false},
	} {
		got, found, err := group.FromEnvironment(row.in.get)
		if err != nil || got != row.want || found != row.found {
			t.Errorf("%s: got %+v, %v, %v; want %+v, %v", name, got, found, err, row.want, row.found)
		}
	}
}

func TestEnvironmentsThatAreRefused(t *testing.T) {
	for _, row := range []struct {
		in              variables
		field, value    string
		problem, remedy string
	}{
		{torchrun.plus("WORLD_SIZE", ""), "WORLD_SIZE", "", "it is not set, and others of its kind are", "want a whole number from 1 to"},
		{torchrun.plus("RANK", ""), "RANK", "", "it is not set, and others of its kind are", "want a whole number from 0 to"},
		{torchrun.plus("WORLD_SIZE", "four"), "WORLD_SIZE", "four", "", "want a whole number from 1 to 65536"},
		{torchrun.plus("WORLD_SIZE", "0"), "WORLD_SIZE", "0", "", "want a whole number from 1 to 65536"},
		{torchrun.plus("WORLD_SIZE", "99999999999999999999"), "WORLD_SIZE", "99999999999999999999", "", "want a whole number from 1 to 65536"},
		{torchrun.plus("RANK", "+1"), "RANK", "+1", "", "want a whole number"},
		{torchrun.plus("RANK", "-1"), "RANK", "-1", "", "want a whole number from 0 to"},
		{torchrun.plus("RANK", "4"), "RANK", "4", "WORLD_SIZE is 4", "want 0 to 3"},
		{torchrun.plus("MASTER_ADDR", ""), "MASTER_ADDR", "", "", "want the host name or address of rank 0; a launcher such as torchrun sets both"},
		{torchrun.plus("MASTER_ADDR", "node 7"), "MASTER_ADDR", "node 7", "", "want the host name or address of rank 0"},
		{torchrun.plus("MASTER_ADDR", "node7:29500"), "MASTER_ADDR", "node7:29500", "", "want the host name or address of rank 0"},
		{torchrun.plus("MASTER_PORT", ""), "MASTER_PORT", "", "", "want a port from 1 to 65535"},
		{torchrun.plus("MASTER_PORT", "65536"), "MASTER_PORT", "65536", "", "want a port from 1 to 65535"},
		{torchrun.plus("TORCHELASTIC_USE_AGENT_STORE", "maybe"), "TORCHELASTIC_USE_AGENT_STORE", "maybe", "", "want True or False"},
		{torchrun.plus("TORCHELASTIC_RESTART_COUNT", "-1"), "TORCHELASTIC_RESTART_COUNT", "-1", "", "want a whole number"},
		{slurm.plus("SLURM_PROCID", "8"), "SLURM_PROCID", "8", "SLURM_STEP_NUM_TASKS is 8", "want 0 to 7"},
		{slurm.plus("SLURM_STEP_NODELIST", "gpu[07-10"), "SLURM_STEP_NODELIST", "gpu[07-10", "it does not begin with a host", "or MASTER_ADDR=HOST"},
		{slurm.plus("SLURM_STEP_NODELIST", "", "SLURM_NODELIST", ""), "SLURM_NODELIST", "", "it does not begin with a host", "or MASTER_ADDR=HOST"},
		{slurm.plus("SLURM_JOB_ID", "mine"), "SLURM_JOB_ID", "mine", "", "want a whole number"},
		{slurm.plus("SLURM_JOB_ID", ""), "MASTER_PORT", "", "", "set both in the job's script, or leave both out"},
		{openMPI.plus("OMPI_COMM_WORLD_SIZE", ""), "OMPI_COMM_WORLD_SIZE", "", "it is not set", "want a whole number"},
		{openMPI.plus("MASTER_ADDR", ""), "MASTER_ADDR", "", "", "want mpirun -x MASTER_ADDR=HOST -x MASTER_PORT=29500"},
	} {
		_, found, err := group.FromEnvironment(row.in.get)
		var refused *group.ConfigError
		if !errors.As(err, &refused) || found {
			t.Errorf("%s=%q: found %v, %v; want a ConfigError", row.field, row.value, found, err)
			continue
		}
		if refused.Field != row.field || refused.Value != row.value || !strings.HasPrefix(refused.Problem, row.problem) || !strings.Contains(refused.Remedy, row.remedy) {
			t.Errorf("got  %v\nwant %s is %q: %s; %s", err, row.field, row.value, row.problem, row.remedy)
		}
	}
}

func TestTheFirstHostOfAList(t *testing.T) {
	for list, want := range map[string]string{
		"node7": "node7", "node7,node8": "node7", "node[7-9]": "node7", "node[007-012,3]": "node007", "node[3,5-6],other[1-2]": "node3",
		"rack[1-2]n[03-04]": "rack1n03", "a-b[2]-c.example.org,x": "a-b2-c.example.org", "10.0.0.1,10.0.0.2": "10.0.0.1",
		"": "", ",node": "", "node[": "", "node[]": "", "node[a-b]": "", "node[1": "", "node[1-": "", "node]1": "", "no de": "", "node[1-2x]": "", "[]": "",
	} {
		cfg, _, err := group.FromEnvironment(slurm.plus("SLURM_STEP_NODELIST", list, "SLURM_NODELIST", list).get)
		if got, _, _ := strings.Cut(cfg.Address, ":"); got != want || (err == nil) != (want != "") {
			t.Errorf("%q: got %q, %v; want %q", list, got, err, want)
		}
	}
}

// Whatever is in the environment, it is refused by the name of a variable, or Join can use it.
func FuzzFromEnvironment(f *testing.F) {
	for _, v := range []variables{torchrun, slurm, openMPI} {
		var text strings.Builder
		for name, value := range v {
			fmt.Fprintf(&text, "%s=%s\n", name, value)
		}
		f.Add(text.String())
	}
	f.Add("SLURM_PROCID=0\nSLURM_STEP_NUM_TASKS=2\nSLURM_JOB_ID=1\nSLURM_NODELIST=a[1-2]b[3],c")
	f.Fuzz(func(t *testing.T, text string) {
		v := variables{}
		for line := range strings.SplitSeq(text, "\n") {
			name, value, _ := strings.Cut(line, "=")
			v[name] = value
		}
		cfg, found, err := group.FromEnvironment(v.get)
		var refused *group.ConfigError
		switch {
		case err != nil && (!errors.As(err, &refused) || v[refused.Field] != refused.Value || found):
			t.Errorf("found %v, %v", found, err)
		case err == nil && found != (cfg.Size > 1):
			t.Errorf("found %v: %+v", found, cfg)
		case found && cfg.Validate() != nil:
			t.Errorf("%+v: %v", cfg, cfg.Validate())
		}
	})
}
