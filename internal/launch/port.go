package launch

import (
	"fmt"
	"net"
	"strconv"
	"syscall"
)

// Port is a port of the loopback interface that is kept for a process that will listen there. Another
// process might get a port that was only found free. This one is bound and nobody listens: the system gives
// it to nobody who asks for any port. As it allows reuse, a process that names it may listen.
type Port struct {
	Number int
	socket int
}

// KeepPort keeps a port, or with 0 any free port. It fails if the port is in use. The caller releases it.
func KeepPort(number int) (p *Port, err error) {
	failed := func(err error) (*Port, error) {
		return nil,
			fmt.Errorf("launch: keeping port %d: %w", number, err)
	}
	socket, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return failed(err)
	}
	defer func() {
		if err != nil {
			_ = syscall.Close(socket)
		}
	}()
	bind := func() error {
		return syscall.Bind(socket, &syscall.SockaddrInet4{Port: number, Addr: [4]byte{127, 0, 0, 1}})
	}
	reuse := func() error {
		return syscall.SetsockoptInt(socket, syscall.SOL_SOCKET, syscall.SO_REUSEADDR,
			1)
	}
	steps := []func() error{reuse, bind}
	if number != 0 { // with reuse first it would get a port that another process keeps
		steps = []func() error{bind, reuse}
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return failed(err)
		}
	}
	at, err := syscall.Getsockname(socket)
	if err != nil {
		return failed(err)
	}
	return &Port{at.(*syscall.SockaddrInet4).Port, socket}, nil
}

// Address is the address of the port, such as 127.0.0.1:29500.
func (p *Port) Address() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(p.Number)) }

// Release lets others have the port. A process that listens there is not disturbed.
func (p *Port) Release() error { return syscall.Close(p.socket) }
