package group

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"penstock.example/torch"
)

// The store is where members find each other. Rank 0 starts it, or torchrun's agent has.

const (
	askAgain     = 20 * time.Millisecond  // how often is asked for what is not there yet
	connectAgain = 100 * time.Millisecond // how often is called where nobody answers
	lookAgain    = time.Second            // how often a name that is not found is looked up
)

// answerWithin is what a store may take to answer. Libtorch looks up the names of addresses on the
// way, for which a name server that does not answer takes 10 seconds.
var answerWithin = 15 * time.Second

// store is a c10d store with the keys of one start of the job. After a machine has joined, torchrun's
// agent has the same store with the same prefix: what rank 0 of the earlier start has left is replaced,
// and other keys are below the new one's address.
type store struct {
	*torch.Store
	prefix string
	first  string // the address at which rank 0 listens for control connections
	serves bool   // this process has started it
}

// openStore finds the store, or starts it at rank 0 unless the agent has. hosts reports whether this
// process is the rank 0 that the others come to.
func openStore(ctx context.Context, c Config) (s *store, hosts bool, err error) {
	host, text, _ := net.SplitHostPort(c.Address)
	port, _ := strconv.Atoi(text)
	if c.AgentStore {
		s, err := connect(ctx, c, host, port)
		if err == nil {
			s.prefix = "/worker/attempt_" + strconv.Itoa(c.Restart) + "/"
			if c.Rank != 0 {
				return s, false, nil
			}
			// Another process may be rank 0 already. Then this one is refused by that.
			n, err := s.Add(s.prefix+"penstock/rank 0", 1)
			return s, n == 1, err
		}
		var foreign *foreignError
		if !errors.As(err, &foreign) {
			return nil, false, err
		}
		// The agent's libtorch is another. All members find that, and take a store of their own.
		if c.Rank == 0 {
			c.log().Warn("group: the store of torchrun's agent is of another libtorch; rank 0 has one on the next port", "port", port+1, "error", foreign.err)
		}
		port++
	}
	if c.Rank != 0 {
		s, err := connect(ctx, c, host, port)
		return s, false, err
	}
	return startStore(ctx, c, host, port)
}

// startStore starts the store, unless another process has, which may be rank 0 already. Then this
// one is refused by that. Who listens is found by a call: libtorch writes to standard error of a
// port that is taken, and a listener that was there for a moment would reset who has called it,
// which ends a process that was about to open the store.
func startStore(ctx context.Context, c Config, host string, port int) (s *store, hosts bool, err error) {
	ip, err := ownAddress(ctx, c)
	if err != nil {
		return nil, false, err
	}
	d := net.Dialer{Timeout: answerWithin}
	why := errors.New("another process listens there")
	if conn, err := d.DialContext(ctx, "tcp", net.JoinHostPort("localhost", strconv.Itoa(port))); err == nil {
		_ = conn.Close()
	} else {
		opened, err := torch.OpenStore("localhost", port, true, answerWithin)
		if err == nil && (ip != nil || reaches(ctx, opened, host, port)) {
			return &store{Store: opened, serves: true}, true, nil
		}
		if err == nil {
			opened.Close()
			return nil, false, fmt.Errorf("group: %s, where rank 0 is to be, is no address of this machine, which has rank 0; want one of it that the other ranks reach (MASTER_ADDR or --rendezvous), or rank 0 started there", host)
		}
		why = err
	}
	// A store on this machine answers in milliseconds.
	if another, failed := torch.OpenStore("localhost", port, false, time.Second); failed == nil {
		soon, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		s := &store{Store: another}
		if _, failed := s.wait(soon, controlKey); failed == nil {
			return s, false, nil
		}
		s.Close()
	}
	return nil, false, fmt.Errorf("group: rank 0 cannot start its store on port %d: %w; want a port that is free", port, why)
}

// reaches reports whether a host that is no address of this machine leads here all the same, as the
// address of a service does.
func reaches(ctx context.Context, mine *torch.Store, host string, port int) bool {
	d := net.Dialer{Timeout: answerWithin}
	conn, err := d.DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		return false
	}
	_ = conn.Close()
	const key = "penstock/rank 0 is here"
	mark := []byte(rand.Text())
	if mine.Set(key, mark) != nil {
		return false
	}
	there, err := torch.OpenStore(host, port, false, answerWithin)
	if err != nil {
		return false
	}
	defer there.Close()
	got, err := there.Get(key)
	return err == nil && bytes.Equal(got, mark)
}

// connect waits until somebody listens there and connects. A host may get its address only later, as
// those of containers do.
func connect(ctx context.Context, c Config, host string, port int) (*store, error) {
	at := net.JoinHostPort(host, strconv.Itoa(port))
	var nameless atomic.Bool
	defer whenLong(func() {
		why := "which does not answer yet"
		if nameless.Load() {
			why = "for which there is no such host yet"
		}
		c.log().Info(fmt.Sprintf("group: rank %d of %d calls rank 0, %s", c.Rank, c.Size, why), "at", at, "for", c.Timeout)
	})()
	var last error
	for {
		d := net.Dialer{Timeout: answerWithin}
		conn, err := d.DialContext(ctx, "tcp", at)
		if err == nil {
			_ = conn.Close()
			opened, err := torch.OpenStore(host, port, false, answerWithin)
			if err != nil {
				return nil, &foreignError{at, err}
			}
			return &store{Store: opened}, nil
		}
		pause := connectAgain
		var unknown *net.DNSError
		nameless.Store(errors.As(err, &unknown) && unknown.IsNotFound)
		if nameless.Load() {
			pause = lookAgain
		}
		// A call that was cut short by the end of the time says less than the one before.
		if last == nil || !os.IsTimeout(err) {
			last = err
		}
		if sleep(ctx, pause) {
			continue
		}
		why := context.Cause(ctx)
		if why == errTimeout {
			return nil, fmt.Errorf("group: rank %d of %d: nobody answers at %s, where rank 0 is to be, within %v: %w; want rank 0 started by then, an address of it that this machine reaches (MASTER_ADDR and MASTER_PORT, or --rendezvous), or more time (--join-timeout)",
				c.Rank, c.Size, at, c.Timeout, last)
		}
		return nil, fmt.Errorf("group: rank %d of %d: nobody answers at %s, where rank 0 is to be: %w; last: %w", c.Rank, c.Size, at, why, last)
	}
}

// foreignError says that what listens is not a store that this libtorch can talk to.
type foreignError struct {
	at  string
	err error
}

func (e *foreignError) Error() string {
	return fmt.Sprintf("group: what listens at %s is not rank 0 of a job, or rank 0 with another libtorch than %s: as a store it says %q; want a port that nothing else listens on, and the same libtorch on all ranks", e.at, torch.Version(), e.err)
}

// sleep reports whether the time has passed before ctx was done.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// controlKey is where rank 0 says how the control connection is reached.
const controlKey = "penstock/control"

// contact is the value of controlKey.
type contact struct {
	address string
	token   string // empty where members have been given it
}

func (k contact) String() string { return magic + k.address + "\n" + k.token }

func parseContact(b []byte) (k contact, err error) {
	rest, ours := strings.CutPrefix(string(b), magic)
	address, token, whole := strings.Cut(rest, "\n")
	if _, _, err := net.SplitHostPort(address); !ours || !whole || err != nil || len(b) > 1024 {
		return k, errors.New("group: the store says of rank 0 what another Penstock or another program has written; want the same Penstock on all ranks")
	}
	return contact{address, token}, nil
}

// wait waits for a key's value.
func (s *store) wait(ctx context.Context, key string) ([]byte, error) {
	for {
		v, err := s.Get(s.prefix + key)
		if v != nil || err != nil {
			return v, err
		}
		if !sleep(ctx, askAgain) {
			return nil, context.Cause(ctx)
		}
	}
}
