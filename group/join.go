package group

import (
	"context"
	"log/slog"
	"net"
	"os"

	"penstock.example/internal/link"
	"penstock.example/torch"
)

// Join makes this process a member of a group. It blocks until all members have come, ctx is done or
// Config.Timeout has passed. If a rank is missing or comes twice, or if members differ in the size of the
// group or in libtorch, it fails on all ranks that have come. The caller closes the group.
func Join(ctx context.Context, cfg Config) (*Group, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	cfg = cfg.filled()
	if cfg.Size == 1 {
		return Local(1)[0], nil
	}
	m := &remoteMember{control: newControl(cfg)}
	if err := m.join(ctx); err != nil {
		_ = m.close()
		return nil, err
	}
	return &Group{rank: cfg.Rank, size: cfg.Size, first: m.first, member: m}, nil
}

// remoteMember is a member in a process of its own.
type remoteMember struct {
	*control
	data *carrier
}

// introduction is the hello of this process, without proof.
func introduction(c Config) hello {
	name, err := os.Hostname()
	if err != nil {
		name = "?"
	}
	const most = 64
	return hello{Size: c.Size, PID: os.Getpid(), Host: cut(name, most), Libtorch: cut(torch.Version(), most)}
}

func (m *remoteMember) join(user context.Context) (err error) {
	ctx, cancel := context.WithTimeoutCause(user, m.cfg.Timeout, errTimeout)
	defer cancel()
	var ip net.IP
	if m.cfg.Rank == 0 {
		ip, err = m.assemble(ctx, introduction(m.cfg))
	} else {
		ip, err = m.meetRank0(ctx, user, introduction(m.cfg))
	}
	if err != nil {
		return err
	}
	if m.data, err = openCarrier(ctx, m.control, ip); err == nil {
		_, err = m.gather(ctx, "joined", nil)
	}
	if err != nil {
		f := Failure{Rank: m.cfg.Rank, Stage: -1, MicroBatch: -1, Action: "joining", Message: err.Error()}
		m.fail(f.bounded())
		return m.first.get()
	}
	m.board.Close()
	return nil
}

func (m *remoteMember) send(t *torch.Tensor, to, tag int) (link.Work, error) {
	return m.data.send(t, to, tag)
}

func (m *remoteMember) receive(t *torch.Tensor, from, tag int) (link.Work, error) {
	return m.data.receive(t, from, tag)
}

// close leaves the group, in order if it has not failed. It is also the end of a join that has failed.
func (m *remoteMember) close() error {
	if m.data != nil && m.first.get() == nil {
		m.leaveInOrder()
	}
	close(m.closing)
	if m.data != nil {
		m.data.close()
	}
	m.control.close()
	return nil
}

// log returns Log, or a logger that discards all.
func (c Config) log() *slog.Logger {
	if c.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return c.Log
}
