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

// carrier moves tensors between processes with Gloo. Nothing in it has a time limit: Gloo closes a
// connection if a wait takes too long. Waits are aborted instead, when the group has failed.
type carrier struct {
	gloo    shim.Gloo
	c       *control
	mu      sync.Mutex
	works   map[*work]bool // that have not been waited for
	aborted bool           // no transfer begins any more
	watcher sync.WaitGroup // watch
}

// openCarrier connects this process with all others. ip is the address that it listens on. Gloo's
// addresses go over the control connections.
func openCarrier(ctx context.Context, c *control, ip net.IP) (*carrier, error) {
	within := c.cfg.Timeout
	if end, ok := ctx.Deadline(); ok {
		within = time.Until(end)
	}
	d, opened := &carrier{c: c, works: map[*work]bool{}}, make(chan error, 1)
	go func() {
		var err error
		d.gloo, err = shim.OpenGloo(c.board, c.cfg.Rank, c.cfg.Size, ip.String(), within)
		opened <- err
	}()
	go func() { // until the board is closed
		for key, value, ok := c.board.Take(); ok; key, value, ok = c.board.Take() {
			c.tell(jsonFrame(kindEntry, c.cfg.Rank, entry{key, value}), nil)
		}
	}()
	select {
	case err := <-opened:
		if err == nil {
			d.watcher.Go(d.watch)
			return d, nil
		}
		select { // the reason may be a lost member, which rank 0 reports
		case <-c.first.failed:
		case <-time.After(link.VerdictTime):
		}
		return nil, cmp.Or(c.first.get(), err)
	case <-c.first.failed:
	case <-ctx.Done():
	}
	c.board.Close()
	go func() { // it ends when Gloo gives up as well
		if <-opened == nil {
			d.gloo.Close()
		}
	}()
	return nil, cmp.Or(c.first.get(), context.Cause(ctx))
}

// watch ends all waits when the group has failed or this member leaves.
func (d *carrier) watch() {
	select {
	case <-d.c.first.failed:
	case <-d.c.gathers.closing:
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.aborted = true
	for w := range d.works {
		w.transfer.Abort()
	}
}

// work is a send or a receive. Gloo cannot be asked whether one has ended. The caller of Wait waits in
// Gloo: a goroutine that waits for all of them costs a thread and two switches for each.
type work struct {
	d        *carrier
	peer     int
	transfer shim.Transfer
	once     sync.Once
	err      error
}

func (w *work) Wait() error {
	w.once.Do(w.finish)
	return w.err
}

// finish waits for the end of a work.
func (w *work) finish() {
	done, err := w.transfer.Wait()
	w.d.mu.Lock()
	delete(w.d.works, w)
	w.transfer.Free()
	w.d.mu.Unlock()
	switch {
	case err != nil:
		w.err = w.d.broken(w.peer, err)
	case !done:
		w.err = w.d.endError()
	}
}

func (d *carrier) send(t *torch.Tensor, to, tag int) (link.Work, error) {
	return d.begin(to, func() (shim.Transfer, error) { return d.gloo.Send(t.Handle(), to, tag) })
}

func (d *carrier) receive(t *torch.Tensor, from, tag int) (link.Work, error) {
	return d.begin(from, func() (shim.Transfer, error) { return d.gloo.Receive(t.Handle(), from, tag) })
}

// begin begins a transfer with a peer.
func (d *carrier) begin(peer int, f func() (shim.Transfer, error)) (link.Work, error) {
	d.mu.Lock()
	if d.aborted {
		d.mu.Unlock()
		return nil, d.endError()
	}
	t, err := f()
	if err != nil {
		d.mu.Unlock()
		return nil, d.broken(peer, err)
	}
	w := &work{d: d, peer: peer, transfer: t}
	d.works[w] = true
	d.mu.Unlock()
	return w, nil
}

// endError is the error of an aborted transfer.
func (d *carrier) endError() error { return cmp.Or(d.c.first.get(), errClosed) }

// broken reports that a connection has broken, and waits until rank 0 has decided why the group has ended.
func (d *carrier) broken(peer int, err error) error {
	if d.c.first.get() == nil {
		why := fmt.Sprintf("the connection for tensors between it and rank %d broke: %v", d.c.cfg.Rank, err)
		d.c.report(&LostError{Rank: peer, Why: why})
	}
	select {
	case <-d.c.first.failed:
	case <-d.c.gathers.closing:
	}
	return d.endError()
}

// close closes the connections of a member that leaves, when all works have ended.
func (d *carrier) close() {
	d.watcher.Wait()
	d.mu.Lock()
	left := slices.Collect(maps.Keys(d.works))
	d.mu.Unlock()
	for _, w := range left {
		_ = w.Wait()
	}
	d.gloo.Close()
}
