package launch_test

import (
	"errors"
	"net"
	"syscall"
	"testing"

	"penstock.example/internal/launch"
	"penstock.example/internal/must"
)

// Of all that ask for a port only the one that names it gets a port that is kept.
func TestAPortThatIsKept(t *testing.T) {
	p := must.Get(launch.KeepPort())(t)
	if _, err := net.Dial("tcp", p.Address()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("calling it before anybody listens: %v", err)
	}
	for _, address := range []string{p.Address(), ":" + p.Address()[len("127.0.0.1:"):]} {
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatalf("listening at %s: %v", address, err)
		}
		c := must.Get(net.Dial("tcp", p.Address()))(t)
		_, _ = c.Close(), l.Close()
	}
	// Those that ask for any port take many. Before, about one in seven got this one.
	var all []net.Listener
	for range 2000 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			break // more files than a process may have open
		}
		all = append(all, l)
		if l.Addr().String() == p.Address() {
			t.Error("it was given to somebody else")
		}
	}
	for _, l := range all {
		_ = l.Close()
	}
	must.Do(t, p.Release())
}
