package group

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"penstock/internal/link"
	"penstock/torch"
)

// carrier moves tensors between processes with Gloo. Nothing in it has a time limit: Gloo closes a
// connection whose wait took too long. What waits is aborted instead, when the group has failed.
type carrier struct {
	gloo  *torch.Gloo
	c     *control
	mu    sync.Mutex
	works map[*work]bool // that have not ended
	shut  bool           // what waits was aborted, and nothing begins any more
	ended sync.WaitGroup // of works
	watch sync.WaitGroup
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
		g, err := torch.OpenGloo(s.Store, s.prefix+"penstock/gloo", c.cfg.Rank, c.cfg.Size, ip.String(), within)
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
		return nil, o.err
	}
	d := &carrier{gloo: o.gloo, c: c, works: map[*work]bool{}}
	d.watch.Go(func() {
		select {
		case <-c.first.failed:
		case <-c.closing:
		}
		d.abort()
	})
	return d, nil
}

// work is a send or a receive. A goroutine of its own waits for its end, as Gloo cannot be asked
// whether it has come.
type work struct {
	transfer *torch.Transfer
	ended    chan struct{}
	err      error // set before ended is closed
}

func (w *work) Wait() error {
	<-w.ended
	return w.err
}

func (w *work) Done() bool {
	select {
	case <-w.ended:
		return true
	default:
		return false
	}
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
	w := &work{transfer: t, ended: make(chan struct{})}
	d.works[w] = true
	d.ended.Go(func() { d.finish(w, peer) })
	d.mu.Unlock()
	return w, nil
}

// finish waits for the end of a work.
func (d *carrier) finish(w *work, peer int) {
	done, err := w.transfer.Wait()
	d.mu.Lock()
	delete(d.works, w)
	w.transfer.Free()
	d.mu.Unlock()
	switch {
	case err != nil:
		w.err = d.broken(peer, err)
	case !done:
		w.err = d.over()
	}
	close(w.ended)
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

// broken is the error of a connection that has broken: the group's, which it is the first of if
// there is none.
func (d *carrier) broken(peer int, err error) error {
	select {
	case <-d.c.first.failed:
	case <-d.c.closing:
		return errClosed
	case <-time.After(verdict):
		d.c.end(&LostError{Rank: peer, Why: cut(fmt.Sprintf("the connection for tensors between it and rank %d broke: %v", d.c.cfg.Rank, err), MaxMessage)}, nil)
	}
	return d.c.first.get()
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
	d.ended.Wait()
	d.watch.Wait()
	d.gloo.Close()
}
