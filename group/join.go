package group

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"syscall"
	"time"

	"penstock.example/internal/arg"
	"penstock.example/internal/link"
	"penstock.example/torch"
)

// Join makes this process a member of a group. It blocks until all members are there, ctx is done
// or Config.Timeout has passed. If a rank is missing or there twice, or if members differ in the
// size of the group, the token or libtorch, it fails on all ranks that are there. The caller closes
// the group.
func Join(ctx context.Context, cfg Config) (*Group, error) {
	if err := arg.Context(ctx, "group"); err != nil {
		return nil, err
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.filled()
	if cfg.Size == 1 {
		return Local(1)[0], nil
	}
	j := &joined{control: newControl(cfg)}
	if err := j.join(ctx); err != nil {
		_ = j.close()
		return nil, err
	}
	return &Group{rank: cfg.Rank, size: cfg.Size, first: j.first, member: j}, nil
}

// Refuse tells the other members that this process will not join and why, such as an error of its
// command line. The Join of each then fails at once with a *FailedError or the same text, instead of
// waiting for this process. cfg is what Join would be given. Refuse blocks until rank 0 knows, or at
// rank 0 until all others do, ctx is done, or Config.Timeout has passed: who has not come by then
// hears nothing, which is an error.
func Refuse(ctx context.Context, cfg Config, why string) error {
	if err := arg.Context(ctx, "group"); err != nil {
		return err
	}
	if err := cfg.Validate(); err != nil {
		return err
	}
	if cfg = cfg.filled(); cfg.Size == 1 {
		return nil
	}
	j := &joined{control: newControl(cfg), refusal: &Failure{Rank: cfg.Rank, Stage: -1, MicroBatch: -1, Message: cut(why, MaxMessage)}}
	ctx, cancel := context.WithTimeoutCause(ctx, cfg.Timeout, errTimeout)
	defer cancel()
	me := introduction(cfg)
	me.refuses = 1
	_, err := j.meet(ctx, ctx, me)
	return errors.Join(err, j.close())
}

// errTimeout is why a Join is given up after Config.Timeout.
var errTimeout = errors.New("the time to wait for the others is over; want all ranks started by then, or more time (--join-timeout)")

// joined is a member in a process of its own.
type joined struct {
	*control
	store   *store
	host    *host // at rank 0
	data    *carrier
	refusal *Failure // why this process will not join; nil at one that does
}

// introduction is what this process says of itself.
func introduction(c Config) hello {
	name, err := os.Hostname()
	if err != nil {
		name = "?"
	}
	return hello{rank: c.Rank, size: c.Size, pid: os.Getpid(), host: cut(name, maxName), libtorch: cut(torch.Version(), maxName)}
}

func (j *joined) join(user context.Context) error {
	ctx, cancel := context.WithTimeoutCause(user, j.cfg.Timeout, errTimeout)
	defer cancel()
	ip, err := j.meet(ctx, user, introduction(j.cfg))
	if err != nil {
		return err
	}
	if j.data, err = openCarrier(ctx, j.control, j.store, ip); err == nil {
		_, err = j.gather(ctx, "joined", nil)
	}
	if err != nil {
		j.fail(Failure{Rank: j.cfg.Rank, Stage: -1, MicroBatch: -1, Action: "joining", Message: err.Error()}.bounded())
		return j.first.get()
	}
	if !j.store.serves { // the connection to a store that ends must not end this process
		j.store.Close()
		j.store = nil
	}
	return nil
}

// settles is how long what is left of an earlier start of the job may disturb: a store that still
// answers and is of a rank 0 that has gone.
const settles = 10 * time.Second

// meet is the rendezvous: all members have a control connection afterwards. It returns the address
// of this machine that the others reach.
func (j *joined) meet(ctx, user context.Context, me hello) (net.IP, error) {
	for began := time.Now(); ; {
		s, hosts, err := openStore(ctx, j.cfg)
		if err != nil {
			return nil, err
		}
		j.store = s
		if hosts {
			return j.receiveOthers(ctx, me)
		}
		ip, err := j.attend(ctx, user, me)
		var unreached *unreachedError
		if j.cfg.Rank == 0 && errors.As(err, &unreached) && unreached.gone {
			return j.receiveOthers(ctx, me)
		}
		if !errors.As(err, &unreached) || time.Since(began) > settles || !sleep(ctx, connectAgain) {
			return ip, err
		}
		s.Close()
		j.store = nil
	}
}

// unreachedError says that rank 0 is not where the store says, or the store has gone.
type unreachedError struct {
	err  error
	gone bool // nobody listens where the store says: it was rank 0 of an earlier start
}

func (e *unreachedError) Error() string { return e.err.Error() }
func (e *unreachedError) Unwrap() error { return e.err }

// receiveOthers is rank 0's part of the rendezvous. It returns the address that it listens on.
func (j *joined) receiveOthers(ctx context.Context, me hello) (net.IP, error) {
	ip, err := listenOn(ctx, j.cfg)
	if err != nil {
		return nil, err
	}
	if j.host, err = newHost(j.control, me, ip); err != nil {
		return nil, err
	}
	if j.refusal != nil {
		j.host.wontJoin(*j.refusal)
	}
	if err := j.host.publish(j.store); err != nil {
		return nil, fmt.Errorf("group: the store at %s: %w", j.cfg.Address, err)
	}
	if j.refusal != nil {
		return nil, j.host.tellAll(ctx)
	}
	return ip, j.host.assemble(ctx)
}

// saysWithin is how long a store that rank 0 has started may be without its address.
const saysWithin = 5 * time.Second

var errSilent = errors.New("it has not said where it listens; want a port that nothing else listens on")

// attend is any other member's part. It returns the address by which this one reaches rank 0.
func (j *joined) attend(ctx, user context.Context, me hello) (net.IP, error) {
	began := time.Now()
	failed := func(what string, err error) error {
		return fmt.Errorf("group: rank %d of %d: %s: %w, after %v", me.rank, me.size, what, err, time.Since(began).Round(time.Millisecond))
	}
	// Torchrun's agent has the store before there is a rank 0, which otherwise starts it and says at once
	// where it listens.
	asking, stop := ctx, func() {}
	if !j.cfg.AgentStore {
		asking, stop = context.WithTimeoutCause(ctx, saysWithin, errSilent)
	}
	value, err := j.store.wait(asking, controlKey)
	stop()
	if err == errSilent {
		return nil, failed(fmt.Sprintf("what listens at %s is a store of c10d, but not rank 0 of a job", j.cfg.Address), err)
	}
	if err != nil && ctx.Err() == nil {
		return nil, &unreachedError{failed("the store at "+j.cfg.Address, err), false}
	}
	if err != nil {
		return nil, failed("rank 0 has not said in the store at "+j.cfg.Address+" where it listens", err)
	}
	at, err := parseContact(value)
	if err != nil {
		return nil, err
	}
	j.store.first = at.address
	token := j.cfg.Token
	switch {
	case at.token != "" && token != "":
		return nil, fmt.Errorf("group: rank %d has a token, and rank 0 has none; want the same on all ranks (PENSTOCK_TOKEN)", me.rank)
	case at.token == "" && token == "":
		return nil, fmt.Errorf("group: rank 0 has a token, and rank %d has none; want the same on all ranks (PENSTOCK_TOKEN)", me.rank)
	case token == "":
		token = at.token
	}
	d := net.Dialer{Timeout: answerWithin}
	conn, err := d.DialContext(ctx, "tcp", at.address)
	if err != nil {
		return nil, &unreachedError{failed("rank 0 listens at "+at.address+" and cannot be reached there; want Interface on rank 0, the network interface that the others reach", err), errors.Is(err, syscall.ECONNREFUSED)}
	}
	var refused *refusedError
	if err := introduce(conn, token, me, j.cfg.Silence); errors.As(err, &refused) {
		_ = conn.Close()
		return nil, refused
	} else if err != nil {
		_ = conn.Close()
		return nil, &unreachedError{failed("rank 0 at "+at.address, err), false}
	}
	j.add(newPeer(0, conn, j.cfg))
	if j.refusal != nil {
		j.fail(*j.refusal)
		return nil, nil
	}
	// Rank 0's time ends first, and it knows who is missing.
	ctx, cancel := context.WithTimeoutCause(user, j.cfg.Timeout+j.cfg.Silence, errTimeout)
	defer cancel()
	select {
	case <-j.ready:
	case <-j.first.failed:
		return nil, j.first.get()
	case <-ctx.Done():
		j.mu.Lock()
		defer j.mu.Unlock()
		return nil, failed("it waited for "+j.waiting, context.Cause(ctx))
	}
	ip := conn.LocalAddr().(*net.TCPAddr).IP
	if j.cfg.Interface != "" {
		return addressOf(j.cfg.Interface)
	}
	return ip, nil
}

func (j *joined) send(t *torch.Tensor, to, tag int) (link.Work, error) {
	return j.data.send(t, to, tag)
}

func (j *joined) receive(t *torch.Tensor, from, tag int) (link.Work, error) {
	return j.data.receive(t, from, tag)
}

// close leaves the group, in good order if it has not failed. It is also the end of a join that has
// failed.
func (j *joined) close() error {
	if j.data != nil && j.first.get() == nil {
		j.sayGoodbye()
	}
	j.flush(time.Second)
	close(j.closing)
	if j.data != nil {
		j.data.close()
	}
	if j.host != nil {
		j.host.close()
	}
	j.control.close()
	if j.store != nil {
		j.store.Close()
	}
	return nil
}

// quiet is how long a wait may take before it is told.
const quiet = 2 * time.Second

// whenLong calls say if a wait takes long. Its result is called when the wait ends, and returns when say is not running
// any more: what say writes to may belong to a caller who does not expect it later.
func whenLong(say func()) (ended func()) {
	said := make(chan struct{})
	t := time.AfterFunc(quiet, func() {
		defer close(said)
		say()
	})
	return func() {
		if !t.Stop() {
			<-said
		}
	}
}

// log is where is told what is refused, and what is waited for.
func (c Config) log() *slog.Logger {
	if c.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return c.Log
}
