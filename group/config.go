package group

import (
	"log/slog"
	"net"
	"strconv"
	"time"

	"penstock.example/internal/arg"
)

// Config says how a process joins a group. Size, Rank and Address are needed; the rest has
// defaults.
type Config struct {
	Rank, Size int           // 0 <= Rank < Size
	LocalRank  int           // number of the process among those of its machine
	Address    string        // host:port at which rank 0, or torchrun's agent, has the store; empty for a group of one
	Token      string        // what members prove to know before they are let in; empty: rank 0 makes one
	Timeout    time.Duration // how long Join waits for the others; 0 is 5 minutes
	Heartbeat  time.Duration // how often a member says that it is alive; 0 is 1 second
	Silence    time.Duration // after how long without a word a member is lost; 0 is 5 seconds
	Restart    int           // how often the job was started again
	AgentStore bool          // torchrun's agent has the store
	Interface  string        // network interface to listen on; empty: the one that leads to Address
	Backend    string        // what carries tensors: "gloo", the default
	Log        *slog.Logger  // told of connections that are refused; nil: nobody is
}

// maxSize is the most members of a group.
const maxSize = 1 << 16

// ConfigError is a setting that is refused.
type ConfigError = arg.ConfigError

// Validate returns the error of a setting that is refused, a *ConfigError, or nil.
func (c Config) Validate() error {
	if err := arg.Between("group", "Size", c.Size, 1, maxSize); err != nil {
		return err
	}
	if err := arg.Between("group", "Rank", c.Rank, 0, c.Size-1); err != nil {
		return err
	}
	if err := arg.AtLeast("group", "LocalRank", c.LocalRank, 0); err != nil {
		return err
	}
	if err := arg.AtLeast("group", "Restart", c.Restart, 0); err != nil {
		return err
	}
	for field, d := range map[string]time.Duration{"Timeout": c.Timeout, "Heartbeat": c.Heartbeat, "Silence": c.Silence} {
		if err := arg.AtLeast("group", field, d, 0); err != nil {
			return err
		}
	}
	c = c.filled()
	if c.Silence < 2*c.Heartbeat {
		return &ConfigError{Of: "group", Field: "Silence", Value: c.Silence, Problem: "the heartbeat is every " + c.Heartbeat.String(),
			Remedy: "want at least twice that"}
	}
	switch c.Backend {
	case "gloo":
	case "nccl":
		return &ConfigError{Of: "group", Field: "Backend", Value: c.Backend, Problem: "between GPUs pipes use it by themselves, beside what carries the rest", Remedy: "want gloo"}
	case "mpi":
		return &ConfigError{Of: "group", Field: "Backend", Value: c.Backend, Problem: "this Penstock is built without it", Remedy: "want gloo"}
	default:
		return &ConfigError{Of: "group", Field: "Backend", Value: c.Backend, Problem: "there is no such backend", Remedy: "want gloo"}
	}
	if _, err := net.InterfaceByName(c.Interface); err != nil && c.Interface != "" {
		return &ConfigError{Of: "group", Field: "Interface", Value: c.Interface, Problem: err.Error(),
			Remedy: "want one of this machine's interfaces, such as " + loopback()}
	}
	if c.Size == 1 && c.Address == "" {
		return nil
	}
	host, port, err := net.SplitHostPort(c.Address)
	if n, bad := strconv.Atoi(port); err != nil || bad != nil || !arg.IsHost(host) || n < 1 || n > 65535 {
		return &ConfigError{Of: "group", Field: "Address", Value: c.Address, Remedy: "want host:port of rank 0, such as 10.0.0.1:29500"}
	}
	return nil
}

// filled is c with its defaults.
func (c Config) filled() Config {
	set := func(d *time.Duration, to time.Duration) {
		if *d == 0 {
			*d = to
		}
	}
	set(&c.Timeout, 5*time.Minute)
	set(&c.Heartbeat, time.Second)
	set(&c.Silence, 5*time.Second)
	if c.Backend == "" {
		c.Backend = "gloo"
	}
	return c
}

// loopback is the name of the interface by which a machine talks to itself, or "lo".
func loopback() string {
	all, _ := net.Interfaces()
	for _, i := range all {
		if i.Flags&net.FlagLoopback != 0 {
			return i.Name
		}
	}
	return "lo"
}
