//go:build linux

// Package nettest gives tests machines on a network: network namespaces of which the test's process
// carries the Ethernet frames, late, at a rate, or not at all, as tc's netem would.
//
//	machine 0  eth0 (TAP) ──frames──► queue of machine 0 ──after rate and delay──► all others' eth0
//
// Where namespaces are not permitted the machines are one: this one, which talks to itself. Nothing is
// then late, lost or cut off.
package nettest

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

// Link says how each machine's frames are carried. The zero value carries all of them at once.
type Link struct {
	Delay time.Duration // of each frame, one way
	Loss  float64       // share of the frames that are dropped, at random from a fixed seed
	Rate  float64       // bytes a second that leave a machine; 0 is no limit
}

// frameBytes is the most bytes of a frame: Ethernet's 14 and what eth0 may send.
const frameBytes = 14 + 1500

// Payload is the share of a full frame that TCP's data has: without the heads of Ethernet, IP and TCP
// with its time stamps.
const Payload = (1500.0 - 20 - 32) / frameBytes

// queued is how many frames wait for a machine's turn at most. Later ones are dropped.
const queued = 1 << 14

// LoopbackVariable, set to anything, keeps to this machine also where namespaces are permitted.
const LoopbackVariable = "PENSTOCK_NETTEST_LOOPBACK"

// Network is machines on a switch. It is there until its test ends.
type Network struct {
	name  string // of the namespaces, the beginning; "" without them
	link  Link
	ports []*port
	lost  atomic.Int64
	all   sync.WaitGroup // what takes and carries
}

// port is where a machine is connected.
type port struct {
	tap  *os.File
	deaf atomic.Bool // nothing reaches the machine
	mute atomic.Bool // nothing comes from it
	out  chan frame
}

// frame is on its way since a moment.
type frame struct {
	bytes []byte
	at    time.Time
}

// New makes a network of n machines, and removes it when the test ends. Where that is not permitted
// it says so, and the machines are this one.
func New(t testing.TB, n int, l Link) *Network {
	t.Helper()
	w := &Network{name: fmt.Sprintf("penstock-%d", time.Now().UnixNano()%1e9), link: l}
	t.Cleanup(w.all.Wait) // when the machines are gone
	var err error
	if os.Getenv(LoopbackVariable) != "" {
		err = errors.New(LoopbackVariable + " is set")
	}
	for i := 0; i < n && err == nil; i++ {
		err = w.add(t, i)
	}
	if err != nil {
		t.Logf("network namespaces cannot be used: %v; the machines are this one, and nothing is late, lost or cut off", err)
		return &Network{}
	}
	for i, p := range w.ports {
		w.all.Go(func() { w.take(p, rand.New(rand.NewPCG(1, uint64(i)))) })
		w.all.Go(func() { w.carry(p) })
	}
	return w
}

// add makes machine i.
func (w *Network) add(t testing.TB, i int) error {
	run := func(command string, args ...any) error {
		words := strings.Fields(fmt.Sprintf(command, args...))
		if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", strings.Join(words, " "), err, bytes.TrimSpace(out))
		}
		return nil
	}
	if err := run("ip netns add %s", w.machine(i)); err != nil {
		return err
	}
	t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", w.machine(i)).Run() })
	device := fmt.Sprintf("ps%d-%d", time.Now().UnixNano()%1e9, i)
	tap, err := openTAP(device)
	if err != nil {
		return fmt.Errorf("TAP devices: %w", err)
	}
	t.Cleanup(func() { _ = tap.Close() })
	w.ports = append(w.ports, &port{tap: tap, out: make(chan frame, queued)})
	return cmp.Or(run("ip link set %s netns %s name eth0", device, w.machine(i)),
		run("ip -n %s addr add %s/24 dev eth0", w.machine(i), w.Address(i)),
		run("ip -n %s link set eth0 up", w.machine(i)),
		run("ip -n %s link set lo up", w.machine(i)))
}

// openTAP makes a network interface whose frames are read from and written to the file.
func openTAP(name string) (*os.File, error) {
	fd, err := syscall.Open("/dev/net/tun", syscall.O_RDWR|syscall.O_CLOEXEC|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	request := struct { // struct ifreq
		name  [16]byte
		flags uint16
		_     [22]byte
	}{flags: syscall.IFF_TAP | syscall.IFF_NO_PI}
	copy(request.name[:15], name)
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), syscall.TUNSETIFF, uintptr(unsafe.Pointer(&request))); errno != 0 {
		_ = syscall.Close(fd)
		return nil, errno
	}
	return os.NewFile(uintptr(fd), name), nil // reads wait in Go, and end when it is closed
}

// take queues what a machine sends until its port is closed.
func (w *Network) take(p *port, r *rand.Rand) {
	defer close(p.out)
	buffer := make([]byte, frameBytes+4)
	for {
		n, err := p.tap.Read(buffer)
		if err != nil {
			return
		}
		f := frame{append([]byte(nil), buffer[:n]...), time.Now()}
		if r.Float64() < w.link.Loss {
			w.lost.Add(1)
			continue
		}
		select {
		case p.out <- f:
		default:
			w.lost.Add(1)
		}
	}
}

// carry brings what a machine has sent to all others, each frame at its time.
func (w *Network) carry(p *port) {
	runtime.LockOSThread() // for its timers; it ends with the goroutine
	const setTimerSlack = 29
	_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, setTimerSlack, 1, 0)
	var free time.Time // when the last byte has left
	for f := range p.out {
		if left := f.at; w.link.Rate > 0 {
			if left.After(free) {
				free = left
			}
			free = free.Add(time.Duration(float64(len(f.bytes)) / w.link.Rate * float64(time.Second)))
		} else {
			free = left
		}
		if wait := time.Until(free.Add(w.link.Delay)); wait > 0 {
			for left := syscall.NsecToTimespec(int64(wait)); syscall.Nanosleep(&left, &left) == syscall.EINTR; {
			}
		}
		for _, to := range w.ports {
			if to != p && !p.mute.Load() && !to.deaf.Load() {
				_, _ = to.tap.Write(f.bytes) // a machine that is gone hears nothing
			}
		}
	}
}

func (w *Network) machine(i int) string { return fmt.Sprintf("%s-%d", w.name, i) }

// Carries reports whether the network carries frames. Without namespaces it does not: Link does not
// hold, and Cut, Mute and Restore do nothing.
func (w *Network) Carries() bool { return w.name != "" }

// Address is the IP address of a machine.
func (w *Network) Address(i int) string {
	if !w.Carries() {
		return "127.0.0.1"
	}
	return fmt.Sprintf("10.77.0.%d", i+1)
}

// Free is an address with a port of a machine that nobody listens at.
func (w *Network) Free(t testing.TB, i int) string {
	t.Helper()
	port := "29500"
	if !w.Carries() {
		l, err := net.Listen("tcp", net.JoinHostPort(w.Address(i), "0"))
		if err != nil {
			t.Fatal(err)
		}
		_, port, _ = net.SplitHostPort(l.Addr().String())
		_ = l.Close()
	}
	return net.JoinHostPort(w.Address(i), port)
}

// On is what a command line begins with that is to run on a machine.
func (w *Network) On(i int) []string {
	if !w.Carries() {
		return nil
	}
	return []string{"ip", "netns", "exec", w.machine(i)}
}

// Cut takes a machine from the network: nothing reaches it or comes from it, and nobody is told.
func (w *Network) Cut(i int) { w.set(i, true, true) }

// Mute lets nothing come from a machine any more, which all that is sent to it still reaches.
func (w *Network) Mute(i int) { w.set(i, false, true) }

// Restore ends Cut and Mute.
func (w *Network) Restore(i int) { w.set(i, false, false) }

func (w *Network) set(i int, deaf, mute bool) {
	if w.Carries() {
		w.ports[i].deaf.Store(deaf)
		w.ports[i].mute.Store(mute)
	}
}

// Lost is how many frames were dropped so far, by Link.Loss or where too many waited.
func (w *Network) Lost() int64 { return w.lost.Load() }
