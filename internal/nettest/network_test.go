//go:build linux

package nettest_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"testing"
	"time"

	"penstock/internal/nettest"
)

const peer = "PENSTOCK_NETTEST"

// The test binary answers or calls if it is started as one of the two.
func TestMain(m *testing.M) {
	address := os.Getenv(peer)
	if address == "" {
		os.Exit(m.Run())
	}
	if err := talk(address, os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

const streamed = 1 << 20

// talk sends back what comes; or sends a byte and then many, waiting for both, and prints how long
// each took.
func talk(address, role string) error {
	if role == "answer" {
		l, err := net.Listen("tcp", address)
		if err != nil {
			return err
		}
		fmt.Println("ready")
		c, err := l.Accept()
		if err != nil {
			return err
		}
		_, err = io.Copy(c, c)
		return err
	}
	c, err := net.Dial("tcp", address)
	if err != nil {
		return err
	}
	for _, n := range []int{1, streamed} {
		begin := time.Now()
		go c.Write(make([]byte, n))
		if _, err := io.ReadFull(c, make([]byte, n)); err != nil {
			return err
		}
		fmt.Println(time.Since(begin).Nanoseconds())
	}
	return nil
}

// exchange is how long a byte and a stream there and back take.
func exchange(t *testing.T, w *nettest.Network) (one, many time.Duration) {
	t.Helper()
	at := func(machine int, role string) *exec.Cmd {
		words := append(w.On(machine), os.Args[0], role)
		c := exec.CommandContext(t.Context(), words[0], words[1:]...)
		c.Env = append(os.Environ(), peer+"="+net.JoinHostPort(w.Address(1), "29500"))
		c.Stderr = os.Stderr
		return c
	}
	answer := at(1, "answer")
	said, err := answer.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := answer.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = answer.Process.Kill()
		_ = answer.Wait()
	}()
	if _, err := said.Read(make([]byte, 16)); err != nil {
		t.Fatal(err)
	}
	out, err := at(0, "call").Output()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fscan(bytes.NewReader(out), (*int64)(&one), (*int64)(&many)); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return one, many
}

// Nothing arrives sooner than the link allows, and all of it in spite of what is lost.
func TestNetwork(t *testing.T) {
	w := nettest.New(t, 2, nettest.Link{Delay: 5 * time.Millisecond, Loss: 0.02, Rate: 20e6})
	one, many := exchange(t, w)
	least := time.Duration(streamed / 20e6 * float64(time.Second))
	if one < 10*time.Millisecond || many < least+10*time.Millisecond || w.Lost() == 0 {
		t.Errorf("a byte takes %v, %d bytes %v and %d frames were lost; want at least 10 ms, %v more and some", one, streamed, many, w.Lost(), least)
	}
}
