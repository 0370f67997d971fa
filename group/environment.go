package group

import (
	"fmt"
	"net"
	"strconv"
	"strings"

	"penstock.example/internal/arg"
)

// FromEnvironment finds out which process of which group this one is by what its launcher has put
// into the environment. It reads the first of these that is there:
//
//	torchrun, penstock launch, Kubernetes' PyTorchJob   RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, LOCAL_RANK, LOCAL_WORLD_SIZE,
//	                                                    TORCHELASTIC_USE_AGENT_STORE
//	srun of Slurm                                       SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID, SLURM_STEP_NODELIST
//	                                                    or SLURM_NODELIST, SLURM_JOB_ID, SLURM_STEP_ID
//	mpirun of Open MPI                                  OMPI_COMM_WORLD_RANK, _SIZE and _LOCAL_RANK, MASTER_ADDR, MASTER_PORT
//
// MASTER_ADDR and MASTER_PORT come before what Slurm says. PENSTOCK_TOKEN is the token,
// TORCHELASTIC_RESTART_COUNT or SLURM_RESTART_COUNT the number of restarts.
//
// found is whether there are several processes. One process is no group; its Restart is told all the
// same. Variables that lack others, contradict them or cannot be read are a *ConfigError whose Field
// is the variable. getenv is os.Getenv, or a function like it.
func FromEnvironment(getenv func(string) string) (cfg Config, found bool, err error) {
	if err := arg.Given(getenv, "group: FromEnvironment: the function", "os.Getenv"); err != nil {
		return Config{}, false, err
	}
	e := environment{getenv}
	cfg.Token = getenv("PENSTOCK_TOKEN")
	if cfg.Restart, err = e.restarts(); err != nil {
		return Config{}, false, err
	}
	read := e.none
	switch {
	case getenv("RANK") != "" || getenv("WORLD_SIZE") != "":
		read = e.torchrun
	case getenv("SLURM_PROCID") != "" && getenv("SLURM_STEP_NUM_TASKS") != "": // of a script that sbatch runs only the first is there
		read = e.slurm
	case getenv("OMPI_COMM_WORLD_RANK") != "" || getenv("OMPI_COMM_WORLD_SIZE") != "":
		read = e.openMPI
	}
	if err := read(&cfg); err != nil {
		return Config{}, false, err
	}
	return cfg, cfg.Size > 1, nil
}

// environment reads variables.
type environment struct {
	getenv func(string) string
}

func (environment) none(*Config) error { return nil }

func (e environment) torchrun(cfg *Config) (err error) {
	if err := e.place(cfg, "RANK", "WORLD_SIZE", "LOCAL_RANK"); err != nil || cfg.Size == 1 {
		return err
	}
	if text := e.getenv("LOCAL_WORLD_SIZE"); text != "" {
		local, err := e.whole("LOCAL_WORLD_SIZE", 1, cfg.Size)
		switch {
		case err != nil:
			return err
		case cfg.LocalRank >= local:
			return refused("LOCAL_RANK", e.getenv("LOCAL_RANK"), "LOCAL_WORLD_SIZE is "+text, fmt.Sprintf("want 0 to %d", local-1))
		}
	}
	switch agent := e.getenv("TORCHELASTIC_USE_AGENT_STORE"); strings.ToLower(agent) {
	case "true":
		cfg.AgentStore = true
	case "", "false":
	default:
		return refused("TORCHELASTIC_USE_AGENT_STORE", agent, "", "want True or False, as torchrun sets it")
	}
	cfg.Address, err = e.address("", "", "a launcher such as torchrun sets both")
	return err
}

func (e environment) slurm(cfg *Config) (err error) {
	if err := e.place(cfg, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"); err != nil || cfg.Size == 1 {
		return err
	}
	var host, port string
	if e.getenv("MASTER_ADDR") == "" {
		name := "SLURM_STEP_NODELIST"
		if e.getenv(name) == "" {
			name = "SLURM_NODELIST"
		}
		if host, err = firstHost(e.getenv(name)); err != nil {
			return refused(name, e.getenv(name), err.Error(), "want a list such as node[01-04], or MASTER_ADDR=HOST in the job's script")
		}
	}
	if e.getenv("MASTER_PORT") == "" && e.getenv("SLURM_JOB_ID") != "" {
		const most = 1<<31 - 1
		job, err := e.whole("SLURM_JOB_ID", 0, most)
		if err != nil {
			return err
		}
		step := 0
		if e.getenv("SLURM_STEP_ID") != "" {
			if step, err = e.whole("SLURM_STEP_ID", 0, most); err != nil {
				return err
			}
		}
		port = strconv.Itoa(slurmPort(job, step))
	}
	cfg.Address, err = e.address(host, port, "set both in the job's script, or leave both out")
	return err
}

// slurmPort is a port for a step of a job. Jobs that share a machine rarely have the same. It is
// below those that systems give to outgoing connections.
func slurmPort(job, step int) int {
	const first, ports = 20000, 10000
	return first + (job%ports+step%ports)%ports
}

func (e environment) openMPI(cfg *Config) (err error) {
	if err := e.place(cfg, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"); err != nil || cfg.Size == 1 {
		return err
	}
	cfg.Address, err = e.address("", "", "mpirun does not say where rank 0 is: want mpirun -x MASTER_ADDR=HOST -x MASTER_PORT=29500")
	return err
}

// place reads which process of how many this one is.
func (e environment) place(cfg *Config, rank, size, local string) (err error) {
	if cfg.Size, err = e.whole(size, 1, maxSize); err != nil {
		return err
	}
	if cfg.Rank, err = e.whole(rank, 0, maxSize-1); err != nil {
		return err
	}
	if cfg.Rank >= cfg.Size {
		return refused(rank, e.getenv(rank), fmt.Sprintf("%s is %d", size, cfg.Size), fmt.Sprintf("want 0 to %d", cfg.Size-1))
	}
	if e.getenv(local) != "" {
		cfg.LocalRank, err = e.whole(local, 0, cfg.Size-1)
	}
	return err
}

// address is MASTER_ADDR and MASTER_PORT, each of which may have something in its place.
func (e environment) address(host, port, advice string) (string, error) {
	if text := e.getenv("MASTER_ADDR"); text != "" || host == "" {
		if !arg.IsHost(text) {
			return "", refused("MASTER_ADDR", text, "", "want the host name or address of rank 0; "+advice)
		}
		host = text
	}
	if text := e.getenv("MASTER_PORT"); text != "" || port == "" {
		if _, err := e.whole("MASTER_PORT", 1, 65535); err != nil {
			return "", refused("MASTER_PORT", text, "", "want a port from 1 to 65535; "+advice)
		}
		port = text
	}
	return net.JoinHostPort(host, port), nil
}

// restarts is how often the job was started again.
func (e environment) restarts() (int, error) {
	for _, name := range []string{"TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"} {
		if e.getenv(name) != "" {
			return e.whole(name, 0, 1<<31-1)
		}
	}
	return 0, nil
}

// whole reads a variable that is a whole number in decimal digits.
func (e environment) whole(name string, least, most int) (int, error) {
	text := e.getenv(name)
	n, err := strconv.Atoi(text)
	switch {
	case text == "":
		return 0, refused(name, text, "it is not set, and others of its kind are", fmt.Sprintf("want a whole number from %d to %d", least, most))
	case err != nil || strings.Trim(text, "0123456789") != "" || n < least || n > most:
		return 0, refused(name, text, "", fmt.Sprintf("want a whole number from %d to %d", least, most))
	}
	return n, nil
}

func refused(name, text, problem, remedy string) error {
	return &ConfigError{Of: "group", Field: name, Value: text, Problem: problem, Remedy: remedy}
}

// firstHost is the first host of a list as Slurm writes it: "node[01-04,7],gpu3" begins with node01.
func firstHost(list string) (string, error) {
	var host strings.Builder
	for list != "" && list[0] != ',' {
		plain, rest, bracket := cutBracket(list)
		host.WriteString(plain)
		if !bracket {
			break
		}
		numbers, after, closed := strings.Cut(rest, "]")
		first, _, _ := strings.Cut(numbers, ",")
		first, last, ranged := strings.Cut(first, "-")
		if !closed || !isNumber(first) || ranged && !isNumber(last) {
			return "", fmt.Errorf("its brackets do not hold numbers")
		}
		host.WriteString(first)
		list = after
	}
	if !arg.IsHost(host.String()) {
		return "", fmt.Errorf("it does not begin with a host")
	}
	return host.String(), nil
}

// cutBracket is what stands before the first "[" of the list's first host, and what follows it. If
// the host has none, plain is all of it.
func cutBracket(list string) (plain, rest string, bracket bool) {
	i := strings.IndexAny(list, ",[")
	if i < 0 {
		return list, "", false
	}
	return list[:i], list[i+1:], list[i] == '['
}

func isNumber(text string) bool { return text != "" && strings.Trim(text, "0123456789") == "" }
