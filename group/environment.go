package group

import (
	"fmt"
	"hash/crc32"
	"net"
	"regexp"
	"strconv"
	"strings"

	"penstock.example/internal/arg"
)

// FromEnvironment reads the place of this process in its group from the environment variables of its
// launcher. The first of these sets counts that has a variable:
//
//	torchrun, penstock launch, Kubernetes' PyTorchJob   RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
//	srun of Slurm                                       SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_STEP_NODELIST
//	                                                    or SLURM_NODELIST, SLURM_JOB_ID, SLURM_STEP_ID
//	mpirun of Open MPI                                  OMPI_COMM_WORLD_RANK and _SIZE, MASTER_ADDR, MASTER_PORT
//
// MASTER_ADDR and MASTER_PORT override Slurm's variables. If TORCHELASTIC_USE_AGENT_STORE is true,
// torchrun's agent has MASTER_PORT. Rank 0 then listens at a port from 20000 to 29999 that is made of it and
// of TORCHELASTIC_RUN_ID. PENSTOCK_TOKEN is the token, TORCHELASTIC_RESTART_COUNT or SLURM_RESTART_COUNT the
// number of restarts.
//
// found reports whether the job has several processes. One process is no group, but has its Restart. A
// variable that is missing, contradicts another or cannot be read is a *ConfigError with the variable as its
// Field. getenv is os.Getenv, or a function like it.
func FromEnvironment(getenv func(string) string) (cfg Config, found bool, err error) {
	e := environment(getenv)
	cfg.Token = getenv("PENSTOCK_TOKEN")
	for _, name := range []string{"SLURM_RESTART_COUNT", "TORCHELASTIC_RESTART_COUNT"} {
		if getenv(name) != "" && err == nil {
			cfg.Restart, err = e.whole(name, 0, maxInt32)
		}
	}
	for _, l := range launchers {
		rank, size := getenv(l.rank) != "", getenv(l.size) != ""
		if !rank && !size || l.steps && !(rank && size) {
			continue
		}
		if err == nil {
			cfg.Rank, cfg.Size, err = e.place(l.rank, l.size)
		}
		if err == nil && cfg.Size > 1 {
			cfg.Address, err = l.address(e)
		}
		break
	}
	if err != nil {
		return Config{}, false, err
	}
	return cfg, cfg.Size > 1, nil
}

const maxInt32 = 1<<31 - 1

// launchers are the variables of each launcher. steps: the script that sbatch runs is no process of a step,
// and has the rank alone.
var launchers = []struct {
	rank, size string
	steps      bool
	address    func(environment) (string, error)
}{
	{"RANK", "WORLD_SIZE", false, environment.torchrun},
	{"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", true, environment.slurm},
	{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", false, func(e environment) (string, error) {
		const advice = "mpirun does not say where rank 0 is: want mpirun -x MASTER_ADDR=HOST -x MASTER_PORT=29500"
		return e.address("", "", advice)
	}},
}

// environment reads variables, as os.Getenv does.
type environment func(string) string

// portOf makes a port of numbers. Jobs that share a machine rarely have the same. It is below the ports that
// systems give to outgoing connections.
func portOf(numbers ...int) string {
	const first, ports = 20000, 10000
	sum := 0
	for _, n := range numbers {
		sum += n % ports
	}
	return strconv.Itoa(first + sum%ports)
}

func (e environment) torchrun() (string, error) {
	at, err := e.address("", "", "a launcher such as torchrun sets both")
	if err != nil {
		return "", err
	}
	if !strings.EqualFold(e("TORCHELASTIC_USE_AGENT_STORE"), "true") {
		return at, nil
	}
	host, port, _ := net.SplitHostPort(at)
	n, _ := strconv.Atoi(port) // which address has checked
	id := crc32.ChecksumIEEE([]byte(e("TORCHELASTIC_RUN_ID")))
	return net.JoinHostPort(host, portOf(n, int(id))), nil
}

func (e environment) slurm() (string, error) {
	name := "SLURM_STEP_NODELIST"
	if e(name) == "" {
		name = "SLURM_NODELIST"
	}
	host, _, _ := strings.Cut(brackets.ReplaceAllString(e(name), "$1"), ",")
	if e("MASTER_ADDR") == "" && !arg.IsHost(host) {
		const remedy = "want a list such as node[01-04], or MASTER_ADDR=HOST in the job's script"
		return "", refused(name, e(name), "it does not begin with a host", remedy)
	}
	port := ""
	if job, err := strconv.Atoi(e("SLURM_JOB_ID")); err == nil && job >= 0 {
		step, _ := strconv.Atoi(e("SLURM_STEP_ID")) // sbatch's own step has none
		port = portOf(job, max(step, 0))
	}
	return e.address(host, port, "set both in the job's script, or leave both out")
}

// place reads the rank and the number of processes.
func (e environment) place(rankName, sizeName string) (rank, size int, err error) {
	if size, err = e.whole(sizeName, 1, maxSize); err == nil {
		rank, err = e.whole(rankName, 0, maxSize-1)
	}
	if err == nil && rank >= size {
		problem := fmt.Sprintf("%s is %d", sizeName, size)
		err = refused(rankName, e(rankName), problem, fmt.Sprintf("want 0 to %d", size-1))
	}
	return rank, size, err
}

// address returns MASTER_ADDR and MASTER_PORT. If they are not set, host and port are used.
func (e environment) address(host, port, advice string) (string, error) {
	if text := e("MASTER_ADDR"); text != "" || host == "" {
		if !arg.IsHost(text) {
			return "", refused("MASTER_ADDR", text, "", "want the host name or address of rank 0; "+advice)
		}
		host = text
	}
	if text := e("MASTER_PORT"); text != "" || port == "" {
		if _, err := e.whole("MASTER_PORT", 1, 65535); err != nil {
			return "", refused("MASTER_PORT", text, "", "want a port from 1 to 65535; "+advice)
		}
		port = text
	}
	return net.JoinHostPort(host, port), nil
}

// whole reads a variable that is a whole number in decimal digits.
func (e environment) whole(name string, least, most int) (int, error) {
	text, remedy, problem := e(name), fmt.Sprintf("want a whole number from %d to %d", least, most), ""
	n, err := strconv.Atoi(text)
	if err == nil && text[0] >= '0' && n >= least && n <= most {
		return n, nil
	}
	if text == "" {
		problem = "it is not set, and others of its kind are"
	}
	return 0, refused(name, text, problem, remedy)
}

func refused(name, text, problem, remedy string) error {
	return &ConfigError{Of: "group", Field: name, Value: text, Problem: problem, Remedy: remedy}
}

// brackets are those in a list of hosts as Slurm writes it: "node[01-04,7],gpu3" begins with node01.
var brackets = regexp.MustCompile(`\[(\d+)(-\d+)?(,\d+(-\d+)?)*\]`)
