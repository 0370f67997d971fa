package launch_test

import (
	"context"
	"net"
	"testing"
)

// names lets a server of this process answer all that is looked up: the first questions find no host, and
// later ones 127.0.0.1.
func names(t *testing.T, first int) {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	was := net.DefaultResolver
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "udp", conn.LocalAddr().String())
	}}
	t.Cleanup(func() {
		net.DefaultResolver = was
		_ = conn.Close()
	})
	go func() {
		b := make([]byte, 1500)
		for asked := 0; ; asked++ {
			n, from, err := conn.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = conn.WriteTo(reply(b[:n], asked >= first), from)
		}
	}()
}

// reply answers a question, in the format of RFC 1035: with NXDOMAIN, or with an address of IPv4 if it asks for one.
func reply(question []byte, there bool) []byte {
	const header, ofIPv4 = 12, 1
	end := header
	for question[end] != 0 {
		end += 1 + int(question[end])
	}
	kind := question[end+2]
	end += 5
	out := append([]byte(nil), question[:end]...)
	out[2], out[3] = 0x85, 0x80 // an answer, with authority and recursion
	copy(out[4:header], []byte{0, 1, 0, 0, 0, 0, 0, 0})
	switch {
	case !there:
		out[3] |= 3
	case kind == ofIPv4:
		out[7] = 1
		out = append(out, 0xc0, header, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4, 127, 0, 0, 1)
	}
	return out
}

// The name of node 0 is found only after its launcher and another have started, as names of containers are.
func TestANameThatComesLater(t *testing.T) {
	names(t, 4) // each looks up an address of IPv4 and one of IPv6
	g := gather(t, 2, 2)
	_, port, _ := net.SplitHostPort(g.nodes.Address)
	g.nodes.Address = net.JoinHostPort("node0.test.", port)
	one := g.launch(t.Context(), 1)
	g.open()
	zero := g.launch(t.Context(), 0)
	for _, s := range g.started(0, 0, 1) {
		s.end <- nil
	}
	for node, ended := range []<-chan error{zero, one} {
		if err := <-ended; err != nil {
			t.Errorf("node %d: %v", node, err)
		}
	}
}
