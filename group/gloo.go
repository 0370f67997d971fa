package group

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"penstock.example/internal/link"
	"penstock.example/internal/shim"
	"penstock.example/torch"
)

// tensorTransport moves tensors between processes with Gloo. Its waits have no time limits, as Gloo closes a
// connection after a time-out. Waits are aborted when the group has failed.
type tensorTransport struct {
	gloo    shim.Gloo
	c       *control
	mu      sync.Mutex
	works   map[*work]bool // works without a Wait
	aborted bool           // no transfer begins any more
	watcher sync.WaitGroup // runs watch
}

// openTransport connects this process with all others, and listens on ip. ctx has a deadline. Gloo's
// addresses go over the control connections.
func openTransport(ctx context.Context, c *control, ip net.IP) (*tensorTransport, error) {
	end, _ := ctx.Deadline()
	d, opened := &tensorTransport{c: c, works: map[*work]bool{}}, make(chan error, 1)
	go func() {
		var err error
		d.gloo, err = shim.OpenGloo(c.board, c.cfg.Rank, c.cfg.Size, ip.String(), time.Until(end))
		opened <- err
	}()
	go func() { // until the board is closed
		for key, value, ok := c.board.Take(); ok; key, value, ok = c.board.Take() {
			c.broadcast(jsonFrame(kindAddress, c.cfg.Rank, part{key, value}), nil)
		}
	}()
	select {
	case err := <-opened:
		if err == nil {
			d.watcher.Go(d.watch)
			return d, nil
		}
		select { // rank 0 may report a lost member, which is the reason
		case <-c.failure.failed:
		case <-time.After(link.VerdictTime):
		}
		return nil, cmp.Or(c.failure.get(), err)
	case <-c.failure.failed:
	case <-ctx.Done():
	}
	c.board.Close()
	go func() { // until Gloo's own time limit
		if <-opened == nil {
			d.gloo.Close()
		}
	}()
	return nil, cmp.Or(c.failure.get(), context.Cause(ctx))
}

// watch aborts all transfers when the group has failed or this member leaves.
func (d *tensorTransport) watch() {
	select {
	case <-d.c.failure.failed:
	case <-d.c.gathers.closing:
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.aborted = true
	for w := range d.works {
		w.transfer.Abort()
	}
}

// work is a send or a receive. Its Wait blocks in Gloo, which reports an end in no other way. A
// goroutine that waits for all works would cost a thread, and two switches for each work.
type work struct {
	d        *tensorTransport
	peer     int
	transfer shim.Transfer
	once     sync.Once
	err      error
}

func (w *work) Wait() error {
	w.once.Do(func() {
		done, err := w.transfer.Wait()
		w.d.mu.Lock()
		delete(w.d.works, w)
		w.transfer.Free()
		w.d.mu.Unlock()
		switch {
		case err != nil:
			w.err = w.d.reportBroken(w.peer, err)
		case !done:
			w.err = w.d.endError()
		}
	})
	return w.err
}

func (d *tensorTransport) send(t *torch.Tensor, to, tag int) (link.Work, error) {
	return d.begin(to, func() (shim.Transfer, error) { return d.gloo.Send(t.Handle(), to, tag) })
}

func (d *tensorTransport) receive(t *torch.Tensor, from, tag int) (link.Work, error) {
	return d.begin(from, func() (shim.Transfer, error) { return d.gloo.Receive(t.Handle(), from, tag) })
}

func (d *tensorTransport) begin(peer int, f func() (shim.Transfer, error)) (link.Work, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.aborted || d.c.failure.get() != nil {
		return nil, d.endError()
	}
	t, err := f()
	if err != nil {
		return nil, d.reportBroken(peer, err)
	}
	w := &work{d: d, peer: peer, transfer: t}
	d.works[w] = true
	return w, nil
}

func (d *tensorTransport) endError() error { return cmp.Or(d.c.failure.get(), errClosed) }

// reportBroken reports a broken connection to a peer, waits for rank 0's decision and returns it.
func (d *tensorTransport) reportBroken(peer int, err error) error {
	if d.c.failure.get() == nil {
		why := fmt.Sprintf("the connection for tensors between it and rank %d broke: %v", d.c.cfg.Rank, err)
		d.c.report(&LostError{Rank: peer, Why: why})
	}
	select {
	case <-d.c.failure.failed:
	case <-d.c.gathers.closing:
	}
	return d.endError()
}

// close closes the connections after all works have ended.
func (d *tensorTransport) close() {
	d.watcher.Wait()
	d.mu.Lock()
	left := slices.Collect(maps.Keys(d.works))
	d.mu.Unlock()
	for _, w := range left {
		_ = w.Wait()
	}
	d.gloo.Close()
}
