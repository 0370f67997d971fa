package launch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"penstock.example/internal/arg"
)

// Host is where launchers meet, at node 0. One goroutine has all of its state; one for each connection
// tells it what comes.
type Host struct {
	nodes   Nodes
	log     func(text string) // of connections that are refused
	listen  net.Listener
	events  chan event
	closing chan struct{}
	settled chan struct{} // closed when all who may come know that the job is over
	all     sync.WaitGroup

	// Of the goroutine of serve.
	waiting  map[int]*visitor // for the next start, by node
	part     map[int]*visitor // in this start; nil: there is none
	starts   int
	restarts int
	grown    bool    // this start is to end for one with more nodes
	first    message // of the node whose failure ends this start; no Kind: there is none
	finished *message
	heard    map[int]message  // the hellos before the first start, by node
	told     map[int]bool     // the nodes that know why it does not start
	late     bool             // the time in which nodes may come is over
	patience <-chan time.Time // for the first start, or the next
	last     <-chan time.Time // when no more nodes are waited for; nil while there are too few
	called   bool             // last is over
	reports  <-chan time.Time // when a node that has not said how it ended counts as gone
}

// visitor is a node as node 0 sees it. Its next start is a new one.
type visitor struct {
	*wire
	hello, welcome message
	report         *message // how its processes have ended
	gone           bool
}

// event is what comes from a visitor: a message, or the end of its connection if there is none.
type event struct {
	from *visitor
	said *message
}

// slow is how long the other nodes may take to end after a failure.
const slow = 30 * time.Second

// handshakes is the most connections that may be in a handshake.
const handshakes = 64

// Open lets the launchers of a job meet here. It blocks while there is no host of the name in Nodes.Address,
// until there is, ctx is done or Nodes.Timeout has passed. log is told of that, and of connections that are
// refused. The caller closes the host after Run has returned.
func (n Nodes) Open(ctx context.Context, log func(text string)) (*Host, error) {
	at, err := n.listenAt(ctx, log)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", at)
	if err != nil {
		return nil, fmt.Errorf("launch: node 0 cannot listen at %s: %w; want --rendezvous with an address of this machine and a port that is free, as the next one", at, err)
	}
	h := &Host{nodes: n, log: log, listen: l, events: make(chan event), closing: make(chan struct{}), settled: make(chan struct{}),
		waiting: map[int]*visitor{}, heard: map[int]message{0: n.hello()}, told: map[int]bool{}}
	h.patience = time.After(n.Timeout)
	h.all.Go(h.accept)
	h.all.Go(h.serve)
	return h, nil
}

// listenAt is the address to listen at: the one that is given, unless it is a name that means this
// machine to itself only.
func (n Nodes) listenAt(ctx context.Context, say func(text string)) (string, error) {
	host, port, err := net.SplitHostPort(n.Address)
	if err != nil {
		return "", fmt.Errorf("launch: %w", err)
	}
	if _, err := netip.ParseAddr(host); err == nil || host == "localhost" {
		return n.Address, nil
	}
	ips, err := n.lookUp(ctx, host, say)
	if err != nil {
		return "", err
	}
	for _, ip := range ips {
		if !ip.IsLoopback() {
			return net.JoinHostPort(ip.String(), port), nil
		}
	}
	return net.JoinHostPort("", port), nil
}

// lookUp waits until a name of this machine is found.
func (n Nodes) lookUp(ctx context.Context, host string, say func(text string)) ([]net.IP, error) {
	waiting, cancel := context.WithTimeout(ctx, n.Timeout)
	defer cancel()
	slow := time.AfterFunc(quiet, func() {
		say(fmt.Sprintf("the launcher of node 0 is to listen at %s: no such host yet; looking it up for %v", n.Address, n.Timeout))
	})
	defer slow.Stop()
	ips, err := LookUp(waiting, host)
	switch {
	case err == nil:
		return ips, nil
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	}
	return nil, fmt.Errorf("launch: node 0 finds no address to listen at for %s within %v: %w; want --rendezvous with an address or a name of the first machine, or more time (--join-timeout)", n.Address, n.Timeout, err)
}

// LookUp waits until a host has addresses. When ctx ends first it returns the error of the last
// search that ctx has not cut short.
func LookUp(ctx context.Context, host string) ([]net.IP, error) {
	var last error
	for {
		ips, err := net.DefaultResolver.LookupIP(ctx, "ip", host)
		if err == nil {
			return ips, nil
		}
		if last == nil || ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return nil, last
		case <-time.After(lookAgain):
		}
	}
}

// Wait blocks until the job is over. Where it is over without a start, as launchers differ or refuse, it stays
// for those that are still to come, so that they hear why: until all have, or Nodes.Timeout has passed since
// Open, or ctx is done.
func (h *Host) Wait(ctx context.Context) {
	select {
	case <-h.settled:
	case <-ctx.Done():
	}
}

// Close ends all connections.
func (h *Host) Close() {
	close(h.closing)
	_ = h.listen.Close()
	h.all.Wait()
}

func (h *Host) accept() {
	limit := make(chan struct{}, handshakes)
	for {
		c, err := h.listen.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of file descriptors, most likely
			time.Sleep(100 * time.Millisecond)
			continue
		}
		select {
		case limit <- struct{}{}:
			h.all.Go(func() { h.attend(newWire(c), func() { <-limit }) })
		default:
			_ = c.Close()
		}
	}
}

// attend passes on what a visitor says.
func (h *Host) attend(w *wire, shaken func()) {
	ended := make(chan struct{})
	defer close(ended)
	h.all.Go(func() {
		select {
		case <-h.closing:
		case <-ended:
		}
		_ = w.Close()
	})
	who, ok, err := w.admit(h.nodes.Token)
	shaken()
	if err != nil {
		if errors.Is(err, errToken) {
			_ = w.write(message{Kind: refused, Code: Usage, Text: "node 0 has refused this node: it does not know the job's token; want the same PENSTOCK_TOKEN on all nodes"})
		}
		select {
		case <-h.closing: // which ends handshakes
		default:
			h.log(fmt.Sprintf("a connection from %v was refused: %v", w.RemoteAddr(), err))
		}
		return
	}
	v := &visitor{wire: w, hello: who, welcome: ok}
	for m := &who; h.tell(event{v, m}) && m != nil; {
		said, err := w.read(succeeded, failure, interrupted, stopped)
		if m = &said; err != nil {
			m = nil
		}
	}
}

// tell passes an event to the goroutine of serve, unless the host is closed.
func (h *Host) tell(e event) bool {
	select {
	case h.events <- e:
		return true
	case <-h.closing:
		return false
	}
}

func (h *Host) serve() {
	for {
		select {
		case <-h.closing:
			return
		case e := <-h.events:
			switch {
			case e.said == nil:
				h.lose(e.from, fmt.Sprintf("the launcher of node %d has gone", e.from.hello.Node))
			case e.said.Kind == hello:
				h.welcome(e.from)
			case e.from.report == nil && h.part[e.from.hello.Node] == e.from:
				h.note(e.from, *e.said)
			}
		case <-h.patience:
			h.giveUp()
		case <-h.last:
			h.called = true
		case <-h.reports:
			for _, v := range h.part {
				if v.report == nil {
					h.lose(v, fmt.Sprintf("the launcher of node %d does not say how its processes have ended", v.hello.Node))
				}
			}
		}
		switch {
		case h.finished != nil:
		case h.part == nil:
			h.gather()
		default:
			h.conclude()
		}
	}
}

// wrong is why nodes that say this, by their numbers, do not start a job together, or "".
func wrong(heard map[int]message) string {
	nodes, processes := map[int]string{}, map[int]string{}
	for _, node := range slices.Sorted(maps.Keys(heard)) {
		m := heard[node]
		if m.Text != "" {
			return fmt.Sprintf("node %d refuses its command line: %s", node, m.Text)
		}
		nodes[node], processes[node] = fmt.Sprint(m.Least), fmt.Sprint(m.Processes)
		if m.Most != m.Least {
			nodes[node] += fmt.Sprintf(":%d", m.Most)
		}
	}
	differences := slices.DeleteFunc([]string{arg.Differ("node", "--nodes", nodes), arg.Differ("node", "--processes", processes)}, func(s string) bool { return s == "" })
	if len(differences) == 0 {
		return ""
	}
	return "the launchers do not start the same job: " + strings.Join(differences, "; ") + "; want the same on all"
}

// welcome lets a node wait for the next start, or refuses it.
func (h *Host) welcome(v *visitor) {
	node, n := v.hello.Node, h.nodes
	_, waits := h.waiting[node]
	runs := h.part[node] != nil && !h.part[node].gone
	begun := h.starts > 0
	if !begun {
		if h.heard[node] = v.hello; h.finished == nil && wrong(h.heard) != "" {
			h.finish(message{Kind: over, Node: -1, Text: wrong(h.heard), Code: Usage})
		}
	}
	no := message{Kind: refused, Code: Usage}
	switch {
	case begun:
		no.Text = wrong(map[int]message{0: n.hello(), node: v.hello})
	case h.finished != nil:
		no.Text = wrong(h.heard)
	}
	switch {
	case no.Text != "":
	case h.finished != nil:
		no.Text, no.Code = "the job is over", 0
	case node < 0 || node >= n.Most:
		no.Text = fmt.Sprintf("there are --nodes %d, and this is node %d; want a --node-rank from 0 to %d", n.Most, node, n.Most-1)
	case waits || runs:
		no.Text = fmt.Sprintf("there is a node %d already; want another --node-rank", node)
		no.Later = runs // it may be what is left of one that has gone
	}
	if no.Text != "" {
		h.log(fmt.Sprintf("node %d at %v was refused: %s", node, v.RemoteAddr(), no.Text))
		_ = v.write(no)
		_ = v.Close()
		h.tellOf(node)
		return
	}
	if v.write(v.welcome) != nil {
		return // its end is told as well
	}
	h.waiting[node] = v
	if h.part != nil && n.Saves && !h.grown && h.first.Kind == "" && n.most(len(h.part)+len(h.waiting)) > len(h.part) {
		h.grown = true
		h.say(message{Kind: interrupt})
	}
}

// lose notes that a node has gone.
func (h *Host) lose(v *visitor, why string) {
	v.gone = true
	_ = v.Close()
	node := v.hello.Node
	if h.waiting[node] == v {
		delete(h.waiting, node)
	}
	if h.part[node] == v && v.report == nil {
		h.note(v, message{Kind: failure, Text: why})
	}
}

// note notes how the processes of a node have ended, and ends those of the others if they have failed.
func (h *Host) note(v *visitor, m message) {
	m.Node = v.hello.Node
	if v.report = &m; m.Kind == succeeded || m.Kind == stopped {
		return
	}
	if h.first.Kind == "" {
		h.first = m
		h.say(message{Kind: abandon, Text: m.Text})
		h.reports = time.After(slow)
	} else if h.first.Kind == failure && (m.Kind == interrupted || m.Code == Usage && h.first.Code != Usage) { // why the others have ended
		h.first = m
	}
}

// say tells all nodes that have not ended.
func (h *Host) say(m message) {
	for _, v := range h.part {
		if v.report == nil {
			_ = v.write(m) // whose end is told
		}
	}
}

// gather starts the job if all nodes are there, or enough and no more are waited for.
func (h *Host) gather() {
	there, n := slices.Sorted(maps.Keys(h.waiting)), h.nodes
	most := n.most(len(there))
	if most == 0 || there[0] != 0 {
		h.last, h.called = nil, false
		return
	}
	if h.last == nil {
		h.last = time.After(n.Wait)
	}
	if most < n.Most && !h.called {
		return
	}
	h.part, h.first, h.grown = map[int]*visitor{}, message{}, false
	h.patience, h.last, h.called, h.reports = nil, nil, false, nil
	for i, node := range there[:most] {
		h.part[node] = h.waiting[node]
		delete(h.waiting, node)
		place := Place{Start: h.starts, First: i * n.Processes, Size: most * n.Processes, Nodes: there[:most]}
		_ = h.part[node].write(message{Kind: start, Place: &place})
	}
	h.starts++
}

// conclude says what comes next, when all nodes have ended.
func (h *Host) conclude() {
	all := true
	for _, v := range h.part {
		if v.report == nil {
			return
		}
		all = all && v.report.Kind == succeeded
	}
	n, what := h.nodes, h.first
	next := message{Kind: over, Text: what.Text, Node: what.Node, Code: what.Code}
	switch leaves := what.Kind == interrupted; {
	case all:
		next.Text = ""
	case leaves && (what.Node == 0 || n.Least == n.Most):
		next.Text = fmt.Sprintf("interrupted on node %d", what.Node)
	case leaves:
		next = message{Kind: again, Text: fmt.Sprintf("node %d was interrupted and leaves; starting again", what.Node)}
	case h.grown && what.Kind == "":
		next = message{Kind: again, Text: fmt.Sprintf("%s joins; starting again", NameNodes(slices.Sorted(maps.Keys(h.waiting))))}
	case what.Code == Usage && n.Restarts > 0:
		next.Text += Hopeless
	case what.Code == Usage:
	case h.restarts == n.Restarts:
		if n.Restarts > 0 {
			next.Text += fmt.Sprintf("; no restart of %d is left", n.Restarts)
		}
	default:
		h.restarts++
		next = message{Kind: again, Text: fmt.Sprintf("%s; starting again, restart %d of %d", what.Text, h.restarts, n.Restarts)}
	}
	for _, node := range slices.Backward(slices.Sorted(maps.Keys(h.part))) { // node 0 is the last, and may then close the host
		v := h.part[node]
		if v.report.Kind == interrupted {
			_ = v.write(message{Kind: over, Text: "interrupted", Node: node})
		} else {
			_ = v.write(next)
		}
	}
	h.part = nil
	if next.Kind == over {
		h.finish(next)
		return
	}
	h.patience = time.After(n.Timeout)
}

// finish ends the job for those that wait.
func (h *Host) finish(m message) {
	h.finished = &m
	for _, node := range slices.Backward(slices.Sorted(maps.Keys(h.waiting))) {
		_ = h.waiting[node].write(m)
		h.told[node] = true
	}
	if missing := h.untold(); len(missing) > 0 {
		h.log(fmt.Sprintf("%s; waiting for %s, to say so", m.Text, NameNodes(missing)))
	}
	h.settle()
}

// untold are the nodes that may still come and do not know why the job does not start.
func (h *Host) untold() (nodes []int) {
	if h.starts > 0 || h.late {
		return nil
	}
	most := 0
	for _, m := range h.heard {
		most = max(most, min(m.Most, MaxNodes))
	}
	for node := range most {
		if !h.told[node] {
			nodes = append(nodes, node)
		}
	}
	return nodes
}

// tellOf notes that a node knows why the job does not start.
func (h *Host) tellOf(node int) {
	if h.finished != nil {
		h.told[node] = true
		h.settle()
	}
}

// settle ends Wait when nobody is left to be told.
func (h *Host) settle() {
	select {
	case <-h.settled:
	default:
		if len(h.untold()) == 0 {
			close(h.settled)
		}
	}
}

// giveUp ends the job because too few nodes have come.
func (h *Host) giveUp() {
	if h.finished != nil {
		h.late = true
		h.settle()
	}
	if h.part != nil || h.finished != nil {
		return
	}
	n, there := h.nodes, slices.Sorted(maps.Keys(h.waiting))
	if n.most(len(there)) > 0 && there[0] == 0 { // they wait for more
		h.patience = time.After(n.Timeout)
		return
	}
	h.late = true
	h.finish(message{Kind: over, Node: -1, Text: fmt.Sprintf("%s of %d did not come within %v; want launch started there too, fewer --nodes, or more time (--join-timeout)",
		NameNodes(n.absent(there)), n.Most, n.Timeout)})
}
