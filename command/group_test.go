package command

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"penstock.example/group"
	noerr "penstock.example/internal/must"
	"penstock.example/torch"
)

// groupOf is the plan of a command line of train in an environment.
func groupOf(t *testing.T, environment map[string]string, args ...string) (runOptions, error) {
	t.Helper()
	var flags trainFlags
	cmd := &cobra.Command{Use: "train"}
	flags.register(cmd)
	noerr.Do(t, cmd.ParseFlags(append(slices.Clone(small[1:]), args...)))
	return flags.check(cmd.Flags(), func(name string) string { return environment[name] })
}

// threeOf4 is what torchrun says to the last of four processes.
var threeOf4 = map[string]string{"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2",
	"MASTER_ADDR": "node7", "MASTER_PORT": "29500",
	"TORCHELASTIC_USE_AGENT_STORE": "True", "PENSTOCK_TOKEN": "secret"}

func TestFlagsComeBeforeTheEnvironment(t *testing.T) {
	for _, row := range []struct {
		environment map[string]string
		args        []string
		want        group.Config
		stages      int
	}{
		{nil, nil, group.Config{}, 1},
		{nil, []string{"--rank", "0", "--processes", "1"}, group.Config{Size: 1}, 1},
		{threeOf4, nil, group.Config{Rank: 3, Size: 4, Address: "node7:29500", Token: "secret"}, 4},
		{threeOf4, []string{"--stages", "5"},
			group.Config{Rank: 3, Size: 4, Address: "node7:29500", Token: "secret"}, 5},
		{threeOf4, []string{"--balance", "1,1,1,1,1,1"},
			group.Config{Rank: 3, Size: 4, Address: "node7:29500", Token: "secret"}, 6},
		{threeOf4, []string{"--rendezvous", "[::1]:7"},
			group.Config{Rank: 3, Size: 4, Address: "[::1]:7", Token: "secret"}, 4},
		{threeOf4, []string{"--rank", "1", "--processes", "2", "--rendezvous", "here:7"},
			group.Config{Rank: 1, Size: 2, Address: "here:7", Token: "secret"}, 2},
		{threeOf4, []string{"--join-timeout", "90s", "--silence", "10s"}, group.Config{Rank: 3, Size: 4,
			Address: "node7:29500", Token: "secret", Timeout: 90 * time.Second,
			Silence: 10 * time.Second}, 4},
	} {
		p, err := groupOf(t, row.environment, row.args...)
		if err != nil || p.member != row.want || p.grouped != (row.want.Size > 1) || p.stages != row.stages {
			t.Errorf("%q: got %+v, %d stages, %v; want %+v, %d stages", row.args, p.member, p.stages, err,
				row.want, row.stages)
		}
	}
}

func TestGroupsThatAreRefused(t *testing.T) {
	with := func(name, value string) map[string]string {
		out := maps.Clone(threeOf4)
		out[name] = value
		return out
	}
	first := func(of int) map[string]string {
		out := with("WORLD_SIZE", strconv.Itoa(of))
		out["RANK"] = "0"
		return out
	}
	for _, row := range []struct {
		environment map[string]string
		args        []string
		want        string
	}{
		{nil, []string{"--rank", "2", "--processes", "2"},
			`environment variable RANK is "2"; want a whole number from 0 to 1; --processes, --rank and`},
		{nil, []string{"--rank", "1", "--processes", "2"}, `environment variable MASTER_ADDR is ""`},
		{threeOf4, []string{"--stages", "2"},
			"4 processes share 2 devices; each needs one: want --stages 4, or fewer processes"},
		{threeOf4, []string{"--devices", "cpu:0,cpu:0,cpu:0,cuda:0"},
			"--devices cpu:0,cpu:0,cpu:0,cuda:0: libtorch " + torch.Version() + " here cannot use cuda:0"},
		{threeOf4, []string{"--devices", "cuda:0,cuda:0,cuda:0"},
			"--devices cuda:0,cuda:0,cuda:0: 3 for 4 stages"},
		{threeOf4, []string{"--stages", "2", "--schedule", "interleaved", "--virtual", "2", "--devices",
			"cpu:0,cpu:1"}, "4 processes share 2 devices"},
		{first(3), []string{"--replicas", "2"}, "--replicas 2: the group has 3 members"},
		{first(2), []string{"--replicas", "3"}, "--replicas 3: the group has 2 members"},
		{first(4), []string{"--replicas", "2", "--stages", "1"}, "2 processes share 1 device; "},
		{with("WORLD_SIZE", "7"), nil, "--stages: 7 are more than the 6 layers of mlp"},
	} {
		_, err := groupOf(t, row.environment, row.args...)
		if err == nil || !strings.HasPrefix(err.Error(), row.want) {
			t.Errorf("%q: got  %v\nwant %s", row.args, err, row.want)
		}
	}
}

// Facts are the flags that processes must have in common; paths may differ.
func TestFactsOfARun(t *testing.T) {
	of := func(args ...string) map[string]string {
		o := noerr.Get(groupOf(t, threeOf4, args...))(t)
		return o.commonFlags()
	}
	plain := of()
	if got := of("--seed", "7"); got["--seed"] != "7" || plain["--seed"] != "" ||
		plain["--lr"] != "" || got["--model"] != "mlp" {
		t.Errorf("with --seed 7 %v, without %v", got, plain)
	}
	if a, b := of("--out", "a", "--trace", "b.json"), of("--out", "c", "--trace", "d.json", "--format",
		"json", "--rendezvous", "x:1"); !maps.Equal(a, b) || maps.Equal(a, plain) {
		t.Errorf("%v\n%v\n%v", a, b, plain)
	}
}

// The manifest for Kubernetes has a command line that the pods can run: as many stages as there are
// replicas, of which the operator says which is which.
func TestTheManifestForKubernetes(t *testing.T) {
	text := mustRead(t, "../examples/kubernetes/pytorchjob.yaml")
	_, args, _ := strings.Cut(string(text), "exec penstock train ")
	args, _, found := strings.Cut(args, "env:")
	if !found || !strings.Contains(string(text), "replicas: 1\n") ||
		!strings.Contains(string(text), "replicas: 3\n") {
		t.Fatalf("the manifest has no command line, or other replicas:\n%s", text)
	}
	if _, err := groupOf(t, threeOf4, strings.Fields(args)...); err != nil {
		t.Errorf("%s: %v", args, err)
	}
}

// A process has the devices of its own stages, which those of other processes may be named like. It does
// not need theirs.
func TestDevicesOfProcesses(t *testing.T) {
	for _, row := range []struct {
		environment map[string]string
		args        []string
		ranks       []int
		names       string
	}{
		{threeOf4, []string{"--devices", "cuda:0,cuda:0,cuda:0,cpu:0"}, []int{0, 1, 2, 3},
			"rank:0/cuda:0 rank:1/cuda:0 rank:2/cuda:0 rank:3/cpu:0"},
		{threeOf4, []string{"--devices", "cpu:0,cpu:0,cpu:0,cpu:0"}, []int{0, 1, 2, 3},
			"rank:0/cpu:0 rank:1/cpu:0 rank:2/cpu:0 rank:3/cpu:0"},
		{threeOf4, []string{"--devices", "cpu:7,cpu:6,cpu:5,cpu:4"}, nil, "cpu:7 cpu:6 cpu:5 cpu:4"},
		{threeOf4, []string{"--schedule", "interleaved", "--set", "depth=6", "--devices",
			"cuda:0,cuda:0,cuda:0,cpu:0"}, []int{0, 1, 2, 3, 0, 1, 2, 3},
			"rank:0/cuda:0 rank:1/cuda:0 rank:2/cuda:0 rank:3/cpu:0"},
	} {
		p, err := groupOf(t, row.environment, row.args...)
		if err != nil || !slices.Equal(p.config.Ranks, row.ranks) ||
			strings.Join(p.config.DeviceNames(), " ") != row.names {
			t.Errorf("%q: ranks %v, %v", row.args, p.config.Ranks, err)
		}
	}
}
