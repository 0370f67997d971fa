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
	"penstock.example/torch"
)

// carrier moves tensors between processes with Gloo. Nothing in it has a time limit: Gloo closes a
// connection whose wait took too long. What waits is aborted instead, when the group has failed.
type carrier struct {
	gloo    *torch.Gloo
	c       *control
	mu      sync.Mutex
	works   map[*work]bool // that nobody has waited for to the end
	shut    bool           // what waits was aborted, and nothing begins any more
	watcher sync.WaitGroup // the goroutine that aborts
}

// openCarrier connects this process with all others. ip is the address that it listens on.
func openCarrier(ctx context.Context, c *control, s *store, ip net.IP) (*carrier, error) {
	within := c.cfg.Timeout
	if end, ok := ctx.Deadline(); ok {
		within = time.Until(end)
	}
	type opened struct {
		gloo *torch.Gloo
		err  error
	}
	result := make(chan opened, 1)
	go func() {
		g, err := torch.OpenGloo(s.Store, s.prefix+"penstock/gloo "+s.first, c.cfg.Rank, c.cfg.Size, ip.String(), within)
		result <- opened{g, err}
	}()
	giveUp := func(err error) (*carrier, error) {
		s.Interrupt()
		go func() { // it ends when Gloo gives up as well
			if o := <-result; o.gloo != nil {
				o.gloo.Close()
			}
		}()
		return nil, err
	}
	var o opened
	select {
	case o = <-result:
	case <-c.first.failed:
		return giveUp(c.first.get())
	case <-ctx.Done():
		return giveUp(context.Cause(ctx))
	}
	if o.err != nil {
		c.unheard()
		return nil, cmp.Or(c.first.get(), o.err)
	}
	d := &carrier{gloo: o.gloo, c: c, works: map[*work]bool{}}
	d.watcher.Go(func() {
		select {
		case <-c.first.failed:
		case <-c.closing:
		}
		d.abort()
	})
	return d, nil
}

// work is a send or a receive. Gloo cannot be asked whether one has ended. Whoever calls Wait waits
// in Gloo: a goroutine that waits for all of them costs a thread and two switches for each.
type work struct {
	d        *carrier
	peer     int
	transfer *torch.Transfer
	waiter   sync.Once
	err      error
}

func (w *work) Wait() error {
	w.waiter.Do(w.finish)
	return w.err
}

func (d *carrier) send(t *torch.Tensor, to, tag int) (link.Work, error) {
	return d.begin(to, func() (*torch.Transfer, error) { return d.gloo.Send(t, to, tag) })
}

func (d *carrier) receive(t *torch.Tensor, from, tag int) (link.Work, error) {
	return d.begin(from, func() (*torch.Transfer, error) { return d.gloo.Receive(t, from, tag) })
}

// begin begins a transfer with a peer.
func (d *carrier) begin(peer int, f func() (*torch.Transfer, error)) (link.Work, error) {
	d.mu.Lock()
	if d.shut {
		d.mu.Unlock()
		return nil, d.over()
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
		w.err = w.d.over()
	}
}

// over is the error of what was aborted.
func (d *carrier) over() error {
	if err := d.c.first.get(); err != nil {
		return err
	}
	return errClosed
}

// verdict is how long a member with a broken connection waits to be told who has failed. A peer
// that has heard of a failure closes its connections, perhaps before this member has heard of it.
const verdict = 500 * time.Millisecond

// unheard waits for the verdict on a connection for tensors that has broken, or could not be opened. It reports whether
// there is none.
func (c *control) unheard() bool {
	select {
	case <-c.first.failed:
		return false
	case <-c.closing:
		return false
	case <-time.After(verdict):
		return true
	}
}

// broken is the error of a connection that has broken: the group's, which it is the first of if
// there is none.
func (d *carrier) broken(peer int, err error) error {
	if d.c.unheard() {
		d.c.end(&LostError{Rank: peer, Why: cut(fmt.Sprintf("the connection for tensors between it and rank %d broke: %v", d.c.cfg.Rank, err), MaxMessage)}, nil)
	}
	return d.over()
}

// abort ends what waits.
func (d *carrier) abort() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.shut = true
	for w := range d.works {
		w.transfer.Abort()
	}
}

// close ends what waits and closes the connections.
func (d *carrier) close() {
	d.abort()
	d.mu.Lock()
	left := slices.Collect(maps.Keys(d.works))
	d.mu.Unlock()
	for _, w := range left {
		_ = w.Wait()
	}
	d.watcher.Wait()
	d.gloo.Close()
}
