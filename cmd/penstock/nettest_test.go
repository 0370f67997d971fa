package main

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

// network is machines on a switch: network namespaces of which the test carries the Ethernet frames, late, or
// not at all. Where namespaces are not permitted, or not wanted, the machines are this one.
//
//	machine 0  eth0 (TAP) ──frames──► queue of machine 0 ──after delay──► all others' eth0
type network struct {
	name  string // of the namespaces, the beginning; "" without them
	delay time.Duration
	loss  float64 // share of the frames that are dropped
	ports []*netPort
	lost  atomic.Int64
	all   sync.WaitGroup // what takes and carries
}

// netPort is where a machine is connected.
type netPort struct {
	tap  *os.File
	deaf atomic.Bool // nothing reaches the machine
	mute atomic.Bool // nothing comes from it
	out  chan netFrame
}

type netFrame struct {
	bytes []byte
	at    time.Time
}

// newNetwork makes n machines, and removes them when the test ends.
func newNetwork(t testing.TB, n int, loopback bool, delay time.Duration, loss float64) *network {
	t.Helper()
	w := &network{name: fmt.Sprintf("penstock-%d", time.Now().UnixNano()%1e9), delay: delay, loss: loss}
	if loopback {
		return &network{}
	}
	t.Cleanup(w.all.Wait) // when the machines are gone
	for i := range n {
		if err := w.add(t, i); err != nil {
			t.Logf("network namespaces cannot be used: %v; the machines are this one", err)
			return &network{}
		}
	}
	for i, p := range w.ports {
		w.all.Go(func() { w.take(p, rand.New(rand.NewPCG(1, uint64(i)))) })
		w.all.Go(func() { w.carry(p) })
	}
	return w
}

// add makes machine i.
func (w *network) add(t testing.TB, i int) error {
	run := func(command string, args ...any) error {
		words := strings.Fields(fmt.Sprintf(command, args...))
		if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", strings.Join(words, " "), err, out)
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
	w.ports = append(w.ports, &netPort{tap: tap, out: make(chan netFrame, 1<<14)})
	return cmp.Or(run("ip link set %s netns %s name eth0", device, w.machine(i)),
		run("ip -n %s addr add 10.77.0.%d/24 dev eth0", w.machine(i), i+1),
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
	at := uintptr(unsafe.Pointer(&request))
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), syscall.TUNSETIFF, at); errno != 0 {
		return nil, errors.Join(errno, syscall.Close(fd))
	}
	return os.NewFile(uintptr(fd), name), nil // reads wait in Go, and end when it is closed
}

// take queues what a machine sends until its port is closed.
func (w *network) take(p *netPort, r *rand.Rand) {
	defer close(p.out)
	buffer := make([]byte, 1<<11)
	for {
		n, err := p.tap.Read(buffer)
		if err != nil {
			return
		}
		if r.Float64() < w.loss {
			w.lost.Add(1)
			continue
		}
		p.out <- netFrame{append([]byte(nil), buffer[:n]...), time.Now()}
	}
}

// carry brings what a machine has sent to all others, each frame at its time.
func (w *network) carry(p *netPort) {
	for f := range p.out {
		time.Sleep(time.Until(f.at.Add(w.delay)))
		for _, to := range w.ports {
			if to != p && !p.mute.Load() && !to.deaf.Load() {
				_, _ = to.tap.Write(f.bytes) // a machine that is gone hears nothing
			}
		}
	}
}

func (w *network) machine(i int) string { return fmt.Sprintf("%s-%d", w.name, i) }

// carries reports whether the network carries frames. Otherwise set does nothing.
func (w *network) carries() bool { return w.name != "" }

// rendezvous is an address with a port of machine 0 that nobody listens at.
func (w *network) rendezvous(t testing.TB) string {
	t.Helper()
	if w.carries() {
		return "10.77.0.1:29500"
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// on is what a command line begins with that is to run on a machine.
func (w *network) on(i int) []string {
	if !w.carries() {
		return nil
	}
	return []string{"ip", "netns", "exec", w.machine(i)}
}

// set takes a machine from the network, whose peers are not told, or brings it back.
func (w *network) set(i int, deaf, mute bool) {
	if w.carries() {
		w.ports[i].deaf.Store(deaf)
		w.ports[i].mute.Store(mute)
	}
}
