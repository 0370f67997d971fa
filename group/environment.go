package group

import (
	"hash/crc32"
	"math"
	"net"
	"regexp"
	"strconv"
	"strings"

	"penstock.example/internal/arg"
)

// FromEnvironment reads the place of this process in its group from the environment variables of
// its launcher. It uses the first of these launchers that has set one of its variables:
//
//	torchrun, penstock launch, Kubernetes' PyTorchJob   RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
//	srun of Slurm                                       SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_JOB_ID,
//	                                                    SLURM_STEP_ID, SLURM_STEP_NODELIST or SLURM_NODELIST
//	mpirun of Open MPI                                  OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE,
//	                                                    MASTER_ADDR, MASTER_PORT
//
// MASTER_ADDR and MASTER_PORT override Slurm's variables. If TORCHELASTIC_USE_AGENT_STORE is true,
// torchrun's agent listens at MASTER_PORT. Rank 0 then listens at another port, from 20000 to
// 29999, computed from MASTER_PORT and TORCHELASTIC_RUN_ID. PENSTOCK_TOKEN is the token,
// TORCHELASTIC_RESTART_COUNT or SLURM_RESTART_COUNT the number of restarts.
//
// found reports whether the job has several processes. Restart is set for a single process, too. A
// variable that is missing, contradicts another or cannot be read is a *ConfigError with the
// variable as its Field. getenv is os.Getenv, or a function like it.
func FromEnvironment(getenv func(string) string) (cfg Config, found bool, err error) {
	e := &environment{get: getenv}
	cfg.Token = getenv("PENSTOCK_TOKEN")
	for _, name := range []string{"SLURM_RESTART_COUNT", "TORCHELASTIC_RESTART_COUNT"} {
		if getenv(name) != "" {
			cfg.Restart = e.whole(name, 0, math.MaxInt32)
		}
	}
	slurm := [2]string{"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"}
	for _, l := range [][2]string{{"RANK", "WORLD_SIZE"}, slurm,
		{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"}} {
		rank, size := getenv(l[0]) != "", getenv(l[1]) != ""
		if !rank && !size || l == slurm && !(rank && size) { // sbatch gives its script the rank alone
			continue
		}
		cfg.Size = e.whole(l[1], 1, maxSize)
		cfg.Rank = e.whole(l[0], 0, cfg.Size-1)
		if cfg.Size > 1 {
			cfg.Address = e.address(l == slurm)
		}
		break
	}
	if e.err != nil {
		return Config{}, false, e.err
	}
	return cfg, cfg.Size > 1, nil
}

type environment struct {
	get func(string) string
	err error // of the first variable that is refused
}

func (e *environment) refuse(name, problem, remedy string) {
	if e.err == nil {
		e.err = &ConfigError{Of: "group", Field: name, Value: e.get(name), Problem: problem, Remedy: remedy}
	}
}

func (e *environment) whole(name string, least, most int) (n int) {
	if err := arg.Whole(&n, least, most)(e.get(name)); err != nil {
		problem := ""
		if e.get(name) == "" {
			problem = "it is not set, and others of its kind are"
		}
		e.refuse(name, problem, err.Error())
	}
	return n
}

// address returns rank 0's address: MASTER_ADDR and MASTER_PORT, or the address in Slurm's
// variables.
func (e *environment) address(ofSlurm bool) string {
	host, port := e.get("MASTER_ADDR"), 0
	if host == "" && ofSlurm {
		name := "SLURM_STEP_NODELIST"
		if e.get(name) == "" {
			name = "SLURM_NODELIST"
		}
		host, _, _ = strings.Cut(brackets.ReplaceAllString(e.get(name), "$1"), ",")
	}
	if !arg.IsHost(host) {
		e.refuse("MASTER_ADDR", "", "want the host name or address of rank 0: torchrun sets it, and "+
			"mpirun -x MASTER_ADDR=HOST -x MASTER_PORT=29500")
	}
	if job, err := strconv.Atoi(e.get("SLURM_JOB_ID")); ofSlurm && e.get("MASTER_PORT") == "" && err == nil {
		step, _ := strconv.Atoi(e.get("SLURM_STEP_ID")) // sbatch's own step has none
		port = portOf(job, step)
	} else {
		port = e.whole("MASTER_PORT", 1, 65535)
	}
	if !ofSlurm && strings.EqualFold(e.get("TORCHELASTIC_USE_AGENT_STORE"), "true") {
		port = portOf(port, int(crc32.ChecksumIEEE([]byte(e.get("TORCHELASTIC_RUN_ID")))))
	}
	return net.JoinHostPort(host, strconv.Itoa(port))
}

// portOf computes a port from two numbers, so that jobs on one machine rarely share a port. It is below the
// ports that systems give to outgoing connections.
func portOf(a, b int) int { return 20000 + (a%10000+b%10000)%10000 }

// brackets matches the numbers in Slurm's lists of hosts: "node[01-04,7],gpu3" begins with node01.
var brackets = regexp.MustCompile(`\[(\d+)(-\d+)?(,\d+(-\d+)?)*\]`)
