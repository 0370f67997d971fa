package launch

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"penstock.example/internal/arg"
)

// Place is the part of a node in a start of the job.
type Place struct {
	Start int   // how often the job was started before
	First int   // rank of the first process of this node
	Size  int   // processes of the job
	Nodes []int // that take part
}

// NameNodes is such as "node 2", or "nodes 0, 1 and 3".
func NameNodes(nodes []int) string { return arg.Numbered("node", nodes) }

// Work starts the processes of this node at a place and returns when they have ended. ctx ends when they
// are to finish what they do and save; abandon is closed when another node has failed.
type Work func(ctx context.Context, p Place, abandon <-chan struct{}) error

// Run takes part in a job until it is over. Each start calls work, and say is told why one follows
// another. Run returns nil if all processes of the last start have exited with 0 on all nodes, the
// error of work if that has ended the job, or one that says what has. At node 0 a Host has to be open.
func (n Nodes) Run(ctx context.Context, say func(text string), work Work) error {
	for {
		more, text, err := n.takePart(ctx, say, work)
		if !more {
			return err
		}
		say(text)
	}
}

// lostHost is why a node calls node 0 again.
const lostHost = "the launcher of node 0 has gone; calling it again"

// takePart is a start of the job. more is whether there may be another, and text why.
func (n Nodes) takePart(user context.Context, say func(text string), work Work) (more bool, text string, err error) {
	w, err := n.call(user, say)
	if err != nil {
		return false, "", err
	}
	defer w.Close()
	messages := make(chan message)
	ended := make(chan struct{})
	defer close(ended)
	go w.pass(messages, ended)

	var place Place
	for place.Size == 0 {
		select {
		case <-user.Done():
			return false, "", context.Cause(user)
		case m, ok := <-messages:
			switch {
			case !ok:
				return true, lostHost, nil
			case m.Kind == over:
				return false, "", outcome(m)
			case m.Kind == start && m.Place != nil:
				place = *m.Place
			}
		}
	}

	ctx, interruptAll := context.WithCancel(user)
	defer interruptAll()
	abandoned, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- work(ctx, place, abandoned) }()
	lost, told := false, false
	for running := true; running; {
		select {
		case err = <-done:
			running = false
		case m, ok := <-messages:
			if !ok {
				messages, lost = nil, true
			}
			if m.Kind == interrupt {
				interruptAll()
			}
			if (lost || m.Kind == abandon) && !told {
				told = true
				close(abandoned)
			}
		}
	}
	report := message{Kind: succeeded}
	if err != nil {
		report = message{Kind: failure, Text: strings.TrimPrefix(err.Error(), "launch: ")}
		var f *Failure
		if errors.As(err, &f) {
			report.Code = f.Code
		}
		if user.Err() != nil {
			report.Kind = interrupted
		} else if ctx.Err() != nil {
			report.Kind = stopped
		}
	}
	if lost || w.write(report) != nil {
		return user.Err() == nil, lostHost, err
	}
	for m := range messages {
		switch m.Kind {
		case again:
			return true, m.Text, nil
		case over:
			if user.Err() != nil && err != nil {
				return false, "", err
			}
			return false, "", outcome(m)
		}
	}
	return user.Err() == nil, lostHost, err
}

// outcome is the error of a job that is over, by what node 0 says.
func outcome(m message) error {
	if m.Text == "" {
		return nil
	}
	return &EndError{Text: m.Text, Code: m.Code}
}

// pass passes on what comes, until the connection or what it is for has ended.
func (w *wire) pass(to chan<- message, ended <-chan struct{}) {
	defer close(to)
	for {
		m, err := w.read(start, interrupt, abandon, again, over)
		if err != nil {
			return
		}
		select {
		case to <- m:
		case <-ended:
			return
		}
	}
}

// call connects to node 0.
func (n Nodes) call(ctx context.Context, say func(text string)) (*wire, error) {
	ctx, cancel := context.WithTimeout(ctx, n.Timeout)
	defer cancel()
	var nameless atomic.Bool
	slow := time.AfterFunc(quiet, func() {
		why := "does not answer yet"
		if nameless.Load() {
			why = "cannot be called: no such host yet"
		}
		say(fmt.Sprintf("the launcher of node 0, at %s, %s; calling it for %v", n.Address, why, n.Timeout))
	})
	defer slow.Stop()
	var last error
	for {
		w, err := n.callOnce(ctx)
		var no *EndError
		if err == nil || errors.As(err, &no) && !no.Later || errors.Is(err, errToken) {
			return w, err
		}
		pause := 100 * time.Millisecond
		nameless.Store(notFound(err))
		if nameless.Load() {
			pause = lookAgain
		}
		if last == nil || ctx.Err() == nil { // a call that the end of the time has cut short says less
			last = err
		}
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.Canceled) {
				return nil, context.Cause(ctx)
			}
			return nil, fmt.Errorf("launch: node %d cannot join at the launcher of node 0, at %s, within %v: %w; want launch on node 0 as well, an address of it that this node reaches (--rendezvous), or more time (--join-timeout)",
				n.Node, n.Address, n.Timeout, last)
		case <-time.After(pause):
		}
	}
}

// quiet is how long node 0 may take to answer before that is said.
const quiet = 2 * time.Second

// lookAgain is how often a name that is not found is looked up. Names of containers come after their start.
const lookAgain = time.Second

// notFound reports whether an error is that of a name for which there is no host.
func notFound(err error) bool {
	var unknown *net.DNSError
	return errors.As(err, &unknown) && unknown.IsNotFound
}

func (n Nodes) callOnce(ctx context.Context) (*wire, error) {
	d := net.Dialer{Timeout: answers}
	c, err := d.DialContext(ctx, "tcp", n.Address)
	if err != nil {
		return nil, err
	}
	w := newWire(c)
	if err := w.introduce(n.Token, n.hello()); err != nil {
		_ = c.Close()
		return nil, err
	}
	return w, nil
}

// hello is what this node says of itself.
func (n Nodes) hello() message {
	const longest = 4 << 10
	return message{Node: n.Node, Processes: n.Processes, Least: n.Least, Most: n.Most, Text: strings.ToValidUTF8(n.Refusal[:min(len(n.Refusal), longest)], "?")}
}

// fits reports whether the job can be started on so many nodes.
func (n Nodes) fits(nodes int) bool {
	return nodes >= n.Least && nodes <= n.Most && (n.Fits == nil || n.Fits(nodes))
}

// most is the most nodes of so many on which the job can be started, or 0.
func (n Nodes) most(there int) int {
	for ; there > 0; there-- {
		if n.fits(there) {
			return there
		}
	}
	return 0
}

// absent are the nodes that are not among those.
func (n Nodes) absent(there []int) (out []int) {
	for node := range n.Most {
		if !slices.Contains(there, node) {
			out = append(out, node)
		}
	}
	return out
}
