package launch_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"penstock.example/internal/launch"
	"penstock.example/internal/proctest"
)

// gathering is a job on several nodes, whose launchers are in this process.
type gathering struct {
	t      *testing.T
	nodes  launch.Nodes
	starts chan started
	mu     sync.Mutex
	said   []string // by the host and all nodes
}

// started is a call of work, which returns what is sent to end, or what ended it.
type started struct {
	node  int
	place launch.Place
	end   chan error
}

// errLeft is the error of work that was ended in order, and errAbandoned that of one whose job has failed.
var errLeft, errAbandoned = errors.New("saved and left"), errors.New("missed another")

func gather(t *testing.T, least, most int) *gathering {
	t.Helper()
	return &gathering{t: t, starts: make(chan started), nodes: launch.Nodes{Address: proctest.Address(t), Token: "a", Processes: 2, Least: least, Most: most,
		Wait: time.Millisecond, Timeout: forever}}
}

func (g *gathering) say(text string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.said = append(g.said, text)
}

func (g *gathering) open() *launch.Host {
	g.t.Helper()
	host, err := g.nodes.Open(context.Background(), g.say)
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(host.Close)
	return host
}

// only has the job started on so many nodes, however long the others take.
func (g *gathering) only(nodes int64) *atomic.Int64 {
	on := &atomic.Int64{}
	on.Store(nodes)
	g.nodes.Fits = func(n int) bool { return int64(n) == on.Load() }
	return on
}

// launch runs the launcher of a node. What it returns is sent to the channel.
func (g *gathering) launch(ctx context.Context, node int) <-chan error {
	n := g.nodes
	n.Node = node
	return g.launchAs(ctx, n)
}

func (g *gathering) launchAs(ctx context.Context, n launch.Nodes) <-chan error {
	ended := make(chan error, 1)
	go func() {
		ended <- n.Run(ctx, g.say, func(ctx context.Context, p launch.Place, abandon <-chan struct{}) error {
			s := started{n.Node, p, make(chan error)}
			select {
			case g.starts <- s:
			case <-abandon:
				return errAbandoned
			}
			select {
			case err := <-s.end:
				return err
			case <-ctx.Done():
				return errLeft
			case <-abandon:
				return errAbandoned
			}
		})
	}()
	return ended
}

// started waits until the job is started on these nodes.
func (g *gathering) started(start int, nodes ...int) map[int]started {
	g.t.Helper()
	all := map[int]started{}
	for range nodes {
		select {
		case s := <-g.starts:
			all[s.node] = s
		case <-time.After(forever):
			g.t.Fatalf("started: %v; want %v", all, nodes)
		}
	}
	for i, node := range nodes {
		p := all[node].place
		if p.Start != start || p.First != 2*i || p.Size != 2*len(nodes) || !slices.Equal(p.Nodes, nodes) {
			g.t.Fatalf("node %d starts as %+v; want start %d of nodes %v", node, p, start, nodes)
		}
	}
	return all
}

// want compares the end of a launcher with the beginning of an error; "" is none.
func want(t *testing.T, node string, ended <-chan error, text string) {
	t.Helper()
	select {
	case err := <-ended:
		if (err == nil) != (text == "") || err != nil && !strings.HasPrefix(err.Error(), text) {
			t.Errorf("%s: got %v; want %q", node, err, text)
		}
	case <-time.After(forever):
		t.Fatalf("%s does not end", node)
	}
}

func TestNodesStartTogether(t *testing.T) {
	g := gather(t, 3, 3)
	ctx := t.Context()
	one := g.launch(ctx, 1) // before there is a host
	g.open()
	two, zero := g.launch(ctx, 2), g.launch(ctx, 0)
	for _, s := range g.started(0, 0, 1, 2) {
		s.end <- nil
	}
	want(t, "node 0", zero, "")
	want(t, "node 1", one, "")
	want(t, "node 2", two, "")
}

func TestAFailureOnANodeStartsAllAgain(t *testing.T) {
	g := gather(t, 2, 2)
	g.nodes.Restarts = 1
	g.open()
	zero, one := g.launch(t.Context(), 0), g.launch(t.Context(), 1)
	g.started(0, 0, 1)[1].end <- &launch.Failure{Rank: 3, Code: 1}
	g.started(1, 0, 1)[1].end <- &launch.Failure{Rank: 2, Code: 1}
	want(t, "node 0", zero, "launch: rank 2 exited with 1 after 0s; no restart of 1 is left")
	want(t, "node 1", one, "launch: rank 2 exited with 1 after 0s")
	if again := "rank 3 exited with 1 after 0s; starting again, restart 1 of 1"; !slices.Equal(g.said, []string{again, again}) {
		t.Errorf("said: %q", g.said)
	}
}

// What is wrong with the command line stays wrong.
func TestAWrongCommandLineIsNotStartedAgain(t *testing.T) {
	g := gather(t, 2, 2)
	g.nodes.Restarts = 5
	g.open()
	zero, one := g.launch(t.Context(), 0), g.launch(t.Context(), 1)
	all := g.started(0, 0, 1)
	all[0].end <- &launch.Failure{Rank: 0, Code: 1} // which has heard of it, and is seen first
	all[1].end <- &launch.Failure{Rank: 3, Code: launch.Usage}
	const text = "launch: rank 3 exited with 2 after 0s; not started again, as its command line or data would be refused again"
	wantUsage(t, "node 0", zero, text)
	wantUsage(t, "node 1", one, text)
}

// proxy is another address of a job, whose connections end when it is cut.
func (g *gathering) proxy() (n launch.Nodes, cut func()) {
	g.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		g.t.Fatal(err)
	}
	var mu sync.Mutex
	var all []net.Conn
	cut = func() {
		l.Close()
		mu.Lock()
		defer mu.Unlock()
		for _, c := range all {
			c.Close()
		}
	}
	g.t.Cleanup(cut)
	go func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", g.nodes.Address)
			if err != nil {
				near.Close()
				continue
			}
			mu.Lock()
			all = append(all, near, far)
			mu.Unlock()
			go func() { io.Copy(far, near); far.Close() }()
			go func() { io.Copy(near, far); near.Close() }()
		}
	}()
	n = g.nodes
	n.Address = l.Addr().String()
	return n, cut
}

// A node that goes is done without, and one that comes is taken in: what runs is ended in order.
func TestNodesGoAndCome(t *testing.T) {
	g := gather(t, 1, 3)
	g.nodes.Restarts, g.nodes.Saves = 1, true
	on := g.only(3)
	g.open()
	n, cut := g.proxy()
	n.Node, n.Timeout = 2, 10*time.Millisecond
	zero, one, two := g.launch(t.Context(), 0), g.launch(t.Context(), 1), g.launchAs(t.Context(), n)
	g.started(0, 0, 1, 2)
	on.Store(2)
	cut()
	want(t, "node 2", two, "launch: node 2 cannot join at the launcher of node 0")
	g.started(1, 0, 1)
	on.Store(3)
	three := g.launch(t.Context(), 2)
	for _, s := range g.started(2, 0, 1, 2) {
		s.end <- nil
	}
	want(t, "node 0", zero, "")
	want(t, "node 1", one, "")
	want(t, "node 2 again", three, "")
	for _, text := range []string{"the launcher of node 2 has gone; starting again, restart 1 of 1", "node 2 joins; starting again"} {
		if !slices.Contains(g.said, text) {
			t.Errorf("%q, without %q", g.said, text)
		}
	}
}

// A run that saves nothing is not ended for a node that comes later, and numbers of nodes on which the job
// cannot run are not used.
func TestNodesThatAreSpare(t *testing.T) {
	g := gather(t, 2, 4)
	g.nodes.Restarts = 1
	g.nodes.Fits = func(n int) bool { return n%2 == 0 }
	g.open()
	var ended []<-chan error
	for node := range 3 {
		ended = append(ended, g.launch(t.Context(), node))
	}
	first := map[int]started{}
	for range 2 {
		s := <-g.starts
		first[s.node] = s
	}
	first[0].end <- errors.New("it failed") // with whichever node came first
	second := map[int]started{}
	for range 2 {
		s := <-g.starts
		second[s.node] = s
	}
	if len(second[0].place.Nodes) != 2 || second[0].place.Start != 1 {
		t.Errorf("the second start is %+v", second)
	}
	for _, s := range second {
		s.end <- nil
	}
	for node, e := range ended {
		want(t, fmt.Sprint("node ", node), e, "")
	}
}

// A node that is interrupted leaves, and the others go on; node 0 takes all with it.
func TestAnInterruptedNode(t *testing.T) {
	g := gather(t, 1, 2)
	on := g.only(2)
	g.open()
	ctx, leave := context.WithCancel(t.Context())
	all, end := context.WithCancel(t.Context())
	zero, one := g.launch(all, 0), g.launch(ctx, 1)
	g.started(0, 0, 1)
	on.Store(1)
	leave()
	g.started(1, 0)
	want(t, "node 1", one, errLeft.Error())
	end()
	want(t, "node 0", zero, errLeft.Error())
}

func TestNodesThatDoNotCome(t *testing.T) {
	g := gather(t, 3, 4)
	g.nodes.Timeout = 100 * time.Millisecond
	g.open()
	zero := g.launch(t.Context(), 0)
	n := g.nodes
	n.Node, n.Timeout = 2, forever
	two := g.launchAs(t.Context(), n)
	for node, e := range []<-chan error{zero, two} {
		want(t, fmt.Sprint(node), e, "launch: nodes 1 and 3 of 4 did not come within 100ms; want launch started there too, fewer --nodes, or more time (--join-timeout)")
	}
}

// wantUsage is want for a launcher whose command line is at fault.
func wantUsage(t *testing.T, node string, ended <-chan error, text string) {
	t.Helper()
	again := make(chan error, 1)
	select {
	case err := <-ended:
		var coded interface{ ExitCode() int }
		if !errors.As(err, &coded) || coded.ExitCode() != launch.Usage {
			t.Errorf("%s: %v has not the exit code %d", node, err, launch.Usage)
		}
		again <- err
	case <-time.After(forever):
		t.Fatalf("%s does not end", node)
	}
	want(t, node, again, text)
}

// Launchers whose command lines differ all say who has what, also one that comes late. Nothing starts.
func TestLaunchersThatDiffer(t *testing.T) {
	for text, change := range map[string]func(*launch.Nodes){
		"--nodes 3, node 1 has 1:3":   func(n *launch.Nodes) { n.Least = 1 },
		"--nodes 3, node 1 has 3:4":   func(n *launch.Nodes) { n.Most = 4 },
		"--processes 2, node 1 has 1": func(n *launch.Nodes) { n.Processes = 1 },
	} {
		g := gather(t, 3, 3)
		text = "launch: the launchers do not start the same job: node 0 has " + text
		other := g.nodes
		other.Node = 1
		change(&other)
		host := g.open()
		zero, one := g.launch(t.Context(), 0), g.launchAs(t.Context(), other)
		wantUsage(t, "node 0", zero, "launch: the launchers do not start the same job: node ")
		wantUsage(t, "node 1", one, text)
		told := make(chan struct{})
		go func() {
			host.Wait(t.Context())
			close(told)
		}()
		if other.Most == 3 {
			select {
			case <-told:
				t.Error("the host does not wait for node 2")
			case <-time.After(20 * time.Millisecond):
			}
		}
		wantUsage(t, "node 2", g.launch(t.Context(), 2), "launch: the launchers do not start the same job: node 1 has ")
		if other.Most == 4 {
			wantUsage(t, "node 3", g.launchAs(t.Context(), fourth(other)), "launch: the launchers do not start the same job: nodes 0 and 2 have --nodes 3, nodes 1 and 3 have 3:4")
		}
		<-told
	}
}

// fourth is the launcher of node 3.
func fourth(n launch.Nodes) launch.Nodes {
	n.Node = 3
	return n
}

// A launcher that refuses its own command line says so to all, and nothing starts. It does not end a job
// that runs.
func TestALauncherThatRefuses(t *testing.T) {
	for refuser := range 2 {
		g := gather(t, 2, 3)
		g.nodes.Wait = forever
		host := g.open()
		n := g.nodes
		n.Node, n.Refusal = refuser, "--lr fast: want a number"
		first := g.launchAs(t.Context(), n)
		other := g.launch(t.Context(), 1-refuser)
		text := fmt.Sprintf("launch: node %d refuses its command line: --lr fast: want a number", refuser)
		wantUsage(t, "the refuser", first, text)
		wantUsage(t, "the other", other, text)
		wantUsage(t, "node 2", g.launch(t.Context(), 2), text)
		host.Wait(t.Context())
	}
	g := gather(t, 1, 2)
	on := g.only(1)
	g.open()
	zero := g.launch(t.Context(), 0)
	running := g.started(0, 0)
	on.Store(2)
	n := g.nodes
	n.Node, n.Refusal = 1, "--lr fast: want a number"
	wantUsage(t, "node 1", g.launchAs(t.Context(), n), "launch: node 1 refuses its command line: --lr fast")
	n.Refusal, n.Processes = "", 7
	wantUsage(t, "node 1", g.launchAs(t.Context(), n), "launch: the launchers do not start the same job: node 0 has --processes 2, node 1 has 7")
	running[0].end <- nil
	want(t, "node 0", zero, "")
}

func TestNodesThatAreRefused(t *testing.T) {
	g := gather(t, 3, 3)
	g.open()
	ctx, cancel := context.WithCancel(t.Context())
	one := g.launch(ctx, 1)
	for _, row := range []struct {
		change func(*launch.Nodes)
		want   string
	}{
		{func(n *launch.Nodes) { n.Token = "b" }, "launch: node 0 has refused this node: it does not know the job's token; want the same PENSTOCK_TOKEN on all nodes"},
		{func(n *launch.Nodes) { n.Node = 3 }, "launch: there are --nodes 3, and this is node 3; want a --node-rank from 0 to 2"},
	} {
		n := g.nodes
		n.Node = 2
		row.change(&n)
		wantUsage(t, row.want, g.launchAs(t.Context(), n), row.want)
	}
	for range 2 { // one of two of the same number
		n := g.nodes
		n.Node = 2
		go n.Run(ctx, g.say, nil)
	}
	said := func(text string) bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return slices.ContainsFunc(g.said, func(s string) bool { return strings.Contains(s, text) })
	}
	for until := time.Now().Add(forever); !said("there is a node 2 already; want another --node-rank"); time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("said: %q", g.said)
		}
	}
	for _, junk := range []string{"", "GET / HTTP/1.1\r\n\r\n", `{"Kind":"hello"}` + "\n", `{"Kind":"hello","Node":99999999999999999999}` + "\n", strings.Repeat("[", 1<<20), "\xff\x00"} {
		c, err := net.Dial("tcp", g.nodes.Address)
		if err != nil {
			t.Fatal(err)
		}
		go c.Write([]byte(junk))
		if junk == "" {
			c.Close()
			continue
		}
		c.SetReadDeadline(time.Now().Add(forever))
		if _, err := io.Copy(io.Discard, c); errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%.20q is not refused", junk)
		}
		c.Close()
	}
	cancel()
	want(t, "node 1", one, context.Canceled.Error())
}
