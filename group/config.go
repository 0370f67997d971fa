package group

import (
	"cmp"
	"log/slog"
	"net"
	"strconv"
	"time"

	"penstock.example/internal/arg"
)

// Config says how a process joins a group. Size is needed, and Address if there are other members.
type Config struct {
	Rank, Size int           // 0 <= Rank < Size
	Address    string        // host:port at which rank 0 listens; empty for a group of one
	Token      string        // a secret of all members; needed unless Address is a loopback address
	Timeout    time.Duration // how long Join waits for the others; 0 is 5 minutes
	Silence    time.Duration // a member that sends nothing for so long is lost; 0 is 5 seconds
	Restart    int           // number of restarts of the job before this start
	Log        *slog.Logger  // for refused connections and long waits; may be nil
}

const maxSize = 1 << 16 // members

// ConfigError is a setting that is refused.
type ConfigError = arg.ConfigError

func (c Config) validate() error {
	err := arg.Between("group", "Size", c.Size, 1, maxSize)
	if err = cmp.Or(err, arg.Between("group", "Rank", c.Rank, 0, c.Size-1)); err != nil || c.Size == 1 {
		return err
	}
	host, port, err := net.SplitHostPort(c.Address)
	if n, bad := strconv.Atoi(port); err != nil || bad != nil || !arg.IsHost(host) || n < 1 || n > 65535 {
		return &ConfigError{Of: "group", Field: "Address", Value: c.Address,
			Remedy: "want host:port of rank 0, such as 10.0.0.1:29500"}
	}
	return nil
}

func (c Config) withDefaults() Config {
	c.Timeout = cmp.Or(c.Timeout, 5*time.Minute)
	c.Silence = cmp.Or(c.Silence, 5*time.Second)
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
	return c
}

// heartbeat is the longest time between two frames of a member.
func (c Config) heartbeat() time.Duration { return max(c.Silence/5, 1) }
