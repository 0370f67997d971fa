//go:build linux

package nettest_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"testing"
	"time"

	"penstock.example/internal/nettest"
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

// talk sends back what comes, and prints a line for each part; or sends a byte and then many, waiting
// for both, and prints how long each took; or sends a byte at a time, and prints a line for each that
// is back.
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
		for part := make([]byte, 1<<16); ; {
			n, err := c.Read(part)
			if err == io.EOF {
				return nil
			}
			if err == nil {
				fmt.Println("got")
				_, err = c.Write(part[:n])
			}
			if err != nil {
				return err
			}
		}
	}
	c, err := net.Dial("tcp", address)
	if err != nil {
		return err
	}
	for role == "beat" {
		if _, err = c.Write([]byte{1}); err == nil {
			_, err = io.ReadFull(c, make([]byte, 1))
		}
		if err != nil {
			return err
		}
		fmt.Println("back")
		time.Sleep(10 * time.Millisecond)
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

// start starts a role on a machine and returns its lines. It is ended when the test ends.
func start(t *testing.T, w *nettest.Network, machine int, address, role string) <-chan string {
	t.Helper()
	words := append(w.On(machine), os.Args[0], role)
	c := exec.Command(words[0], words[1:]...)
	c.Env = append(os.Environ(), peer+"="+address)
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	lines := make(chan string, 1<<16)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			lines <- s.Text()
		}
	}()
	t.Cleanup(func() {
		_ = c.Process.Kill()
		for range lines {
		}
		_ = c.Wait()
	})
	return lines
}

// next is the next line, which comes within a minute.
func next(t *testing.T, lines <-chan string) string {
	t.Helper()
	select {
	case line, more := <-lines:
		if more {
			return line
		}
		t.Fatal("the process has ended")
	case <-time.After(time.Minute):
		t.Fatal("nothing comes")
	}
	return ""
}

// talking starts machine 1, which answers, and a caller on machine 0.
func talking(t *testing.T, w *nettest.Network, role string) (answers, calls <-chan string) {
	t.Helper()
	address := w.Free(t, 1)
	answers = start(t, w, 1, address, "answer")
	next(t, answers) // it listens
	return answers, start(t, w, 0, address, role)
}

// exchange is how long a byte and a stream there and back take.
func exchange(t *testing.T, w *nettest.Network) (one, many time.Duration) {
	t.Helper()
	_, calls := talking(t, w, "call")
	for _, d := range []*time.Duration{&one, &many} {
		if _, err := fmt.Sscan(next(t, calls), (*int64)(d)); err != nil {
			t.Fatal(err)
		}
	}
	return one, many
}

// Nothing arrives sooner than the link allows, and all of it in spite of what is lost.
func TestNetwork(t *testing.T) {
	w := nettest.New(t, 2, nettest.Link{Delay: 5 * time.Millisecond, Loss: 0.02, Rate: 20e6})
	one, many := exchange(t, w)
	least := time.Duration(streamed / 20e6 * float64(time.Second))
	if w.Carries() && (one < 10*time.Millisecond || many < least+10*time.Millisecond || w.Lost() == 0) {
		t.Errorf("a byte takes %v, %d bytes %v and %d frames were lost; want at least 10 ms, %v more and some", one, streamed, many, w.Lost(), least)
	}
}

// Without namespaces the machines are this one, and talk all the same.
func TestLoopback(t *testing.T) {
	t.Setenv(nettest.LoopbackVariable, "1")
	w := nettest.New(t, 2, nettest.Link{Delay: time.Hour})
	w.Cut(1)
	if one, many := exchange(t, w); w.Carries() || w.On(1) != nil || one <= 0 || many <= 0 {
		t.Errorf("frames are carried: %v; a byte takes %v, a stream %v", w.Carries(), one, many)
	}
}

// What a machine that is cut off or mute sends does not arrive; what is sent to one that is mute does.
// Nobody is told, so that connections go on when the network is restored.
func TestCutAndMute(t *testing.T) {
	w := nettest.New(t, 2, nettest.Link{})
	if !w.Carries() {
		t.Skip("nothing can be cut")
	}
	answers, calls := talking(t, w, "beat")
	arrived, back := 0, 0
	count := func(wait time.Duration) {
		for end := time.After(wait); ; {
			select {
			case <-answers:
				arrived++
			case <-calls:
				back++
			case <-end:
				return
			}
		}
	}
	for _, row := range []struct {
		how     string
		f       func(int)
		arrives bool // the byte whose answer does not
	}{{"cut off", w.Cut, false}, {"mute", w.Mute, true}} {
		next(t, calls)
		back++
		row.f(1)
		count(300 * time.Millisecond) // what was on its way
		before := back
		count(500 * time.Millisecond)
		if back != before || row.arrives && arrived != back+1 {
			t.Errorf("%s: %d bytes arrived and %d answers, %d of them late", row.how, arrived, back, back-before)
		}
		w.Restore(1)
	}
	next(t, calls)
}
